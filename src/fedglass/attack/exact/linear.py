"""Affine maps of images, given as functions, and the smoothest image that such a map takes to given values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedglass.attack.exact.cut import near
from fedglass.core.types import Knowledge

SMOOTH = 1e-3
"""Weight of the squared differences beside the misfit, in units of the map's largest gain; CIFAR images behind 2 x 2
pooling come back at 28.0 dB with it, and what it leaves of the misfit is corrected afterwards."""
SOLVE = 300
"""Most iterations of conjugate gradients; pooling needs 60."""
CORRECTIONS = 20
"""Most alternations between A x = z and the pixel bounds; 2 x 2 pooling needs 3 on CIFAR."""
HELPS = 0.7
"""They end where one leaves more than this share of the misfit."""
CLOSE = 1e-7
"""The misfit, relative to z, at which they end: single precision."""
ROUGHLY = 1e-3
"""How exactly each alternation solves A x = z: the next one corrects the rest."""
FLOOR = 1e-9
"""Ridge of the correction, in units of the map's largest gain: what the map loses beyond it is not amplified."""


class Affine:
    """An affine map of images, such as the front of a network that begins with pooling."""

    def __init__(self, forward: Callable[[Tensor], Tensor], like: Tensor) -> None:
        """Take the map, and an image whose size and type its arguments have.  # (n, c, h, w) -> (n, ...)"""
        self.forward = forward
        with torch.no_grad():
            self.offset = forward(torch.zeros_like(like[:1]))  # (1, ...)
        self._graph: tuple[Tensor, Tensor] | None = None
        """Of the last adjoint: the transpose of a linear map does not depend on where it is taken."""

    def apply(self, images: Tensor) -> Tensor:
        """Return the linear part.  # (n, c, h, w) -> (n, ...)"""
        with torch.no_grad():
            return self.forward(images) - self.offset

    def adjoint(self, values: Tensor, like: Tensor) -> Tensor:
        """Return the transpose of the linear part.  # (n, ...) -> (n, c, h, w)"""
        if self._graph is None or len(self._graph[0]) != len(like):
            with torch.enable_grad():
                at = torch.zeros_like(like, requires_grad=True)
                self._graph = (at, self.forward(at))
        at, out = self._graph
        return torch.autograd.grad(out, at, values, retain_graph=True)[0]

    def normal(self, images: Tensor) -> Tensor:
        """Return A'A of the images.  # (n, c, h, w)"""
        return self.adjoint(self.apply(images), images)

    def gain(self, like: Tensor) -> float:
        """Return the largest eigenvalue of A'A, by a few steps of the power method."""
        along = torch.randn(like[:1].shape, generator=torch.Generator().manual_seed(0), dtype=like.dtype)
        for _ in range(8):
            along = self.normal(along / along.norm())
        return float(along.norm())


def affine(forward: Callable[[Tensor], Tensor], shape: tuple[int, int, int]) -> bool:
    """Return whether a function of images in double precision is affine.  # (n, c, h, w) -> (n, ...)

    Probed with noise of several sizes: no activation is linear on all of them.
    """
    draws = torch.Generator().manual_seed(1)
    one, two = (size * torch.randn(2, *shape, generator=draws, dtype=torch.float64) for size in (1.0, 5.0))
    linear = Affine(forward, one)
    together, apart = linear.apply(2 * one - 3 * two), 2 * linear.apply(one) - 3 * linear.apply(two)
    return bool(apart.norm() > 0) and near(together, apart)


def solve_positive(
    operator: Callable[[Tensor], Tensor],
    right: Tensor,
    start: Tensor,
    iterations: int,
    tolerance: float = 1e-9,
    precondition: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return x with operator(x) = right by conjugate gradients, for a symmetric positive operator.

    Each row of the batch is a system of its own.  # (n, ...) all
    """

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).flatten(1).sum(1).view(-1, *[1] * (a.ndim - 1))

    found, left = start.clone(), right - operator(start)
    ready = precondition or (lambda t: t)
    eased = ready(left)
    along, size = eased, dot(left, eased)
    floor = tolerance**2 * dot(right, right).clamp(min=torch.finfo(right.dtype).tiny)
    for _ in range(iterations):
        if bool((dot(left, left) <= floor).all()):
            break
        image = operator(along)
        bend = dot(along, image)
        step = torch.where(bend > 0, size / bend, torch.zeros_like(bend))
        found = found + step * along
        left = left - step * image
        eased = ready(left)
        fresh = dot(left, eased)
        along = eased + torch.where(size > 0, fresh / size, torch.zeros_like(size)) * along
        size = fresh
    return found


def roughness(images: Tensor) -> Tensor:
    """Return half the gradient of the sum of squared differences of neighbours: minus the Laplacian.  # as given"""
    found = torch.zeros_like(images)
    across, down = images.diff(dim=-1), images.diff(dim=-2)
    found[..., :-1] -= across
    found[..., 1:] += across
    found[..., :-1, :] -= down
    found[..., 1:, :] += down
    return found


def smoothest(knows: Knowledge, seen: Callable[[Tensor], Tensor], values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smoothest images of which an affine map sees these values: within the pixel bounds, and anywhere.

    `seen` takes whitened images in double precision.  # (n, d) -> (n, c, h, w) twice, pixels before whitening
    """
    grey = torch.full((len(values), *knows.shape), (knows.low + knows.high) / 2, dtype=torch.float64)

    def forward(pixels: Tensor) -> Tensor:
        return seen(knows.whitening.whiten(pixels)).flatten(1)

    front = Affine(forward, grey)
    gain = front.gain(grey)
    right = front.adjoint(values - front.offset, grey)
    images = solve_positive(lambda x: front.normal(x) + SMOOTH * gain * roughness(x), right, grey, SOLVE, CLOSE)
    free = _corrected(front, values, images, FLOOR * gain, CLOSE)
    return _bounded(front, values, free, gain, (knows.low, knows.high)).float(), free.float()


def _bounded(front: Affine, values: Tensor, images: Tensor, gain: float, bounds: tuple[float, float]) -> Tensor:
    """Images within the bounds, and next to A x = z: projected onto both in turn, as long as that helps."""
    left = torch.inf
    for _ in range(CORRECTIONS):
        images = images.clamp(*bounds)
        before, left = left, float((front.apply(images) + front.offset - values).norm() / values.norm())
        if left <= CLOSE or left > HELPS * before:
            break
        images = _corrected(front, values, images, FLOOR * gain, ROUGHLY)
    return images.clamp(*bounds)


def _corrected(front: Affine, values: Tensor, images: Tensor, floor: float, tolerance: float) -> Tensor:
    """The nearest images with A x = z, or as near to z as A allows."""
    right = front.adjoint(values - front.offset - front.apply(images), images)
    start = torch.zeros_like(images)
    return images + solve_positive(lambda x: front.normal(x) + floor * x, right, start, SOLVE, tolerance)
