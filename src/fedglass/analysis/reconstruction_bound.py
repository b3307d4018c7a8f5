"""The terms of a bound on what a peer's reconstruction is wrong by [Yue et al., 2025, Theorem 1 and Appendix A].

Federated SGD (one local step), M clients with batches of B examples, learning rate eta = 1 / L_g, gradients of single
examples clipped to C, noise of deviation sigma C / B in each of the d coordinates. For the round k, counted from 0,
the paper has in Eq. 41

    sqrt(d_in) RMSE_k <= min{ e_0 + rho_0 Delta_(k+1) + rho_1 sigma, 2 upsilon },
    rho_0 = 2 L_psi sqrt(2 k / eta),    rho_1 = 2 sqrt(2 d) L_psi C k / (sqrt(M) B),
    Delta_(k+1) = sqrt(f(w_0) - f(w_(k+1))),    e_0 = max_i |x_i - psi_i(g_0)|.

It takes what an attack finds for a function psi_i of the step g alone with the Lipschitz constant L_psi, although an
attack is told the weights too, and all images and reconstructions for equally long (upsilon). No constant is known of
an attack that searches. `steepness` is what its own reconstructions show: a LOWER estimate, so that the true right-hand
side is at least what is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.errors import UsageError


@dataclass(frozen=True)
class Federated:
    """What the bound takes from the federation."""

    lr: float
    clients: int
    batch: int
    """Examples of each client in a step."""
    parameters: int
    clip: float = 0.0
    noise: float = 0.0
    """The noise multiplier sigma; without noise the clipping does not enter."""

    def __post_init__(self) -> None:
        if self.lr <= 0 or min(self.clients, self.batch, self.parameters) < 1 or self.clip < 0 or self.noise < 0:
            raise UsageError(
                "The bound needs a learning rate above 0, at least one client, example and parameter, and clip and "
                f"noise of at least 0, got {self}."
            )


@dataclass(frozen=True)
class Terms:
    """The right-hand side in one round, all of it as distances between whole images (not divided by sqrt(d_in))."""

    base: float
    """e_0."""
    gap: float | None
    """rho_0 Delta; None where the training has raised the objective, so that Delta is the root of a negative number."""
    noise: float
    """rho_1 sigma."""
    cap: float
    """2 upsilon."""

    @property
    def total(self) -> float | None:
        """The first of the two that the minimum is taken of; None where the gap is not defined."""
        return None if self.gap is None else self.base + self.gap + self.noise

    @property
    def capped(self) -> bool:
        """Whether the bound says no more than that images have a length."""
        return self.total is None or self.total >= self.cap

    def error(self, pixels: int) -> float:
        """The bound on the RMSE of images of so many values; the cap where there is nothing else.

        >>> Terms(base=1.0, gap=2.0, noise=0.0, cap=10.0).error(pixels=9)
        1.0
        >>> Terms(base=1.0, gap=None, noise=0.0, cap=6.0).error(pixels=9)
        2.0
        """
        return (self.cap if self.total is None else min(self.total, self.cap)) / math.sqrt(pixels)


def objective_gap(first: float, later: float) -> float | None:
    """Delta = sqrt(f(w_0) - f(w_(k+1))); None where the objective has risen.

    >>> objective_gap(2.25, 2.0), objective_gap(2.0, 2.25)
    (0.5, None)
    """
    return math.sqrt(first - later) if later <= first else None


def terms(of: Federated, index: int, steep: float, gap: float | None, base: float, longest: float) -> Terms:
    """The terms in the round `index`, counted from 0. In the first one nothing but the base error is left, of whatever
    gap: the proof takes no step from there.

    >>> first = terms(Federated(0.5, 4, 2, 8), 0, steep=1.0, gap=0.3, base=1.0, longest=5.0)
    >>> first.gap, first.noise, first.total
    (0.0, 0.0, 1.0)
    >>> later = terms(Federated(0.5, 4, 2, 8, clip=4.0, noise=3.0), 1, steep=1.0, gap=0.5, base=1.0, longest=5.0)
    >>> later.gap, later.noise, later.capped
    (2.0, 24.0, True)
    """
    slope = 2 * steep * math.sqrt(2 * index / of.lr)
    noise = 2 * math.sqrt(2 * of.parameters) * steep * of.clip * index / (math.sqrt(of.clients) * of.batch) * of.noise
    of_gap = 0.0 if index == 0 else None if gap is None else slope * gap
    return Terms(base, of_gap, noise, 2 * longest)


def steepness(found: Sequence[Tensor], gradients: Sequence[Tensor]) -> float:
    """The largest |psi_i(g_0) - psi_i(g_k)| / |g_0 - g_k| over images i and rounds k: at most L_psi, if there is one.

    `found` are each round's reconstructions in the order of the same originals, `gradients` its step as one vector.
    A change of the reconstruction without one of the step is infinitely steep.

    >>> steepness([torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])], [torch.zeros(1), torch.tensor([2.0])])
    2.5
    """
    if len(found) != len(gradients) or len(found) < 2:
        raise UsageError(f"A slope needs two rounds or more, got {len(found)} and {len(gradients)}.")
    return max(
        _slope(found[0], other, float((gradients[0] - g).norm())) for other, g in zip(found, gradients, strict=True)
    )


def _slope(first: Tensor, other: Tensor, way: float) -> float:
    moved = float((first - other).flatten(1).norm(dim=1).max())
    return 0.0 if moved == 0 else math.inf if way == 0 else moved / way


def lengths(images: Tensor) -> Tensor:
    """The norm of each image.  # (n, c, h, w) -> (n,)"""
    found: Tensor = torch.linalg.vector_norm(images.flatten(1), dim=1)
    return found


def smoothness(weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> float:
    """The largest |g_0 - g_k| / |w_0 - w_k| over rounds: at most L_g, where the steps are free of noise.

    >>> smoothness([torch.zeros(1), torch.tensor([2.0])], [torch.ones(1), torch.zeros(1)])
    0.5
    """
    ways = [
        (float((weights[0] - w).norm()), float((gradients[0] - g).norm()))
        for w, g in zip(weights, gradients, strict=True)
    ]
    return max((turned / way for way, turned in ways if way > 0), default=0.0)


def root_mean_square(found: Tensor, truth: Tensor) -> float:
    """The RMSE over all pixels of all images together [Eq. 34].

    >>> round(root_mean_square(torch.zeros(2, 4), torch.tensor([[0.0, 0, 0, 0], [1, 1, 1, 1]])) ** 2, 12)
    0.5
    """
    return float(torch.sqrt((found - truth).double().square().mean()))
