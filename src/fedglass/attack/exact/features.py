"""Images behind convolutions: the exact inputs of the first dense layer, and the images that the front takes there."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.exact.cut import Cut, Features, checked, cut_at, head_gradients, mixes_examples
from fedglass.attack.exact.dense import DenseUpdate, dense_inputs, dense_layers, first_dense
from fedglass.attack.exact.last_layer import chained_inputs, peeled_inputs
from fedglass.attack.exact.linear import affine, smoothest
from fedglass.attack.exact.method import Search, Solved, once
from fedglass.attack.exact.verify import explains, verified
from fedglass.attack.parts import Problem, no_progress
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.solvers.schedules import CosineDecay
from fedglass.core.registry import register
from fedglass.core.types import Observation, Unknown

STAGES = ((4, 50, 0.5), (2, 50, 0.3), (1, 200, 0.3))
"""How many times coarser than the image the unknowns are, steps, and Adam's rate in whitened pixels: from coarse to
fine, since units that a wrong start leaves dead keep noise for good. Public CIFAR images behind three ReLU convolutions
come back at 30 dB in the mean, the worst of 16 at 23.6; on the full grid alone at 24.7, the worst of 24 at 10."""
FEWEST = 0.2
"""The share of these steps below which there is no time for an inversion that is worth its name."""
VARIATION = (0.1, 0.001)
"""Weight of the total variation at the start and at the last step, beside the squared error of the features relative to
that of a grey image; measured with the stages."""
UNEXPLAINED = 0.65
"""What a replay of the head may leave of its update for features to be worth an inversion: noise as large as the update
leaves 0.7, twenty local steps left up to 0.53 (small ReLU CNN, one photograph)."""
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


@once
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


@once
def linear_front(observation: Observation) -> bool:
    """Return whether the first of the layers of `dense_fronts` is fed a linear map of the pixels."""
    layers = dense_fronts(observation)
    return not isinstance(layers, str) and affine(cut_at(observation, layers[0].name).front, observation.knows.shape)


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
    cost: ClassVar[float] = 10.0
    """Seconds that it takes about."""

    def applies(self, observation: Observation) -> str:
        """Return why the method does not apply; empty where it does."""
        layers = dense_fronts(observation)
        if isinstance(layers, str):
            return layers
        return "the first dense layer is fed a linear map of the pixels" if linear_front(observation) else ""

    def solve(self, observation: Observation, search: Search) -> Solved | None:
        """Return images of the examples whose features could be told."""
        layers = dense_fronts(observation)
        found = None if isinstance(layers, str) else read_features(observation, layers, search)
        if isinstance(layers, str) or found is None or _hopeless(observation, found):
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


def _hopeless(observation: Observation, found: Features) -> bool:
    """Whether what all examples are said to be leaves most of the head's update unexplained, as under noise."""
    return len(found.inputs) == observation.knows.examples and found.residual > UNEXPLAINED


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

    def energy(images: Tensor, weight: float) -> Tensor:
        misfit = (cut.front(images) - aims).square().sum(1) / sizes
        return (misfit + weight * _variation(images)).sum()

    affordable = _affordable(lambda: energy(grey.clone().requires_grad_(), 0.0), search.seconds)
    if affordable < FEWEST:
        return None
    images = grey
    for coarser, steps, rate in STAGES:
        problem = _stage(energy, images, coarser, (low, high))
        solver = Adam(rate, math.ceil(affordable * steps), CosineDecay(), betas=(0.9, 0.99))
        images = _finer(solver.minimise(problem, no_progress).tensors[0].detach(), knows.shape)
    return knows.whitening.unwhiten(images)


def _stage(
    energy: Callable[[Tensor, float], Tensor], images: Tensor, coarser: int, bounds: tuple[Tensor, Tensor]
) -> Problem:
    """The search for images on a grid so many times coarser; the prior fades on the finest."""
    (height, width), shape = images.shape[2:], images.shape[1:]
    start = F.interpolate(images, (math.ceil(height / coarser), math.ceil(width / coarser)), mode="area")
    first, last = VARIATION

    def of(tensors: Sequence[Tensor], share: float) -> Tensor:
        fading: float = first * (last / first) ** share
        return energy(_finer(tensors[0], shape), fading if coarser == 1 else first)

    return Problem((Unknown(start, *bounds),), of)


def _finer(images: Tensor, shape: Sequence[int]) -> Tensor:
    """The images on the full grid.  # (n, c, height, width)"""
    size = (shape[1], shape[2])
    return images if images.shape[2:] == size else F.interpolate(images, size, mode="bilinear", align_corners=False)


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


def _affordable(energy: Callable[[], Tensor], seconds: float) -> float:
    """The share of all steps that the time allows, at most 1: measured on the second of two."""
    for _ in range(2):
        began = time.process_time()
        energy().backward()  # type: ignore[no-untyped-call]  # torch
        taken = time.process_time() - began
    return min(1.0, seconds / max(1e-6, taken * sum(steps for _, steps, _ in STAGES)))


def _variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbours across and down, for each image.  # (n, c, h, w) -> (n,)"""
    return images.diff(dim=-1).abs().mean((1, 2, 3)) + images.diff(dim=-2).abs().mean((1, 2, 3))


# Images of networks that see less than the pixels: pooled, grey or resized ones, by a fixed linear map A.
#
# The input z of the first dense layer is read exactly; the smoothest image with A x = z within the pixel bounds fills
# in
# what the network never saw. Its replay is the message itself: no attack can tell more without knowing more.


@register(
    "exact",
    "pooled_input",
    summary="the smoothest image that a network which pools, resizes or greys its input cannot tell from the true one",
)
@dataclass(frozen=True)
class PooledInput:
    """Read what the network sees, and fill in the smoothest image."""

    name: str = "pooled_input"
    paper: str = ""
    cost: ClassVar[float] = 1.5
    """Seconds that it takes about."""

    def applies(self, observation: Observation) -> str:
        """Return why the method does not apply; empty where it does."""
        found = _layers(observation)
        return found if isinstance(found, str) else ""

    def solve(self, observation: Observation, search: Search) -> Solved | None:
        """Return the images, of as many examples as could be told."""
        layers = _layers(observation)
        found = None if isinstance(layers, str) else read_features(observation, layers, search)
        if isinstance(layers, str) or found is None:
            return None
        # Bounds cost a little of A x = z; where the message does not forgive that, they are let go.
        cut = cut_at(observation, layers[0].name)
        solved = solved_by(observation, found, smoothest(observation.knows, cut.front, found.inputs))
        share = min(1.0, found.inputs.shape[1] / solved.images[0].numel())
        # Fewer numbers than pixels leave a choice: such an image explains the message, and need not be the true one.
        explains = solved.explains and share == 1
        return replace(solved, explains=explains, details={**solved.details, "share_seen": share})


def _layers(observation: Observation) -> list[DenseUpdate] | str:
    """The dense layers, where the first is fed a linear map of the image other than the pixels themselves."""
    if not isinstance(first_dense(observation), str):
        return "the first dense layer sees the pixels themselves"
    layers = dense_fronts(observation)
    if isinstance(layers, str):
        return layers
    return layers if linear_front(observation) else "what comes before the first dense layer is not linear"
