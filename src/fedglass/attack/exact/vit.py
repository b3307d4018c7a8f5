"""One image of a vision transformer in closed form, by the gradient of its position embedding.

For one image the gradient P of the position embedding is that of the tokens. The patch embedding's gradient is then
P'X, linear in the patches X, for any blocks that follow and any number of steps. If the first attention takes the
tokens themselves (no normalisation, no shortcut: type A of APRIL), the gradients of its projections add up to
sum W'dW = P'Z with the tokens Z = X E' + position: more equations, and better ones.
P has singular values over seven orders of magnitude, so rounding hides some combinations of patches: all equations are
weighed by their own noise, and combinations that they do not determine are filled in smoothly.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedglass.attack.exact.dense import does_not_run, not_a_gradient, undecayed_update
from fedglass.attack.exact.exact import FOUND_NOTHING, Details, ExactSolution, SearchBudget, costs
from fedglass.attack.exact.split_network import (
    Affine,
    Cut,
    conjugate_gradients,
    cut_at,
    nearly_equal,
    negative_laplacian,
)
from fedglass.attack.exact.verify import message_of
from fedglass.core.registry import register
from fedglass.core.types import Observation

SAME_GRADIENT = 1e-8
"""Relative difference of gradients, in double precision, up to which they are the same."""
NEIGHBOUR_PRECISION = 10.0
"""Precision of the difference of neighbouring whitened pixels: a standard deviation of 0.3, that of CIFAR images."""
PIXEL_PRECISION = 0.01
"""Precision of a whitened pixel itself: none to speak of."""
MOST_PRECISION = 1e10
"""The most that an equation weighs: a standard deviation of 1e-5 is below what a pixel shows."""
TOLERANCE = 1e-9
"""Relative residual at which the solution ends: equations differ in weight by ten orders of magnitude."""
MOST_ITERATIONS = 400
"""Most iterations of conjugate gradients; 100 to 200 are needed."""
PAPER = (
    "Lu, Zhang, Zhao, He, Cheng: APRIL: Finding the Achilles' Heel on Privacy for Vision Transformers, CVPR 2022, "
    "https://arxiv.org/abs/2112.14087"
)


@dataclass(frozen=True, eq=False)
class _TokenLayout:
    """The way in which a network makes tokens of an image, found by probing it."""

    cut: Cut
    """The network cut at the patch embedding."""
    position: str
    first: int
    """The place of the first patch among the positions."""
    patches: int
    attention: tuple[str, ...]
    """Dense layers that take the tokens themselves, if nothing else does."""
    fixed: Tensor  # (t, d), the tokens of an image with zero patches


PatchEquations = tuple[Tensor, Tensor, Tensor, Tensor]
"""Rotations V (p, p), Q (k, k), weights w and right-hand sides r (p, k) of quadratic terms w x^2 - 2 r x in V X Q."""


@register(
    "exact",
    "vit_closed_form",
    summary="one image of a vision transformer from the gradients of its position and patch embeddings",
    paper=PAPER,
)
@costs(2.0)
def vit_closed_form(observation: Observation, search: SearchBudget) -> ExactSolution | str:
    """Solve for the patches of one image."""
    tokens = _token_layout(observation)
    if isinstance(tokens, str):
        return tokens
    equations = _equations(observation, tokens)
    if equations is None:
        return FOUND_NOTHING
    knows, message = observation.knows, message_of(observation)
    free = knows.whitening.unwhiten(_smooth_solution(tokens, *equations)).float()
    images = free.clamp(knows.low, knows.high)
    (residual, labels), unbounded = message.replay(images), message.replay(free)
    # Bounds bring the image nearer to the true one, but increase the residual of the message a little.
    if message.verified(unbounded[0]) and not message.verified(residual):
        images, (residual, labels) = free, unbounded
    details: Details = {
        "patches": tokens.patches,
        "attention": int(bool(tokens.attention)),
        "share_determined": float((equations[2] > NEIGHBOUR_PRECISION).double().mean()),
    }
    return ExactSolution(images, labels, residual, message.verified(residual), details)


def _token_layout(observation: Observation) -> _TokenLayout | str:
    """Return the way in which the network makes tokens, or why its image cannot be solved for."""
    if observation.knows.examples != 1:
        return "positions of several images add up to one gradient"
    refusal = not_a_gradient(observation)
    if refusal:
        return refusal
    model, update = observation.model, observation.update
    layers = [name for name, m in model.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    matrices = [name for name, p in model.named_parameters() if p.ndim >= 2 and name in update]
    # Positions are a trained matrix outside of dense and convolutional layers.
    candidates = [name for name in matrices if name.rpartition(".")[0] not in layers]
    if not layers or not candidates:
        return "the network has no learnable position embedding"
    try:
        return _find_positions(observation, layers, candidates)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        return does_not_run(error)


def _find_positions(observation: Observation, layers: list[str], candidates: list[str]) -> _TokenLayout | str:
    """Find the positions by their gradient, which is that of the patches' embeddings."""
    inputs, outer, gradients = _probe(observation, layers)
    cut = cut_at(observation, next(iter(inputs)))
    for name in candidates:
        gradient = gradients[name].flatten(0, -2)  # (t, d)
        place = _first_row_of(gradient, outer)
        if place is not None:
            attention, fixed = _attention(cut, inputs, gradients, gradient, slice(place, place + len(outer)))
            return _TokenLayout(cut, name, place, len(outer), attention, fixed)
    return "no parameter has the gradient of the patches' embeddings, as learnable positions have"


def _probe(observation: Observation, names: list[str]) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
    """Run noise: return the inputs of the layers, and gradients of a loss: of the embedded patches, and of all weights.

    The first of the layers embeds the patches; its gradient is of the shape (p, d).
    """
    cut = cut_at(observation, names[0])
    trained = {n: t.clone().requires_grad_() for n, t in cut.state.items() if n in observation.update}
    inputs: dict[str, Tensor] = {}
    outputs: list[Tensor] = []

    def noting(name: str) -> Callable[..., Tensor]:
        def note(layer: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
            inputs[name] = arguments[0].detach()
            outputs.append(output if outputs or output.requires_grad else output.requires_grad_())
            return outputs[-1]

        return note

    image = torch.randn(1, *cut.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    with ExitStack() as hooks:
        for name in names:
            hooks.enter_context(cut.model.get_submodule(name).register_forward_hook(noting(name)))
        logits = functional_call(cut.model, {**cut.state, **trained}, (image,))
    # Any loss serves; the cross entropy of a single output has no gradient.
    single = logits.shape[1:] == (1,)
    loss = logits.square().sum() if single else F.cross_entropy(logits, torch.zeros(1, dtype=torch.int64))
    derivatives = torch.autograd.grad(loss, [outputs[0], *trained.values()], materialize_grads=True)
    embedded = derivatives[0][0]  # of a dense layer (p, d), or of a convolution
    outer = embedded if embedded.ndim == 2 else embedded.flatten(1).T
    return inputs, outer, dict(zip(trained, derivatives[1:], strict=True))


def _first_row_of(gradient: Tensor, outer: Tensor) -> int | None:
    """Return the row at which one gradient begins in another; None if it is not part of it.  # (t, d), (p, d)"""
    if gradient.shape[1:] != outer.shape[1:] or not bool(outer.any()):
        return None
    starts = range(len(gradient) - len(outer) + 1)
    return next((i for i in starts if nearly_equal(outer, gradient[i : i + len(outer)], SAME_GRADIENT)), None)


def _attention(
    cut: Cut, inputs: dict[str, Tensor], gradients: dict[str, Tensor], gradient: Tensor, rows: slice
) -> tuple[tuple[str, ...], Tensor]:
    """Return the layers that take the tokens if nothing else does, and the tokens without their patches; or none."""
    for fed in inputs.values():
        if fed.ndim != 3 or fed.shape[1:] != gradient.shape:
            continue
        names = tuple(n for n, other in inputs.items() if other.shape == fed.shape and torch.equal(other, fed))
        weights = [f"{n}.weight" for n in names]
        trained = all(name in gradients for name in weights)
        terms = [cut.state[name].T @ gradients[name] for name in weights] if trained else []
        if not terms or not nearly_equal(gradient.T @ fed[0], torch.stack(terms).sum(0), SAME_GRADIENT):
            break
        fixed = fed[0].clone()
        fixed[rows] -= _patches(cut, inputs[cut.layer])[0] @ _kernel(cut).T
        return names, fixed
    return (), gradient[:0]


def _kernel(cut: Cut) -> Tensor:
    """Return the patch embedding as a matrix.  # (d, k)"""
    return cut.state[f"{cut.layer}.weight"].flatten(1)


def _patches(cut: Cut, fed: Tensor) -> Tensor:
    """Return the patches that the patch embedding multiplies by its matrix.  # (n, ...) -> (n, p, k)"""
    layer = cut.model.get_submodule(cut.layer)
    if not isinstance(layer, nn.Conv2d):
        return fed
    assert not isinstance(layer.padding, str), "a patch embedding has no padding by name"
    return F.unfold(fed, layer.kernel_size, layer.dilation, layer.padding, layer.stride).transpose(1, 2)


def _equations(observation: Observation, tokens: _TokenLayout) -> PatchEquations | None:
    """Return all equations for the patches, each weighed by the noise that it shows."""

    def moved(name: str) -> Tensor:
        return undecayed_update(observation, name)

    kernel, positions = _kernel(tokens.cut), moved(tokens.position).flatten(0, -2)  # E (d, k), (t, d)
    rows = slice(tokens.first, tokens.first + tokens.patches)
    right_vectors, sizes, left_vectors = torch.linalg.svd(positions[rows].T)  # (d, d), (rank,), (p, p)
    # True if tokens tell all numbers of their patches.
    rank, tokens_determine_patches = len(sizes), kernel.shape[0] >= kernel.shape[1]
    identity = torch.eye(kernel.shape[1], dtype=torch.float64)
    spread, right = torch.linalg.eigh(kernel.T @ kernel) if tokens_determine_patches else (identity[0], identity)
    weights, values = torch.zeros(2, tokens.patches, kernel.shape[1], dtype=torch.float64)
    name = f"{tokens.cut.layer}.weight"
    if name in observation.update:
        rotated = right_vectors.T @ moved(name).flatten(1)  # (d, k)
        precision = _precision(rotated, rank)
        weights[:rank] += precision * sizes.square()[:, None]
        values[:rank] += precision * sizes[:, None] * (rotated[:rank] @ right)
    if tokens.attention and tokens_determine_patches and observation.knows.local_steps in (None, 1):
        parts = [tokens.cut.state[f"{n}.weight"].T @ moved(f"{n}.weight") for n in tokens.attention]
        rotated = right_vectors.T @ (torch.stack(parts).sum(0) - positions.T @ tokens.fixed)  # P'X E', (d, d)
        precision = _precision(rotated, rank)
        weights[:rank] += precision * sizes.square()[:, None] * spread
        values[:rank] += precision * sizes[:, None] * (rotated[:rank] @ kernel @ right)
    share = MOST_PRECISION / weights.clamp(min=MOST_PRECISION)
    return (left_vectors, right, weights * share, values * share) if bool(weights.any()) else None


def _precision(rotated: Tensor, rank: int) -> float:
    """Return 1 / variance of the noise in equations, measured on the rows after the first `rank`, which are only noise.

    If there are no such rows, single precision of the largest entry is assumed.
    """
    rounding = (torch.finfo(torch.float32).eps * float(rotated.abs().max())) ** 2 / 12
    noise_rows = rotated[rank:]
    return 1 / max(float(noise_rows.square().mean()), 1e-6 * rounding) if len(noise_rows) else 1 / rounding


def _smooth_solution(tokens: _TokenLayout, left: Tensor, right: Tensor, weights: Tensor, values: Tensor) -> Tensor:
    """Return the most likely image under a smoothness prior, from equations.  # (1, c, h, w), whitened"""
    start = torch.zeros(1, *tokens.cut.shape, dtype=torch.float64)
    front = Affine(lambda images: _patches(tokens.cut, tokens.cut.front(images)), start)
    inverse_weights = 1 / (weights + 8 * NEIGHBOUR_PRECISION)  # 8: the largest eigenvalue of the Laplacian

    def pull(rotated: Tensor) -> Tensor:
        """Return the transpose of the front of the patches that V X Q gives."""
        return front.adjoint((left.T @ rotated @ right.T)[None], start)

    def rotate(images: Tensor) -> Tensor:
        """Return V X Q of the image's patches."""
        return left @ front.apply(images)[0] @ right

    def operator(images: Tensor) -> Tensor:
        smoothness = NEIGHBOUR_PRECISION * negative_laplacian(images)
        return pull(weights * rotate(images)) + smoothness + PIXEL_PRECISION * images

    def precondition(images: Tensor) -> Tensor:
        return pull(inverse_weights * rotate(images)) + images / MOST_PRECISION

    return conjugate_gradients(operator, pull(values), start, MOST_ITERATIONS, TOLERANCE, precondition)
