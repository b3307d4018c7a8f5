"""SPEAR's algebra: the inputs of a ReLU layer from the zeros that its inactive units leave in the update.

[U | v] = D [X | 1] has the rank b of its inputs. With its left singular vectors L (h, b) the gradients are D = L Q for
an unknown Q (b, b), and a column of D is zero wherever its example leaves a unit off: b - 1 rows of L that are zero in
the same column give that column of Q as their kernel [Dimitrov et al., 2024].
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedglass.attack.exact.method import Search
from fedglass.attack.exact.rows import Rows, Sent, Spectrum
from fedglass.attack.exact.verify import layer_explained

DRAWS = 4096
"""Sets of rows that are looked at together."""
FEW = 16
"""How many sets for each that is expected to have its zeros in one column, where that needs fewer than `DRAWS`."""
LOOSE, TIGHT = 40.0, 8.0
"""Standard deviations of rounding below which an entry of L q counts as zero: before and after q is fitted to all of
its zero rows, since the kernel of b - 1 rows magnifies their rounding."""
GLANCE = 64
"""Rows that a kernel is first looked at in: a true column is zero in a quarter of them or more."""
APART = 1e-3
"""The share of a column that must lie outside of those with more zeros."""
CONFIRMED = 3
"""Rows that must agree on an input for it to be taken for known in the second try."""


@dataclass(frozen=True, eq=False)
class Layer:
    """The weights of a ReLU layer, with the biases as a last column."""

    before: tuple[Tensor, Tensor]
    after: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True, eq=False)
class Sparse:
    """What the search found."""

    inputs: Tensor  # (m, d); only those that no unit contradicts, where it is not complete
    complete: bool
    """Whether they explain the whole layer."""
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

    def worth_a_look(self, columns: Tensor) -> Tensor:
        """Which columns have more zeros in some of the rows than those that they were made of.  # (n, b) -> (n,)"""
        every = max(1, len(self.left) // GLANCE)
        some = replace(self, left=self.left[::every], noise=self.noise[::every])
        made = columns.shape[1] * len(some.left) / len(self.left)
        return some.zeros(columns, LOOSE).sum(0) > made + 3 * math.sqrt(made)

    def rounding(self, columns: Tensor) -> Tensor:
        """The rounding of L q: coordinates of small singular values are rounded most.  # (n, b) -> (h, n)"""
        scale: Tensor = (columns / self.values).norm(dim=1)
        return self.noise[:, None] * scale

    def by_chance(self, columns: Tensor, times: float) -> Tensor:
        """More zeros than this are not met by chance in a search.  # (n, b) -> (n,)

        The density of a coordinate of a random direction in b dimensions is sqrt(b / 2 pi) at zero.
        """
        rank = len(self.values)
        relative = times * self.rounding(columns) / self.left.norm(dim=1)[:, None]
        mean: Tensor = (relative * math.sqrt(2 * rank / math.pi)).clamp(max=1.0).sum(0)
        return mean + 6 * mean.sqrt() + 3 + rank - 1


@dataclass(eq=False)
class _Basis:
    """The sparsest independent columns that the search has met.

    A sum of two true columns is sparse too, but it has fewer zeros than either: it goes as soon as both are there.
    """

    columns: list[Tensor] = field(default_factory=list)
    zeros: list[int] = field(default_factory=list)

    def offer(self, column: Tensor, zeros: int) -> bool:
        """Whether the column is taken: it must not depend on those that have as many zeros."""
        if not self.wants(column[None], torch.tensor([zeros]))[0]:
            return False
        everyone = sorted([*zip(self.zeros, self.columns, strict=True), (zeros, column)], key=lambda pair: -pair[0])
        self.columns, self.zeros = [], []
        for count, each in everyone:
            if self.wants(each[None], torch.tensor([count]))[0]:
                self.columns.append(each)
                self.zeros.append(count)
        return True

    def wants(self, columns: Tensor, zeros: Tensor) -> Tensor:
        """Which columns lie outside of the span of those that have at least as many zeros.  # (n, b), (n,) -> (n,)"""
        rest = columns
        for count, direction in zip(self.zeros, self._directions(), strict=True):
            rest = torch.where((zeros <= count)[:, None], rest - (rest @ direction)[:, None] * direction, rest)
        outside: Tensor = rest.norm(dim=1)
        return outside > APART

    def _directions(self) -> list[Tensor]:
        if not self.columns:
            return []
        return list(torch.linalg.qr(torch.stack(self.columns, 1)).Q.T)


def sparse_inputs(sent: Sent, found: Spectrum, layer: Layer, rows: Rows, search: Search) -> Sparse:
    """Return the inputs that explain a ReLU layer's update, searched until they do or until the time is over.

    Inputs that several rows agree on are taken for known at first, which shortens the search; where the rest does not
    fit to them, some were mixtures, and the search begins with fewer or without.
    """
    begin = time.monotonic()
    factors = _factors(sent, found)
    tries = _tries(_coordinates(factors, rows.inputs), rows.votes, found.rank)
    best: Sparse | None = None
    for number, known in enumerate(tries):
        end = begin + search.seconds * (number + 1) / len(tries)
        tried = _search(_Problem(sent, factors, layer, known), search.generator, end)
        if best is None or tried.complete or len(tried.inputs) > len(best.inputs):
            best = tried
        if best.complete:
            break
    assert best is not None, "there is always one try"
    told = {"rank": found.rank, "tries": number + 1, "seconds": round(time.monotonic() - begin, 3)}
    return Sparse(best.inputs, best.complete, best.residual, {**best.details, **told})


@dataclass(frozen=True, eq=False)
class _Problem:
    sent: Sent
    factors: _Factors
    layer: Layer
    known: Tensor  # (m, b), coordinates of inputs that are taken for known


def _tries(known: Tensor, votes: Tensor, rank: int) -> list[Tensor]:
    """Which inputs are taken for known, one try after another: all, those of several rows, none."""
    sets = [known, known[votes >= CONFIRMED], known[:0]]
    fit = [each for each in sets if len(each) <= rank]
    return [each for i, each in enumerate(fit) if i == 0 or len(each) < len(fit[i - 1])]


def _factors(sent: Sent, found: Spectrum) -> _Factors:
    noise = sent.noise * found.share
    alive = sent.matrix.norm(dim=1) > TIGHT * noise * math.sqrt(sent.matrix.shape[1])
    # The rows that are left out are nothing but rounding, so that the others keep the singular vectors.
    return _Factors(found.left[alive], found.values[:, None] * found.right, noise[alive], found.values)


def _coordinates(factors: _Factors, inputs: Tensor) -> Tensor:
    """Inputs in the coordinates in which rows of L are written, unit length.  # (m, d) -> (m, b)"""
    beside = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
    return normalize(beside @ factors.right.T / factors.values.square(), dim=1)


def _search(problem: _Problem, generator: torch.Generator, end: float) -> Sparse:
    """Draw rows until the columns that their kernels give explain the layer."""
    factors, basis, draws = problem.factors, _Basis(), 0
    rank, width = len(factors.values), problem.sent.matrix.shape[1] - 1
    best = Sparse(problem.sent.matrix.new_zeros(0, width), False, math.inf, {"draws": 0})
    while True:
        for others in _each_left_out(problem.known):
            kernels = _draw(factors, others, generator)
            draws += len(kernels)
            if _note(factors, kernels, basis) and len(basis.columns) == rank:
                tried = _explained(problem, torch.stack(basis.columns, 1), draws)
                if tried.complete:
                    return tried
                best = tried if len(tried.inputs) >= len(best.inputs) else best
            if time.monotonic() > end:
                return best
        if len(problem.known) == rank and len(basis.columns) == rank:
            return best  # nothing was drawn: there is nothing else to find


def _explained(problem: _Problem, columns: Tensor, draws: int) -> Sparse:
    """The inputs that belong to these columns, and whether they explain the layer."""
    inputs = _inputs(problem.factors, columns)
    layer = problem.layer
    checked = layer_explained(problem.sent.matrix, inputs, *layer.before, problem.sent.error, layer.after)
    told = {"draws": draws, "contradicted": int(checked.wrong.count_nonzero())}
    right = inputs if checked.complete else inputs[checked.wrong == 0]
    return Sparse(right, checked.complete, checked.residual, told)


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
    unit = normalize(factors.left, dim=1)
    places = _places(count, take, h, generator)
    last = torch.randn(count, 1, rank, generator=generator, dtype=unit.dtype)
    whole = torch.cat([known.expand(count, *known.shape), unit[places], last], 1)
    right = torch.zeros(count, rank, dtype=unit.dtype)
    right[:, -1] = 1.0
    kernels, info = torch.linalg.solve_ex(whole, right)
    kernels = kernels[(info == 0) & kernels.isfinite().all(1)]
    return normalize(kernels, dim=1)


def _places(count: int, take: int, h: int, generator: torch.Generator) -> Tensor:
    """Sets of different rows: an order of all rows is cut into as many as it gives.  # (count, take)"""
    if not take:
        return torch.zeros(count, 0, dtype=torch.int64)
    each = h // take
    orders = torch.rand(math.ceil(count / each), h, generator=generator).argsort(1)[:, : each * take]
    return orders.reshape(-1, take)[:count]


def _note(factors: _Factors, kernels: Tensor, basis: _Basis) -> bool:
    """Whether one of the kernels is a sparse column that was not known."""
    kernels = kernels[factors.worth_a_look(kernels)]
    counts = factors.zeros(kernels, LOOSE).sum(0)
    enough = counts > factors.by_chance(kernels, LOOSE)
    new = False
    while bool((enough := enough & basis.wants(kernels, counts)).any()):
        best = int(torch.where(enough, counts, -1).argmax())
        enough[best] = False
        column, zeros = _fitted(factors, kernels[best])
        if zeros > float(factors.by_chance(column[None], TIGHT)[0]):
            new |= basis.offer(column, zeros)
    return new


def _fitted(factors: _Factors, column: Tensor) -> tuple[Tensor, int]:
    """The column that fits all of its zero rows best, and how many it has."""
    for times in (LOOSE, LOOSE / 2, TIGHT, TIGHT):
        zero = factors.zeros(column[None], times)[:, 0]
        if int(zero.sum()) < len(column) - 1:
            break
        rows = factors.left[zero] / factors.noise[zero, None]
        column = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, 0]
    return column, int(factors.zeros(column[None], TIGHT).sum())


def _inputs(factors: _Factors, columns: Tensor) -> Tensor:
    """X of [X | 1] = Q^-1 R, the last column of which tells the scales.  # (b, b) -> (b, d)"""
    beside: Tensor = torch.linalg.solve(columns, factors.right)
    return beside[:, :-1] / beside[:, -1:]
