"""SPEAR's algebra: the inputs of a ReLU layer from the zeros that its inactive units leave in the update.

[U | v] = D [X | 1] has the rank b of its inputs. With its left singular vectors L (h, b) the gradients are D = L Q for
an unknown Q (b, b). A column q of Q gives a column L q of D, which is zero in every unit that is off for its example.
So b - 1 rows of L that are zero in the same column give that column of Q as their kernel [Dimitrov et al., 2024].
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedglass.attack.exact.method import Details, SearchBudget
from fedglass.attack.exact.rows import TruncatedSVD, UpdateMatrix, with_ones
from fedglass.attack.exact.verify import activation_pattern, fit_layer

DRAWS = 4096
"""Sets of rows that are drawn together."""
DRAWS_PER_HIT = 16
"""Sets that are drawn for each one expected to have its zeros in one column, if that is fewer than `DRAWS`."""
FEASIBLE = 24
"""Rows of a set beyond which no search ends: a column then is the kernel of one set in 2^24."""
LOOSE, TIGHT = 40.0, 8.0
"""Standard deviations of rounding below which an entry of L q counts as zero: before and after q is fitted to all of
its zero rows, since the kernel of b - 1 rows magnifies their rounding."""
PREVIEW_ROWS = 64
"""Rows of the first check of a kernel: a true column is zero in a quarter of them or more."""
OUTSIDE = 1e-3
"""The share of a column that must lie outside of the span of those with more zeros."""
SAME_INPUT = 1e-5
"""1 - cosine up to which two inputs are the same, in the coordinates of L."""
ORTHOGONAL = 1e-3
"""Cosine up to which an input is orthogonal to a column: rounding stays below it, a mixture of 1 % does not."""
FLIPPED = 0.05
"""The share of an input's inactive units that may have been on between two of several steps."""


@dataclass(frozen=True, eq=False)
class ReluLayer:
    """Weight (h, d) and bias (h,) of a ReLU layer, before and after training."""

    before: tuple[Tensor, Tensor]
    after: tuple[Tensor, Tensor] | None = None
    steps: int | None = None
    """Local steps; None if they are not known."""


@dataclass(frozen=True, eq=False)
class SparseInputs:
    """The inputs of a ReLU layer that a search for sparse columns found."""

    inputs: Tensor  # (m, d); all, or those that their inactive units prove
    guesses: Tensor  # (b, d) or (0, d); of the sparsest columns, some may be mixtures; set if nothing is explained
    complete: bool
    """True if the inputs explain the whole layer."""
    residual: float
    details: Details


@dataclass(frozen=True, eq=False)
class _Factors:
    """[U | v] = left_factor right_factor, without the rows of units that are off for every example."""

    left_factor: Tensor  # (h, b), orthonormal columns
    right_factor: Tensor  # (b, d + 1)
    noise: Tensor  # (h,), rounding of each row's entries
    values: Tensor  # (b,), singular values
    alive: Tensor  # (units,), True for these rows

    def zeros(self, columns: Tensor, times: float) -> Tensor:
        """Mark the entries of L q that are zero up to rounding.  # (n, b) -> (h, n)"""
        return (self.left_factor @ columns.T).abs() <= times * self.rounding(columns)

    def promising(self, columns: Tensor) -> Tensor:
        """Mark columns with more zeros in a sample of rows than the rows that made them explain.  # (n, b) -> (n,)"""
        every = max(1, len(self.left_factor) // PREVIEW_ROWS)
        preview = replace(self, left_factor=self.left_factor[::every], noise=self.noise[::every])
        expected = columns.shape[1] * len(preview.left_factor) / len(self.left_factor)
        return preview.zeros(columns, LOOSE).sum(0) > expected + 3 * math.sqrt(expected)

    def rounding(self, columns: Tensor) -> Tensor:
        """Return the rounding of L q: coordinates of small singular values are rounded most.  # (n, b) -> (h, n)"""
        scale: Tensor = (columns / self.values).norm(dim=1)
        return self.noise[:, None] * scale

    def by_chance(self, columns: Tensor, times: float) -> Tensor:
        """Return the largest number of zeros that a search meets by chance.  # (n, b) -> (n,)

        The density of a coordinate of a random direction in b dimensions is sqrt(b / 2 pi) at zero.
        """
        rank = len(self.values)
        relative = times * self.rounding(columns) / self.left_factor.norm(dim=1)[:, None]
        mean: Tensor = (relative * math.sqrt(2 * rank / math.pi)).clamp(max=1.0).sum(0)
        return mean + 6 * mean.sqrt() + 3 + rank - 1


@dataclass(eq=False)
class _Basis:
    """The sparsest independent columns that the search has met.

    A sum of two true columns is sparse too, but has fewer zeros than either: it is dropped when both are known.
    """

    columns: list[Tensor] = field(default_factory=list)
    zeros: list[int] = field(default_factory=list)

    def offer(self, column: Tensor, zeros: int) -> bool:
        """Add the column unless it depends on columns that have as many zeros; return True if it was added."""
        if not self.wants(column[None], torch.tensor([zeros]))[0]:
            return False
        candidates = sorted([*zip(self.zeros, self.columns, strict=True), (zeros, column)], key=lambda pair: -pair[0])
        self.columns, self.zeros = [], []
        for count, candidate in candidates:
            if self.wants(candidate[None], torch.tensor([count]))[0]:
                self.columns.append(candidate)
                self.zeros.append(count)
        return True

    def wants(self, columns: Tensor, zeros: Tensor) -> Tensor:
        """Mark columns outside of the span of those with at least as many zeros.  # (n, b), (n,) -> (n,)"""
        outside_span = columns
        for count, direction in zip(self.zeros, self._directions(), strict=True):
            outside_span = torch.where(
                (zeros <= count)[:, None], outside_span - (outside_span @ direction)[:, None] * direction, outside_span
            )
        outside: Tensor = outside_span.norm(dim=1)
        return outside > OUTSIDE

    def _directions(self) -> list[Tensor]:
        if not self.columns:
            return []
        return list(torch.linalg.qr(torch.stack(self.columns, 1)).Q.T)


Accept = Callable[[Tensor], bool]
"""A check that inputs, one for each example, explain the message.  # (b, d)"""


def sparse_inputs(
    sent: UpdateMatrix,
    factor: TruncatedSVD,
    layer: ReluLayer,
    candidates: Tensor,
    search: SearchBudget,
    accept: Accept | None = None,
) -> SparseInputs:
    """Search for inputs that explain a ReLU layer's update, until they do or until the time is over.

    Candidates that their inactive units prove shorten the search for the other inputs. Inputs that do not explain the
    layer, since units change sign between several steps, may still be accepted.  # candidates (n, d)
    """
    begin = time.monotonic()
    columns = _ColumnSearch(sent, _factors(sent, factor), layer, accept)
    columns.prove(candidates)
    proved_by_rows = len(columns.columns)
    complete = columns.finished() or columns.draw_columns(search.generator, begin + search.seconds)
    seconds = round(time.monotonic() - begin, 3)
    details: Details = {"rank": factor.rank, "from_rows": proved_by_rows, "draws": columns.draws, "seconds": seconds}
    return SparseInputs(columns.inputs, columns.guesses, complete, columns.residual, details)


def proved_inputs(sent: UpdateMatrix, factor: TruncatedSVD, layer: ReluLayer, candidates: Tensor) -> Tensor:
    """Return the candidates that are inputs of the layer, proved by their inactive units.  # (n, d) -> (m, d)

    Rows of units that are off for an example hold only the other examples, so they have the rank b - 1. The inactive
    units of a mixture have rows of rank b.
    """
    columns = _ColumnSearch(sent, _factors(sent, factor), layer, None)
    columns.prove(candidates)
    return columns.inputs


def _factors(sent: UpdateMatrix, factor: TruncatedSVD) -> _Factors:
    noise = sent.noise * factor.excess_noise
    alive = sent.matrix.norm(dim=1) > TIGHT * noise * math.sqrt(sent.matrix.shape[1])
    # The omitted rows are only rounding, so the others keep the singular vectors.
    return _Factors(
        factor.left_vectors[alive], factor.values[:, None] * factor.right_vectors, noise[alive], factor.values, alive
    )


@dataclass(eq=False)
class _ColumnSearch:
    """Columns of Q that are proved, each with the input that proved it, and the search for the others."""

    sent: UpdateMatrix
    factors: _Factors
    layer: ReluLayer
    accept: Accept | None
    draws: int = 0
    residual: float = math.inf
    """The residual of the last full set of columns."""

    def __post_init__(self) -> None:
        rank = len(self.factors.values)
        self.proofs = self.sent.matrix.new_zeros(0, self.sent.matrix.shape[1] - 1)  # (m, d)
        self.columns = self.proofs.new_zeros(0, rank)  # (m, b)
        self.basis = _Basis()
        self.complete: Tensor | None = None

    @property
    def inputs(self) -> Tensor:
        """All inputs, or else those that proved a column and are consistent with the other columns.  # (m, d)"""
        return self.proofs[self._exact()] if self.complete is None else self.complete

    @property
    def guesses(self) -> Tensor:
        """The inputs that belong to the present columns; none if columns are missing.  # (b, d)"""
        full = self.complete is None and len(self.basis.columns) == len(self.factors.values)
        return self._completed() if full else self.proofs[:0]

    def draw_columns(self, generator: torch.Generator, end: float) -> bool:
        """Draw rows until the columns that their kernels give explain the layer, or until the time is over."""
        turn = 0
        while time.monotonic() < end:
            # Inputs that proved a column may be slightly off: every other draw does without them.
            proved = self._consistent() if turn % 2 == 0 else self.columns[:0]
            turn += 1
            kernels = _random_kernels(self.factors, proved, generator)
            self.draws += len(kernels)
            if _collect_sparse_columns(self.factors, kernels, self.basis) and self.finished():
                return True
            if not len(kernels) and not len(proved):
                return False
        return False

    def finished(self) -> bool:
        """Return True if all columns are known and explain the layer; add the columns that they prove."""
        while len(self.basis.columns) == len(self.factors.values):
            inputs = self._completed()
            if self._explained(inputs):
                return True
            if not self.prove(inputs):
                return False
        return False

    def prove(self, inputs: Tensor) -> bool:
        """Add the columns that the units of these inputs prove; return True if there are new ones."""
        inputs = inputs[inputs.isfinite().all(1)]
        columns, proved = _prove_columns(self.factors, self.layer, inputs)
        any_new = False
        for i in torch.nonzero(proved)[:, 0].tolist():
            if len(self.columns) and float((self.columns @ columns[i]).abs().max()) > 1 - SAME_INPUT:
                continue
            self.proofs = torch.cat([self.proofs, inputs[i : i + 1]])
            self.columns = torch.cat([self.columns, columns[i : i + 1]])
            # More zeros than any other column can have: a proved column comes first.
            any_new |= self.basis.offer(columns[i], len(self.factors.left_factor) + 1)
        return any_new

    def _consistent(self) -> Tensor:
        """Return the coordinates of the inputs that are consistent with all proved columns, at most b - 1.  # (m, b)"""
        return _coordinates(self.factors, self.proofs)[self._exact()][: len(self.factors.values) - 1]

    def _exact(self) -> Tensor:
        """Mark the inputs that are orthogonal to all proved columns but their own, as true ones are.  # (m,)"""
        along = (_coordinates(self.factors, self.proofs) @ self.columns.T).abs()
        return (along - torch.diag(along.diag())).amax(1) <= ORTHOGONAL if len(along) else along.new_zeros(0).bool()

    def _completed(self) -> Tensor:
        """Return all inputs, if the columns are right: [X | 1] = Q^-1 R.  # (b, d)"""
        augmented: Tensor = torch.linalg.solve(torch.stack(self.basis.columns, 1), self.factors.right_factor)
        return augmented[:, :-1] / augmented[:, -1:]

    def _explained(self, inputs: Tensor) -> bool:
        layer = self.layer
        checked = fit_layer(self.sent.matrix, inputs, *layer.before, self.sent.error, layer.after)
        self.residual = checked.residual
        few = float(checked.wrong.max()) <= FLIPPED * len(self.sent.matrix)
        if checked.complete or (self.accept is not None and few and self.accept(inputs)):
            self.complete = inputs
            return True
        return False


def _coordinates(factors: _Factors, inputs: Tensor) -> Tensor:
    """Return the inputs in the coordinates of the rows of L, with unit length.  # (m, d) -> (m, b)"""
    return normalize(with_ones(inputs) @ factors.right_factor.T / factors.values.square(), dim=1)


def _prove_columns(factors: _Factors, layer: ReluLayer, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the column that is zero in the inactive units of each input, and True if it is zero only there.

    # (n, d) -> (n, b), (n,)
    """
    rank = len(factors.values)
    on, off = (states[factors.alive] for states in activation_pattern(inputs, layer.before, layer.after))  # (h, n)
    # In units of rounding, so that all coordinates are rounded alike.
    rows = factors.left_factor * factors.values / factors.noise[:, None]
    squares = off.T.double() @ (rows[:, :, None] * rows[:, None]).flatten(1)
    kernels = torch.linalg.eigh(squares.view(-1, rank, rank)).eigenvectors[:, :, 0] * factors.values
    zero = factors.zeros(normalize(kernels, dim=1), LOOSE)
    near = ((zero & off).sum(0) >= (1 - 2 * FLIPPED) * off.sum(0)) & ((zero & on).sum(0) < 0.5 * on.sum(0))
    columns, proved = inputs.new_zeros(len(inputs), rank), torch.zeros(len(inputs), dtype=torch.bool)
    for i in torch.nonzero(near & (off.sum(0) > rank))[:, 0].tolist():
        columns[i], proved[i] = _prove_column(factors, rows, on[:, i], off[:, i], layer.steps == 1)
    return columns, proved


def _prove_column(factors: _Factors, rows: Tensor, on: Tensor, off: Tensor, strict: bool) -> tuple[Tensor, bool]:
    """Return the kernel of the rows of inactive units, and True if it is unique and active units do not share it."""
    zero = off
    for _ in range(1 if strict else 3):  # units that were on for some of several steps are left out
        svd = torch.linalg.svd(rows[zero], full_matrices=False)
        column = normalize(svd.Vh[-1] * factors.values, dim=0)
        everywhere = factors.zeros(column[None], TIGHT)[:, 0]
        zero = off & everywhere
        if int(zero.sum()) <= len(column):
            return column, False
    chance = float(factors.by_chance(column[None], TIGHT)[0]) - (len(column) - 1)
    alone = len(column) == 1 or float(svd.S[-2]) > LOOSE * math.sqrt(int(zero.sum()))
    missed = int(off.sum()) - int(zero.sum())
    shared = int((on & everywhere).sum())
    allowed = 0 if strict else FLIPPED * int(off.sum())
    return column, alone and missed <= allowed and shared <= chance and int(zero.sum()) > len(column) - 1 + chance - 3


def _random_kernels(factors: _Factors, proved: Tensor, generator: torch.Generator) -> Tensor:
    """Return vectors that are orthogonal to random rows of L and to the proved inputs.  # (n, b)"""
    h, rank = factors.left_factor.shape
    take = rank - 1 - len(proved)
    if not 0 <= take < h:
        return factors.left_factor.new_zeros(0, rank)
    count = min(DRAWS, DRAWS_PER_HIT << take) if take else 1
    unit = normalize(factors.left_factor, dim=1)
    places = _row_sets(count, take, h, generator)
    last = torch.randn(count, 1, rank, generator=generator, dtype=unit.dtype)
    systems = torch.cat([proved.expand(count, *proved.shape), unit[places], last], 1)
    right = torch.zeros(count, rank, dtype=unit.dtype)
    right[:, -1] = 1.0
    kernels, info = torch.linalg.solve_ex(systems, right)
    kernels = kernels[(info == 0) & kernels.isfinite().all(1)]
    return normalize(kernels, dim=1)


def _row_sets(count: int, take: int, h: int, generator: torch.Generator) -> Tensor:
    """Draw sets of different rows: each random order of all rows is cut into sets.  # (count, take)"""
    if not take:
        return torch.zeros(count, 0, dtype=torch.int64)
    sets_per_order = h // take
    orders = torch.rand(math.ceil(count / sets_per_order), h, generator=generator).argsort(1)[
        :, : sets_per_order * take
    ]
    return orders.reshape(-1, take)[:count]


def _collect_sparse_columns(factors: _Factors, kernels: Tensor, basis: _Basis) -> bool:
    """Add the kernels that are sparse columns to the basis; return True if there are new ones."""
    kernels = kernels[factors.promising(kernels)]
    counts = factors.zeros(kernels, LOOSE).sum(0)
    enough = counts > factors.by_chance(kernels, LOOSE)
    new = False
    while bool((enough := enough & basis.wants(kernels, counts)).any()):
        best = int(torch.where(enough, counts, -1).argmax())
        enough[best] = False
        column, zeros = _refit(factors, kernels[best])
        if zeros > float(factors.by_chance(column[None], TIGHT)[0]):
            new |= basis.offer(column, zeros)
    return new


def _refit(factors: _Factors, column: Tensor) -> tuple[Tensor, int]:
    """Return the column that fits all of its zero rows best, and the number of these rows."""
    for times in (LOOSE, LOOSE / 2, TIGHT, TIGHT):
        zero = factors.zeros(column[None], times)[:, 0]
        if int(zero.sum()) < len(column) - 1:
            break
        rows = factors.left_factor[zero] / factors.noise[zero, None]
        column = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, 0]
    return column, int(factors.zeros(column[None], TIGHT).sum())
