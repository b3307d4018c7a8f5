"""Images behind convolutions: the exact inputs of the first dense layer, and the images that the front takes there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.exact.cut import Cut, cut_at, mixes_examples
from fedglass.attack.exact.dense import DenseUpdate, dense_inputs, dense_layers
from fedglass.attack.exact.head import Features, checked, head_gradients
from fedglass.attack.exact.last_layer import chained_inputs
from fedglass.attack.exact.linear import affine, smoothest
from fedglass.attack.exact.method import Search, Solved
from fedglass.attack.exact.peel import peeled_inputs
from fedglass.attack.exact.verify import explains, verified
from fedglass.attack.parts import Problem, silent
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.solvers.schedules import CosineDecay
from fedglass.core.registry import register
from fedglass.core.types import Observation, Unknown

ITERATIONS = 300
"""Steps of the inversion. On public CIFAR images behind three ReLU convolutions 150 give 30.0 dB, 300 give 32.0, 600
give 32.1."""
FEWEST = 60
"""Steps below which the search has no time for an inversion that is worth its name."""
RATE = 3.0
"""Adam's rate in whitened pixels, falling to zero along half a cosine."""
VARIATION = (1.0, 0.0003)
"""Weight of the total variation at the first and at the last step, beside the squared error of the features relative to
that of a grey image. Public CIFAR images: a start of 1 is best behind small networks (LeNet 24 dB; 0.1 gives 18), and a
small end behind wide ones."""
SATURATED = 1e-7
"""Features this close to the end of an activation's range are moved inside before it is inverted."""

INVERSES: tuple[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]], ...] = (
    (torch.sigmoid, lambda y: torch.logit(y, eps=SATURATED)),
    (torch.tanh, lambda y: torch.atanh(y.clamp(SATURATED - 1, 1 - SATURATED))),
    (F.leaky_relu, lambda y: torch.where(y > 0, y, y / 0.01)),
    (F.elu, lambda y: torch.where(y > 0, y, torch.log1p(y.clamp(min=SATURATED - 1)))),
    (F.softplus, lambda y: y + torch.log(-torch.expm1(-y.clamp(min=SATURATED)))),
)
"""Activations that can be inverted."""


def read_features(observation: Observation, layers: Sequence[DenseUpdate], search: Search) -> Features | None:
    """Return the inputs of the first of these layers, of as many examples as can be told; None where none can."""
    if observation.knows.examples == 1:
        return _single(observation, layers[0], search)
    found = peeled_inputs(observation, layers[0])
    if found is not None and found.verified:
        return found
    chained = chained_inputs(observation, layers, search)
    tries = [one for one in (found, chained) if one is not None]
    return min(tries, key=lambda one: one.residual, default=None)


def dense_fronts(observation: Observation) -> list[DenseUpdate] | str:
    """Return the dense layers of a network from whose inputs images can be sought, or why they cannot."""
    mixing = mixes_examples(observation)
    if mixing:
        return mixing
    try:
        layers = dense_layers(observation)
    except (RuntimeError, TypeError, ValueError) as error:
        return f"the network does not run on a random input: {str(error).splitlines()[0]}"
    if not layers:
        return "no dense layer with a bias sends a multiple of its gradient"
    count, classes = observation.knows.examples, observation.knows.classes
    if count > 1 and not layers[0].relu and count >= classes:
        return f"no ReLU follows the first dense layer, and {count} examples are not fewer than {classes} classes"
    return layers if cut_at(observation, layers[0].name).headed() else "the first dense layer is bypassed"


def solved_by(observation: Observation, found: Features, tries: Sequence[Tensor]) -> Solved:
    """Return the first of several versions of the images that explains the message, or else the first of all."""
    residuals = [explains(observation, images, found.labels) for images in tries]
    good = [i for i, residual in enumerate(residuals) if verified(observation, residual)]
    chosen = good[0] if good else 0
    details: dict[str, float | int | str] = {
        "found": len(found.inputs),
        "features_verified": int(found.verified),
        "head_residual": found.residual,
    }
    return Solved(tries[chosen], found.labels, residuals[chosen], bool(good), details)


@register(
    "exact",
    "dense_features",
    summary="the exact inputs of the first dense layer behind convolutions, and the images that the convolutions take "
    "there",
)
@dataclass(frozen=True)
class DenseFeatures:
    """Read the features of each example, verified by the head alone, and invert them by the network's own front."""

    name: str = "dense_features"
    paper: str = ""

    def applies(self, observation: Observation) -> str:
        """Return why the method does not apply; empty where it does."""
        layers = dense_fronts(observation)
        if isinstance(layers, str):
            return layers
        linear = affine(cut_at(observation, layers[0].name).front, observation.knows.shape)
        return "the first dense layer is fed a linear map of the pixels" if linear else ""

    def solve(self, observation: Observation, search: Search) -> Solved | None:
        """Return images of the examples whose features could be told."""
        layers = dense_fronts(observation)
        found = None if isinstance(layers, str) else read_features(observation, layers, search)
        if isinstance(layers, str) or found is None:
            return None
        cut = cut_at(observation, layers[0].name)
        undone = _before_activation(cut, found.inputs)
        if undone is not None:
            return solved_by(observation, found, smoothest(observation.knows, *undone))
        images = inverted(observation, layers[0].name, found.inputs, search)
        if images is None:
            return None
        solved = solved_by(observation, found, [images])
        with torch.no_grad():
            given = cut.front(observation.knows.whitening.whiten(images.double()))
        error = float((given - found.inputs).norm() / found.inputs.norm())
        return replace(solved, details={**solved.details, "feature_error": error})


def inverted(observation: Observation, layer: str, features: Tensor, search: Search) -> Tensor | None:
    """Return images of which the front makes these features, each sought on its own; None where there is no time.

    # (n, d) -> (n, c, h, w), pixels before whitening
    """
    knows, like = observation.knows, next(iter(observation.before.values()))
    cut, aims = cut_at(observation, layer, like.dtype), features.to(like)
    low, high = (bound.to(like) for bound in knows.bounds())
    grey = ((low + high) / 2).expand(len(aims), *knows.shape)
    with torch.no_grad():
        sizes = (cut.front(grey) - aims).square().sum(1)

    def energy(tensors: Sequence[Tensor], share: float) -> Tensor:
        misfit = (cut.front(tensors[0]) - aims).square().sum(1) / sizes
        weight: float = VARIATION[0] * (VARIATION[1] / VARIATION[0]) ** share
        return (misfit + weight * _variation(tensors[0])).sum()

    problem = Problem((Unknown(grey, low, high),), energy)
    iterations = _affordable(problem, search.seconds)
    if iterations < FEWEST:
        return None
    solution = Adam(rate=RATE, iterations=iterations, schedule=CosineDecay()).minimise(problem, silent)
    return knows.whitening.unwhiten(solution.tensors[0].detach())


def _single(observation: Observation, layer: DenseUpdate, search: Search) -> Features | None:
    """The input of one example by division, and the label whose gradient is nearest to the update's direction."""
    cut, bias = cut_at(observation, layer.name), layer.bias
    if bias is None or layer.bias_before is None or not cut.headed():
        return None
    found = dense_inputs(layer.weight, bias, layer.weight_before, layer.bias_before, 1, search).inputs
    gradients = head_gradients(observation, layer, cut, found)[0]  # (k, h)
    label = F.cosine_similarity(gradients, -bias[None], dim=1).argmax()
    return checked(observation, layer, cut, found, label[None])


def _before_activation(cut: Cut, features: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor] | None:
    """An affine map of the images and what it gives, where the features are an invertible activation of it."""
    probe = torch.randn(2, *cut.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with torch.no_grad():
        given, before = cut.front(probe), cut.outputs(probe)
    for name, outputs in before.items():
        for activation, inverse in INVERSES:
            if outputs.numel() != given.numel() or not torch.allclose(activation(outputs).view_as(given), given):
                continue

            def seen(inputs: Tensor, name: str = name) -> Tensor:
                return cut.outputs(inputs)[name].flatten(1)

            if affine(seen, cut.shape):
                return seen, inverse(features)
    return None


def _affordable(problem: Problem, seconds: float) -> int:
    """How many iterations the time allows, at most as many as are wanted: measured on one."""
    start = problem.unknowns[0].start.clone().requires_grad_()
    began = time.monotonic()
    torch.autograd.grad(problem.energy([start], 0.0), start)
    taken = time.monotonic() - began
    return min(ITERATIONS, int(seconds / max(taken, 1e-6)))


def _variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbours across and down, for each image.  # (n, c, h, w) -> (n,)"""
    return images.diff(dim=-1).abs().mean((1, 2, 3)) + images.diff(dim=-2).abs().mean((1, 2, 3))
