"""SPEAR's algebra: the inputs of a ReLU layer from the zeros that its inactive units leave in the update.

[U | v] = D [X | 1] has the rank b of its inputs. With its left singular vectors L (h, b) the gradients are D = L Q for
an unknown Q (b, b), and a column of D is zero wherever its example leaves a unit off: b - 1 rows of L that are zero in
the same column give that column of Q as their kernel [Dimitrov et al., 2024].
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedglass.attack.exact.method import Search
from fedglass.attack.exact.rows import Sent, Spectrum
from fedglass.attack.exact.verify import active_units, layer_explained

DRAWS = 4096
"""Sets of rows that are looked at together."""
FEW = 16
"""How many sets for each that is expected to have its zeros in one column, where that needs fewer than `DRAWS`."""
FEASIBLE = 24
"""Rows of a set beyond which no search ends: a column then is the kernel of one set in 2^24."""
LOOSE, TIGHT = 40.0, 8.0
"""Standard deviations of rounding below which an entry of L q counts as zero: before and after q is fitted to all of
its zero rows, since the kernel of b - 1 rows magnifies their rounding."""
GLANCE = 64
"""Rows that a kernel is first looked at in: a true column is zero in a quarter of them or more."""
APART = 1e-3
"""The share of a column that must lie outside of those with more zeros."""
SAME = 1e-5
"""1 - cosine up to which two inputs are one, in the coordinates of L."""
ORTHOGONAL = 1e-3
"""Cosine up to which an input is orthogonal to a column: what rounding leaves of zero, and no mixture of 1 % does."""
FLIPPED = 0.05
"""The share of an input's inactive units that may have been on between two of several steps."""


@dataclass(frozen=True, eq=False)
class Layer:
    """Weight (h, d) and bias (h,) of a ReLU layer, before and after training."""

    before: tuple[Tensor, Tensor]
    after: tuple[Tensor, Tensor] | None = None
    steps: int | None = None
    """Local steps; None where they are not known."""


@dataclass(frozen=True, eq=False)
class Sparse:
    """What the search found."""

    inputs: Tensor  # (m, d); all, or those that their inactive units prove
    guesses: Tensor  # (b, d) or (0, d); those of the sparsest columns, where they were found but explain nothing
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
    alive: Tensor  # (units,), which rows these are

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


Accept = Callable[[Tensor], bool]
"""Whether inputs, as many as there are examples, explain the message.  # (b, d)"""


def sparse_inputs(
    sent: Sent, found: Spectrum, layer: Layer, candidates: Tensor, search: Search, accept: Accept | None = None
) -> Sparse:
    """Return the inputs that explain a ReLU layer's update, searched until they do or until the time is over.

    Of the `candidates` those are kept that their inactive units prove, which shortens the search for the others.
    Inputs that do not explain the layer, since units change sign between several steps, may still be accepted.
    # candidates (n, d)
    """
    begin = time.monotonic()
    run = _Search(sent, _factors(sent, found), layer, accept)
    run.prove(candidates)
    rows = len(run.columns)
    whole = run.finished() or run.look(search.generator, begin + search.seconds)
    seconds = round(time.monotonic() - begin, 3)
    told = {"rank": found.rank, "from_rows": rows, "draws": run.draws, "seconds": seconds}
    return Sparse(run.inputs, run.guesses, whole, run.residual, told)


def proved_inputs(sent: Sent, found: Spectrum, layer: Layer, candidates: Tensor) -> Tensor:
    """Return the candidates that are inputs of the layer: the units that they leave off prove it.  # (n, d) -> (m, d)

    Rows of units that are off for an example hold the others alone, so that they have the rank b - 1. Those that a
    mixture leaves off have the rank b.
    """
    run = _Search(sent, _factors(sent, found), layer, None)
    run.prove(candidates)
    return run.inputs


def _factors(sent: Sent, found: Spectrum) -> _Factors:
    noise = sent.noise * found.share
    alive = sent.matrix.norm(dim=1) > TIGHT * noise * math.sqrt(sent.matrix.shape[1])
    # The rows that are left out are nothing but rounding, so that the others keep the singular vectors.
    return _Factors(found.left[alive], found.values[:, None] * found.right, noise[alive], found.values, alive)


@dataclass(eq=False)
class _Search:
    """Columns of Q that are proved, each with the input that proved it, and the search for the others."""

    sent: Sent
    factors: _Factors
    layer: Layer
    accept: Accept | None
    draws: int = 0
    residual: float = math.inf
    """Of the last columns that were as many as there are inputs."""

    def __post_init__(self) -> None:
        rank = len(self.factors.values)
        self.proofs = self.sent.matrix.new_zeros(0, self.sent.matrix.shape[1] - 1)  # (m, d)
        self.columns = self.proofs.new_zeros(0, rank)  # (m, b)
        self.basis = _Basis()
        self.complete: Tensor | None = None

    @property
    def inputs(self) -> Tensor:
        """All inputs, or else those that proved a column and go with the other columns.  # (m, d)"""
        return self.proofs[self._exact()] if self.complete is None else self.complete

    @property
    def guesses(self) -> Tensor:
        """The inputs that belong to the columns as they are; none where columns are missing.  # (b, d)"""
        full = self.complete is None and len(self.basis.columns) == len(self.factors.values)
        return self._completed() if full else self.proofs[:0]

    def look(self, generator: torch.Generator, end: float) -> bool:
        """Draw rows until the columns that their kernels give explain the layer, or until the time is over."""
        turn = 0
        while time.monotonic() < end:
            # Inputs that proved a column may be slightly off: every other draw does without them.
            known = self._known() if turn % 2 == 0 else self.columns[:0]
            turn += 1
            kernels = _draw(self.factors, known, generator)
            self.draws += len(kernels)
            if _note(self.factors, kernels, self.basis) and self.finished():
                return True
            if not len(kernels) and not len(known):
                return False
        return False

    def finished(self) -> bool:
        """Whether all columns are there, and explain the layer; columns that they prove are kept on the way."""
        while len(self.basis.columns) == len(self.factors.values):
            inputs = self._completed()
            if self._explained(inputs):
                return True
            if not self.prove(inputs):
                return False
        return False

    def prove(self, inputs: Tensor) -> bool:
        """Keep the columns that the units of these inputs prove; whether there are new ones."""
        inputs = inputs[inputs.isfinite().all(1)]
        columns, proved = _proofs(self.factors, self.layer, inputs)
        found = False
        for i in torch.nonzero(proved)[:, 0].tolist():
            if len(self.columns) and float((self.columns @ columns[i]).abs().max()) > 1 - SAME:
                continue
            self.proofs = torch.cat([self.proofs, inputs[i : i + 1]])
            self.columns = torch.cat([self.columns, columns[i : i + 1]])
            # More zeros than any other can have: a proved column goes first.
            found |= self.basis.offer(columns[i], len(self.factors.left) + 1)
        return found

    def _known(self) -> Tensor:
        """The coordinates of the inputs that go with all proved columns, at most b - 1.  # (m, b)"""
        return _coordinates(self.factors, self.proofs)[self._exact()][: len(self.factors.values) - 1]

    def _exact(self) -> Tensor:
        """Which inputs are orthogonal to all proved columns but their own, as true ones are.  # (m,)"""
        along = (_coordinates(self.factors, self.proofs) @ self.columns.T).abs()
        return (along - torch.diag(along.diag())).amax(1) <= ORTHOGONAL if len(along) else along.new_zeros(0).bool()

    def _completed(self) -> Tensor:
        """All inputs, if the columns are right: [X | 1] = Q^-1 R.  # (b, d)"""
        beside: Tensor = torch.linalg.solve(torch.stack(self.basis.columns, 1), self.factors.right)
        return beside[:, :-1] / beside[:, -1:]

    def _explained(self, inputs: Tensor) -> bool:
        layer = self.layer
        checked = layer_explained(self.sent.matrix, inputs, *layer.before, self.sent.error, layer.after)
        self.residual = checked.residual
        few = float(checked.wrong.max()) <= FLIPPED * len(self.sent.matrix)
        if checked.complete or (self.accept is not None and few and self.accept(inputs)):
            self.complete = inputs
            return True
        return False


def _coordinates(factors: _Factors, inputs: Tensor) -> Tensor:
    """Inputs in the coordinates in which rows of L are written, unit length.  # (m, d) -> (m, b)"""
    beside = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
    return normalize(beside @ factors.right.T / factors.values.square(), dim=1)


def _proofs(factors: _Factors, layer: Layer, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The column that is zero in the inactive units of each input, and whether it is so in them alone.

    # (n, d) -> (n, b), (n,)
    """
    rank = len(factors.values)
    on, off = (states[factors.alive] for states in active_units(inputs, layer.before, layer.after))  # (h, n)
    # In units of rounding, in which all coordinates are rounded alike.
    rows = factors.left * factors.values / factors.noise[:, None]
    squares = off.T.double() @ (rows[:, :, None] * rows[:, None]).flatten(1)
    kernels = torch.linalg.eigh(squares.view(-1, rank, rank)).eigenvectors[:, :, 0] * factors.values
    zero = factors.zeros(normalize(kernels, dim=1), LOOSE)
    near = ((zero & off).sum(0) >= (1 - 2 * FLIPPED) * off.sum(0)) & ((zero & on).sum(0) < 0.5 * on.sum(0))
    columns, proved = inputs.new_zeros(len(inputs), rank), torch.zeros(len(inputs), dtype=torch.bool)
    for i in torch.nonzero(near & (off.sum(0) > rank))[:, 0].tolist():
        columns[i], proved[i] = _proof(factors, rows, on[:, i], off[:, i], layer.steps == 1)
    return columns, proved


def _proof(factors: _Factors, rows: Tensor, on: Tensor, off: Tensor, strict: bool) -> tuple[Tensor, bool]:
    """The kernel of the rows of inactive units, and whether they have but one, which the active units do not share."""
    zero = off
    for _ in range(1 if strict else 3):  # units that were on for some of several steps are left out
        found = torch.linalg.svd(rows[zero], full_matrices=False)
        column = normalize(found.Vh[-1] * factors.values, dim=0)
        everywhere = factors.zeros(column[None], TIGHT)[:, 0]
        zero = off & everywhere
        if int(zero.sum()) <= len(column):
            return column, False
    chance = float(factors.by_chance(column[None], TIGHT)[0]) - (len(column) - 1)
    alone = len(column) == 1 or float(found.S[-2]) > LOOSE * math.sqrt(int(zero.sum()))
    missed = int(off.sum()) - int(zero.sum())
    shared = int((on & everywhere).sum())
    allowed = 0 if strict else FLIPPED * int(off.sum())
    return column, alone and missed <= allowed and shared <= chance and int(zero.sum()) > len(column) - 1 + chance - 3


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
