"""SPEAR's algebra: the inputs of a ReLU layer from the zeros that its inactive units leave in the update.

[U | v] = D [X | 1] has the rank b of its inputs. With its left singular vectors L (h, b) the gradients are D = L Q for
an unknown Q (b, b), and a column of D is zero wherever its example leaves a unit off: b - 1 rows of L that are zero in
the same column give that column of Q as their kernel [Dimitrov et al., 2024].
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedglass.attack.exact.method import Search
from fedglass.attack.exact.rows import Rows, Sent, measured
from fedglass.attack.exact.verify import layer_explained

DRAWS = 4096
"""Sets of rows that are looked at together."""
FEW = 16
"""How many sets for each that is expected to have its zeros in one column, where that needs fewer than `DRAWS`."""
LOOSE, TIGHT = 40.0, 8.0
"""Standard deviations of rounding below which an entry of L q counts as zero: before and after q is fitted to all of
its zero rows, since the kernel of b - 1 rows magnifies their rounding."""
SAME = 1e-5
"""1 - |cosine| below which two columns are one: refitted columns agree to 1e-9 in single precision."""
APART = 1e-3
"""The share of a column that must lie outside of those chosen before it."""


@dataclass(frozen=True, eq=False)
class Sparse:
    """What the search found."""

    inputs: Tensor  # (m, d)
    complete: bool
    residual: float
    details: Mapping[str, float | int | str]


@dataclass(frozen=True, eq=False)
class _Factors:
    """[U | v] = left right, rows of units that are off for everybody left out."""

    left: Tensor  # (h, b), orthonormal columns
    right: Tensor  # (b, d + 1)
    noise: Tensor  # (h,), rounding of each row's entries
    values: Tensor  # (b,), singular values

    def zeros(self, columns: Tensor, times: float) -> Tensor:
        """Which entries of L q are zero but for rounding.  # (n, b) -> (h, n)"""
        return (self.left @ columns.T).abs() <= times * self.rounding(columns)

    def rounding(self, columns: Tensor) -> Tensor:
        """The rounding of L q: coordinates of small singular values are rounded most.  # (n, b) -> (h, n)"""
        scale: Tensor = (columns / self.values).norm(dim=1)
        return self.noise[:, None] * scale


@dataclass(eq=False)
class _Found:
    """Sparse columns that the search has met."""

    columns: list[Tensor] = field(default_factory=list)
    zeros: list[int] = field(default_factory=list)

    def add(self, column: Tensor, zeros: int) -> bool:
        """Whether it is a new one."""
        if self.columns:
            known = torch.stack(self.columns)
            if float((known @ column).abs().max()) > 1 - SAME:
                return False
        self.columns.append(column)
        self.zeros.append(zeros)
        return True

    def independent(self, rank: int) -> Tensor | None:
        """The sparsest columns that are independent: a sum of two true ones has fewer zeros than either.  # (b, b)"""
        chosen: list[Tensor] = []
        basis: list[Tensor] = []
        for i in sorted(range(len(self.columns)), key=lambda i: -self.zeros[i]):
            rest = self.columns[i].clone()
            for direction in basis:
                rest = rest - (rest @ direction) * direction
            if float(rest.norm()) > APART:
                chosen.append(self.columns[i])
                basis.append(rest / rest.norm())
            if len(chosen) == rank:
                return torch.stack(chosen, 1)
        return None


def sparse_inputs(
    sent: Sent,
    layer: tuple[Tensor, Tensor],
    rank: int,
    rows: Rows,
    search: Search,
    after: tuple[Tensor, Tensor] | None = None,
) -> Sparse:
    """Return the inputs that explain a ReLU layer's update, searched until they do or until the time is over.

    Inputs that several rows agree on are taken for known at first, which shortens the search; where the rest does not
    fit to them, they were mixtures, and the search begins without them.  # layer: weight (h, d) and bias (h,) before
    """
    begin = time.monotonic()
    sent = measured(sent, rank)
    factors = _factors(sent, rank)
    best = Sparse(sent.matrix.new_zeros(0, sent.matrix.shape[1] - 1), False, math.inf, {})
    known = _coordinates(factors, rows.inputs)
    tries = [known] if len(known) == 0 else [known, known[:0]] if len(known) <= rank else [known[:0]]
    for number, given in enumerate(tries):
        share = (number + 1) / len(tries)
        tried = _search(sent, factors, layer, given, search, begin + share * search.seconds, after)
        if tried.complete:
            return _told(tried, begin, rank, len(given))
        best = min(best, tried, key=lambda each: each.residual)
    return _told(best, begin, rank, 0)


def _told(found: Sparse, begin: float, rank: int, known: int) -> Sparse:
    more = {"rank": rank, "known": known, "seconds": round(time.monotonic() - begin, 3)}
    return Sparse(found.inputs, found.complete, found.residual, {**found.details, **more})


def _factors(sent: Sent, rank: int) -> _Factors:
    noise = sent.noise
    alive = sent.matrix.norm(dim=1) > LOOSE / 4 * noise * math.sqrt(sent.matrix.shape[1])
    left, values, right = torch.linalg.svd(sent.matrix[alive], full_matrices=False)
    return _Factors(left[:, :rank], values[:rank, None] * right[:rank], noise[alive], values[:rank])


def _coordinates(factors: _Factors, inputs: Tensor) -> Tensor:
    """Inputs in the coordinates in which rows of L are written, unit length.  # (m, d) -> (m, b)"""
    if not len(inputs):
        return inputs.new_zeros(0, len(factors.values))
    beside = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
    found = beside @ factors.right.T / factors.values.square()
    return normalize(found, dim=1)


def _search(
    sent: Sent,
    factors: _Factors,
    layer: tuple[Tensor, Tensor],
    known: Tensor,
    search: Search,
    end: float,
    after: tuple[Tensor, Tensor] | None,
) -> Sparse:
    """Draw rows until the columns that their kernels give explain the layer."""
    rank, found, draws = len(factors.values), _Found(), 0
    best = Sparse(sent.matrix.new_zeros(0, sent.matrix.shape[1] - 1), False, math.inf, {"draws": 0})
    while True:
        fresh = torch.cat([_draw(factors, others, search.generator) for others in _each_left_out(known)])
        draws += len(fresh)
        if len(fresh) and _note(factors, fresh, found):
            columns = found.independent(rank)
            if columns is not None:
                inputs = _inputs(factors, columns)
                checked = layer_explained(sent.matrix, inputs, *layer, sent.error, after)
                best = Sparse(inputs, checked.complete, checked.residual, {"draws": draws, "wrong": checked.wrong})
                if checked.complete:
                    return Sparse(inputs, True, checked.residual, best.details)
        if time.monotonic() > end:
            return best


def _each_left_out(known: Tensor) -> list[Tensor]:
    """The known inputs, and all but one of them in turn: a column is orthogonal to all inputs but its own."""
    everyone = torch.arange(len(known))
    return [known, *(known[everyone != i] for i in range(len(known)))]


def _draw(factors: _Factors, known: Tensor, generator: torch.Generator) -> Tensor:
    """Kernels of random rows of L, next to the known inputs: orthogonal to both.  # (n, b)"""
    h, rank = factors.left.shape
    take = rank - 1 - len(known)
    if not 0 <= take < h:
        return factors.left.new_zeros(0, rank)
    count = min(DRAWS, FEW << take) if take else 1
    unit = factors.left / factors.left.norm(dim=1, keepdim=True)
    places = torch.rand(count, h, generator=generator).topk(take, dim=1).indices
    last = torch.randn(count, 1, rank, generator=generator, dtype=unit.dtype)
    whole = torch.cat([known.expand(count, *known.shape), unit[places], last], 1)
    right = torch.zeros(count, rank, dtype=unit.dtype)
    right[:, -1] = 1.0
    kernels, info = torch.linalg.solve_ex(whole, right)
    kernels = kernels[(info == 0) & kernels.isfinite().all(1)]
    return normalize(kernels, dim=1)


def _note(factors: _Factors, kernels: Tensor, found: _Found) -> bool:
    """Whether one of the kernels is a sparse column that was not known."""
    counts = factors.zeros(kernels, LOOSE).sum(0)
    rank = len(factors.values)
    candidates = kernels[counts > _by_chance(factors, kernels, LOOSE) + rank - 1]
    new = False
    for column in candidates:
        fitted, zeros = _fitted(factors, column)
        if zeros > float(_by_chance(factors, fitted[None], TIGHT)[0]) + rank - 1:
            new |= found.add(fitted, zeros)
    return new


def _by_chance(factors: _Factors, kernels: Tensor, times: float) -> Tensor:
    """More zeros than this are not met by chance in a search.  # (n,)

    The density of a coordinate of a random direction in b dimensions is sqrt(b / 2 pi) at zero.
    """
    rank = len(factors.values)
    relative = times * factors.rounding(kernels) / factors.left.norm(dim=1)[:, None]
    mean: Tensor = (relative * math.sqrt(2 * rank / math.pi)).clamp(max=1.0).sum(0)
    return mean + 6 * mean.sqrt() + 3


def _fitted(factors: _Factors, column: Tensor) -> tuple[Tensor, int]:
    """The column that fits all of its zero rows best, and how many it has."""
    times = LOOSE
    for times in (LOOSE, LOOSE / 2, TIGHT, TIGHT):
        zero = factors.zeros(column[None], times)[:, 0]
        if int(zero.sum()) < len(column) - 1:
            break
        rows = factors.left[zero] / factors.noise[zero, None].clamp(min=torch.finfo(torch.float64).tiny)
        column = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, 0]
    return column, int(factors.zeros(column[None], TIGHT).sum())


def _inputs(factors: _Factors, columns: Tensor) -> Tensor:
    """X of [X | 1] = Q^-1 R, the last column of which tells the scales.  # (b, b) -> (b, d)"""
    beside: Tensor = torch.linalg.solve(columns, factors.right)
    return beside[:, :-1] / beside[:, -1:]
