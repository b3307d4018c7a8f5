"""Images from the exact inputs of the first dense layer, by inversion of the front that feeds it.

`dense_features` inverts convolutions and activations. `pooled_input` inverts a fixed linear map A: networks that pool,
resize or grey their input see less than the pixels. The input z of the first dense layer is read exactly, and the
smoothest image with A x = z within the pixel bounds fills in what the network never saw. Its replay is the message
itself: no attack can read more without knowing more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.exact.dense import DenseUpdate, dense_layers, does_not_run, first_dense, once
from fedglass.attack.exact.exact import FOUND_NOTHING, Details, ExactSolution, SearchBudget, costs
from fedglass.attack.exact.last_layer import chained_inputs, peeled_inputs
from fedglass.attack.exact.split_network import (
    Cut,
    Features,
    cut_at,
    head_gradients,
    is_affine,
    mixes_examples,
    smoothest_images,
    verify_features,
)
from fedglass.attack.exact.update_matrix import entry_error, fit_rank_one, stack_update
from fedglass.attack.exact.verify import has_classes, message_of, needs_classes
from fedglass.attack.parts import Problem, no_progress
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.solvers.schedules import CosineDecay
from fedglass.core.registry import register
from fedglass.core.types import Observation, Unknown

STAGES = ((4, 50, 0.5), (2, 50, 0.3), (1, 200, 0.3))
"""Coarseness of the unknowns relative to the image, steps, and Adam's rate in whitened pixels: from coarse to fine,
since units that a wrong start leaves dead keep noise for good. Public CIFAR images behind three ReLU convolutions come
back at 30 dB in the mean, the worst of 16 at 23.6; on the full grid alone at 24.7, the worst of 24 at 10."""
LEAST_AFFORDABLE = 0.2
"""The share of these steps below which there is no time for a useful inversion."""
VARIATION = (0.1, 0.001)
"""Weight of the total variation at the start and at the last step, relative to the squared error of the features in
units of that of a grey image; measured with the stages."""
MOST_UNEXPLAINED = 0.65
"""The largest residual of the head's update for which features are inverted: noise as large as the update leaves 0.7,
twenty local steps left up to 0.53 (small ReLU CNN, one photograph)."""
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


def read_features(observation: Observation, layers: Sequence[DenseUpdate], search: SearchBudget) -> Features | None:
    """Return the inputs of the first of these layers, of as many examples as can be read; None if there are none."""
    if observation.knows.examples == 1:
        return _single_example(observation, layers[0])
    peeled = peeled_inputs(observation, layers[0])
    if peeled is not None and peeled.verified:
        return peeled
    chained = chained_inputs(observation, layers, search)
    tries = [features for features in (peeled, chained) if features is not None]
    return min(tries, key=lambda features: features.residual, default=None)


@once
def dense_fronts(observation: Observation) -> list[DenseUpdate] | str:
    """Return the dense layers of a network if images can be sought from their inputs, or why they cannot."""
    mixing = mixes_examples(observation)
    if mixing:
        return mixing
    try:
        layers = dense_layers(observation)
    except (RuntimeError, TypeError, ValueError) as error:
        return does_not_run(error)
    if not layers:
        return "no dense layer with a bias sends a multiple of its gradient"
    count, classes = observation.knows.examples, observation.knows.classes
    if count > 1 and not has_classes(observation):
        return needs_classes(observation)
    if count > 1 and not layers[0].relu and count >= classes:
        return f"no ReLU follows the first dense layer, and {count} examples are not fewer than {classes} classes"
    return layers if cut_at(observation, layers[0].name).headed() else "the first dense layer is bypassed"


@once
def linear_front(observation: Observation) -> bool:
    """Return True if the first of the layers of `dense_fronts` takes a linear map of the pixels."""
    layers = dense_fronts(observation)
    return not isinstance(layers, str) and is_affine(cut_at(observation, layers[0].name).front, observation.knows.shape)


def best_version(observation: Observation, features: Features, tries: Sequence[Tensor]) -> ExactSolution:
    """Return the first version of the images that explains the message, or else the first version."""
    message = message_of(observation)
    residuals = [message.replay(images, features.labels)[0] for images in tries]
    good = [i for i, residual in enumerate(residuals) if message.verified(residual)]
    chosen = good[0] if good else 0
    details: Details = {
        "examples_read": len(features.inputs),
        "features_verified": int(features.verified),
        "head_residual": features.residual,
    }
    return ExactSolution(tries[chosen], features.labels, residuals[chosen], bool(good), details)


@register(
    "exact",
    "dense_features",
    summary="the exact inputs of the first dense layer behind convolutions, and the images that the convolutions take "
    "there",
)
@costs(10.0)
def dense_features(observation: Observation, search: SearchBudget) -> ExactSolution | str:
    """Read the features of each example, verify them by a replay of the head, and invert the network's front."""
    layers = dense_fronts(observation)
    if isinstance(layers, str):
        return layers
    if linear_front(observation):
        return "the first dense layer takes a linear map of the pixels"
    features = read_features(observation, layers, search)
    # Features of all examples leave most of the head's update unexplained under noise.
    if features is None or (
        len(features.inputs) == observation.knows.examples and features.residual > MOST_UNEXPLAINED
    ):
        return FOUND_NOTHING
    cut = cut_at(observation, layers[0].name)
    affine_part = _undo_activation(cut, features.inputs)
    if affine_part is not None:
        return best_version(observation, features, smoothest_images(observation.knows, *affine_part))
    images = invert_features(observation, layers[0].name, features.inputs, search)
    if images is None:
        return FOUND_NOTHING
    solved = best_version(observation, features, [images])
    with torch.no_grad():
        reached = cut.front(observation.knows.whitening.whiten(images.double()))
    error = float((reached - features.inputs).norm() / features.inputs.norm())
    return replace(solved, details={**solved.details, "feature_error": error})


def invert_features(observation: Observation, layer: str, features: Tensor, search: SearchBudget) -> Tensor | None:
    """Search for images that the front takes to these features, each separately; return None if there is no time.

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
        variation = images.diff(dim=-1).abs().mean((1, 2, 3)) + images.diff(dim=-2).abs().mean((1, 2, 3))
        return (misfit + weight * variation).sum()

    affordable = _affordable_share(lambda: energy(grey.clone().requires_grad_(), 0.0), search.seconds)
    if affordable < LEAST_AFFORDABLE:
        return None
    images = grey
    for coarser, steps, rate in STAGES:
        problem = _coarse_problem(energy, images, coarser, (low, high))
        solver = Adam(rate, math.ceil(affordable * steps), CosineDecay(), betas=(0.9, 0.99))
        images = _upsample(solver.minimise(problem, no_progress).tensors[0].detach(), knows.shape)
    return knows.whitening.unwhiten(images)


def _coarse_problem(
    energy: Callable[[Tensor, float], Tensor], images: Tensor, coarser: int, bounds: tuple[Tensor, Tensor]
) -> Problem:
    """Return the search for images on a coarser grid; the prior fades on the finest."""
    (height, width), shape = images.shape[2:], images.shape[1:]
    start = F.interpolate(images, (math.ceil(height / coarser), math.ceil(width / coarser)), mode="area")
    first, last = VARIATION

    def of(tensors: Sequence[Tensor], share: float) -> Tensor:
        fading: float = first * (last / first) ** share
        return energy(_upsample(tensors[0], shape), fading if coarser == 1 else first)

    return Problem((Unknown(start, *bounds),), of)


def _upsample(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the images on the full grid.  # (n, c, height, width)"""
    size = (shape[1], shape[2])
    return images if images.shape[2:] == size else F.interpolate(images, size, mode="bilinear", align_corners=False)


def _single_example(observation: Observation, layer: DenseUpdate) -> Features | None:
    """Read the input of one example by division, with the label that has the gradient nearest to the update."""
    cut, sent = cut_at(observation, layer.name), layer.sent
    if not sent.biased or not cut.headed():
        return None
    parts = [sent.matrix[:, :-1], sent.matrix[:, -1]]
    errors = [entry_error(*pair) for pair in zip(parts, (layer.weight_before, layer.bias_before), strict=True)]
    rank_one = fit_rank_one(stack_update(parts, errors).unpruned())
    inputs = rank_one.inputs[None]
    if not has_classes(observation):
        return Features(inputs, torch.tensor([-1]), rank_one.residual, rank_one.clean)
    gradients = head_gradients(observation, layer, cut, inputs)[0]  # (k, h)
    label = F.cosine_similarity(gradients, -parts[1][None], dim=1).argmax()
    return verify_features(observation, layer, cut, inputs, label[None])


def _undo_activation(cut: Cut, features: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor] | None:
    """Return an affine map of the images and its values, if the features are an invertible activation of it."""
    probe = torch.randn(2, *cut.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    with torch.no_grad():
        reached, output_by_layer = cut.front(probe), cut.outputs(probe)
    for name, outputs in output_by_layer.items():
        for activation, inverse in INVERSES:
            if outputs.numel() != reached.numel() or not torch.allclose(activation(outputs).view_as(reached), reached):
                continue

            def affine_map(inputs: Tensor, name: str = name) -> Tensor:
                return cut.outputs(inputs)[name].flatten(1)

            if is_affine(affine_map, cut.shape):
                return affine_map, inverse(features)
    return None


def _affordable_share(energy: Callable[[], Tensor], seconds: float) -> float:
    """Return the share of all steps that the time allows, at most 1: measured on the second of two evaluations."""
    for _ in range(2):
        began = time.process_time()
        energy().backward()  # type: ignore[no-untyped-call]  # torch
        taken = time.process_time() - began
    return min(1.0, seconds / max(1e-6, taken * sum(steps for _, steps, _ in STAGES)))


@register(
    "exact",
    "pooled_input",
    summary="the smoothest image that a network which pools, resizes or greys its input cannot tell from the true one",
)
@costs(1.5)
def pooled_input(observation: Observation, search: SearchBudget) -> ExactSolution | str:
    """Read the linear map of the pixels that the network sees, and fill in the smoothest image."""
    if not isinstance(first_dense(observation), str):
        return "the first dense layer sees the pixels themselves"
    layers = dense_fronts(observation)
    if isinstance(layers, str):
        return layers
    if not linear_front(observation):
        return "what comes before the first dense layer is not linear"
    features = read_features(observation, layers, search)
    if features is None:
        return FOUND_NOTHING
    # Bounds violate A x = z a little; if the message then stays unexplained, they are dropped.
    cut = cut_at(observation, layers[0].name)
    solved = best_version(observation, features, smoothest_images(observation.knows, cut.front, features.inputs))
    share = min(1.0, features.inputs.shape[1] / solved.images[0].numel())
    # Fewer numbers than pixels leave a choice: such an image explains the message, and need not be the true one.
    explains = solved.explains and share == 1
    return replace(solved, explains=explains, details={**solved.details, "share_seen": share})
