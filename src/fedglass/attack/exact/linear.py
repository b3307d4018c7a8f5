"""Affine maps of images, given as functions, and the smoothest image that such a map takes to some values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedglass.attack.exact.split_network import nearly_equal
from fedglass.core.types import Knowledge

SMOOTHNESS = 1e-3
"""Weight of the squared differences, relative to the misfit, in units of the map's largest gain; CIFAR images behind
2 x 2 pooling come back at 28.0 dB with it, and the remaining misfit is corrected afterwards."""
MOST_ITERATIONS = 300
"""Most iterations of conjugate gradients; pooling needs 60."""
CORRECTIONS = 20
"""Most alternations between A x = z and the pixel bounds; 2 x 2 pooling needs 3 on CIFAR."""
PROGRESS = 0.7
"""The alternations end when one leaves more than this share of the misfit."""
CONVERGED = 1e-7
"""The misfit, relative to z, at which the alternations end: single precision."""
CORRECTION_TOLERANCE = 1e-3
"""Tolerance of each alternation when it solves A x = z: the next one corrects the remainder."""
RIDGE = 1e-9
"""Ridge of the correction, in units of the map's largest gain: directions that the map nearly loses do not change."""


class Affine:
    """An affine map of images, such as the front of a network that begins with pooling."""

    def __init__(self, forward: Callable[[Tensor], Tensor], like: Tensor) -> None:
        """Take the map, and an image of the size and type of its arguments.  # (n, c, h, w) -> (n, ...)"""
        self.forward = forward
        with torch.no_grad():
            self.offset = forward(torch.zeros_like(like[:1]))  # (1, ...)
        self._graph: tuple[Tensor, Tensor] | None = None
        """The graph of the last adjoint, kept since the transpose of a linear map is the same everywhere."""

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


def is_affine(forward: Callable[[Tensor], Tensor], shape: tuple[int, int, int]) -> bool:
    """Return True if a function of images in double precision is affine.  # (n, c, h, w) -> (n, ...)

    The function is probed with noise of several sizes: no activation is linear on all of them.
    """
    draws = torch.Generator().manual_seed(1)
    one, two = (size * torch.randn(2, *shape, generator=draws, dtype=torch.float64) for size in (1.0, 5.0))
    linear = Affine(forward, one)
    together, apart = linear.apply(2 * one - 3 * two), 2 * linear.apply(one) - 3 * linear.apply(two)
    return bool(apart.norm() > 0) and nearly_equal(together, apart)


def conjugate_gradients(
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

    solution, residual = start.clone(), right - operator(start)
    preconditioner = precondition or (lambda t: t)
    preconditioned = preconditioner(residual)
    direction, squared_size = preconditioned, dot(residual, preconditioned)
    floor = tolerance**2 * dot(right, right).clamp(min=torch.finfo(right.dtype).tiny)
    for _ in range(iterations):
        if bool((dot(residual, residual) <= floor).all()):
            break
        mapped = operator(direction)
        curvature = dot(direction, mapped)
        step = torch.where(curvature > 0, squared_size / curvature, torch.zeros_like(curvature))
        solution = solution + step * direction
        residual = residual - step * mapped
        preconditioned = preconditioner(residual)
        next_size = dot(residual, preconditioned)
        direction = (
            preconditioned
            + torch.where(squared_size > 0, next_size / squared_size, torch.zeros_like(squared_size)) * direction
        )
        squared_size = next_size
    return solution


def negative_laplacian(images: Tensor) -> Tensor:
    """Return minus the Laplacian: half the gradient of the sum of squared differences of neighbours."""
    laplacian = torch.zeros_like(images)
    across, down = images.diff(dim=-1), images.diff(dim=-2)
    laplacian[..., :-1] -= across
    laplacian[..., 1:] += across
    laplacian[..., :-1, :] -= down
    laplacian[..., 1:, :] += down
    return laplacian


def smoothest_images(knows: Knowledge, affine_map: Callable[[Tensor], Tensor], values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smoothest images that an affine map takes to these values: within the pixel bounds, and without them.

    `affine_map` takes whitened images in double precision.  # (n, d) -> (n, c, h, w) twice, pixels before whitening
    """
    grey = torch.full((len(values), *knows.shape), (knows.low + knows.high) / 2, dtype=torch.float64)

    def forward(pixels: Tensor) -> Tensor:
        return affine_map(knows.whitening.whiten(pixels)).flatten(1)

    front = Affine(forward, grey)
    gain = front.gain(grey)
    right = front.adjoint(values - front.offset, grey)
    images = conjugate_gradients(
        lambda x: front.normal(x) + SMOOTHNESS * gain * negative_laplacian(x), right, grey, MOST_ITERATIONS, CONVERGED
    )
    free = _corrected(front, values, images, RIDGE * gain, CONVERGED)
    return _bounded(front, values, free, gain, (knows.low, knows.high)).float(), free.float()


def _bounded(front: Affine, values: Tensor, images: Tensor, gain: float, bounds: tuple[float, float]) -> Tensor:
    """Project the images onto the bounds and onto A x = z in turn, as long as that reduces the misfit."""
    misfit = torch.inf
    for _ in range(CORRECTIONS):
        images = images.clamp(*bounds)
        before, misfit = misfit, float((front.apply(images) + front.offset - values).norm() / values.norm())
        if misfit <= CONVERGED or misfit > PROGRESS * before:
            break
        images = _corrected(front, values, images, RIDGE * gain, CORRECTION_TOLERANCE)
    return images.clamp(*bounds)


def _corrected(front: Affine, values: Tensor, images: Tensor, floor: float, tolerance: float) -> Tensor:
    """Return the nearest images with A x = z, or as near to z as A allows."""
    right = front.adjoint(values - front.offset - front.apply(images), images)
    start = torch.zeros_like(images)
    return images + conjugate_gradients(lambda x: front.normal(x) + floor * x, right, start, MOST_ITERATIONS, tolerance)
