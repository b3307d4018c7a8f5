"""SPEAR's algebra: the inputs of a ReLU layer from the zeros that its inactive units leave in the update.

[U | v] = D [X | 1] has the rank b of its inputs. With its left singular vectors L (h, b) the gradients are D = L Q for
an unknown Q (b, b). A column q of Q gives a column L q of D, which is zero in every unit that is off for its example.
So b - 1 rows of L that are zero in the same column give that column of Q as their kernel [Dimitrov et al., 2024].
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedglass.attack.exact.dense import DenseUpdate
from fedglass.attack.exact.exact import Details, SearchBudget
from fedglass.attack.exact.update_matrix import truncated_svd, with_ones
from fedglass.attack.exact.verify import activation_pattern, fit_layer
from fedglass.core.types import Knowledge

DRAWS = 4096
"""Sets of rows that are drawn together."""
DRAWS_PER_HIT = 16
"""Sets that are drawn for each one expected to have its zeros in one column, if that is fewer than `DRAWS`."""
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


@dataclass(eq=False)
class InputSearch:
    """Columns of Q that are proved, each with the input that proved it, and the search for the others."""

    layer: DenseUpdate
    knows: Knowledge
    accept: Callable[[Tensor], bool] | None = None
    """A check that inputs, one for each example, explain the message.  # (b, d)"""
    residual: float = math.inf
    """The residual of the last full set of columns."""

    def __post_init__(self) -> None:
        sent = self.layer.sent
        left, self.values, right, excess_noise = truncated_svd(sent, self.knows.examples)  # values (b,)
        noise = sent.noise * excess_noise
        # Rows of units that are off for every example are only rounding: the others keep the singular vectors.
        self.alive = sent.matrix.norm(dim=1) > TIGHT * noise * math.sqrt(sent.matrix.shape[1])  # (units,)
        self.left, self.noise = left[self.alive], noise[self.alive]  # L, (h, b), and (h,)
        self.right = self.values[:, None] * right  # R, (b, d + 1)
        self.one_step = self.knows.local_steps == 1  # so that no unit changed sign between steps
        self.proofs = sent.matrix.new_zeros(0, sent.matrix.shape[1] - 1)  # (m, d)
        self.columns = self.proofs.new_zeros(0, self.rank)  # (m, b)
        self.basis: list[tuple[int, Tensor]] = []  # the sparsest independent columns, each with its number of zeros
        self.complete: Tensor | None = None

    def run(self, candidates: Tensor, search: SearchBudget) -> Details:
        """Search for inputs that explain the layer's update, until they do or until the time is over.

        Candidates that their inactive units prove shorten the search for the other inputs. Inputs that do not explain
        the layer, since units change sign between several steps, may still be accepted.  # candidates (n, d)
        """
        begin = time.monotonic()
        self.prove(candidates)
        proved_by_rows = len(self.columns)
        draws = 0 if self._finished() else self._draw_columns(search.generator, begin + search.seconds)
        seconds = round(time.monotonic() - begin, 3)
        return {"rank": self.rank, "from_rows": proved_by_rows, "draws": draws, "seconds": seconds}

    @property
    def rank(self) -> int:
        """The number of singular values that stand out: at most the number of examples."""
        return len(self.values)

    @property
    def inputs(self) -> Tensor:
        """All inputs, or else those that proved a column and are consistent with the other columns.  # (m, d)"""
        return self.proofs[self._exact()] if self.complete is None else self.complete

    @property
    def guesses(self) -> Tensor:
        """The inputs of the sparsest columns if nothing is explained, some may be mixtures; or none.  # (b, d)"""
        full = self.complete is None and len(self.basis) == self.rank
        return self._completed() if full else self.proofs[:0]

    def prove(self, inputs: Tensor) -> bool:
        """Add the columns that the inactive units of these inputs prove; return True if there are new ones.

        Rows of units that are off for an example hold only the other examples, so they have the rank b - 1. The
        inactive units of a mixture have rows of rank b.  # (n, d)
        """
        inputs = inputs[inputs.isfinite().all(1)]
        any_new = False
        for i, column in self._proved_columns(inputs):
            if len(self.columns) and float((self.columns @ column).abs().max()) > 1 - SAME_INPUT:
                continue
            self.proofs = torch.cat([self.proofs, inputs[i : i + 1]])
            self.columns = torch.cat([self.columns, column[None]])
            # More zeros than any other column can have: a proved column comes first.
            any_new |= self._offer(column, len(self.left) + 1)
        return any_new

    def _proved_columns(self, inputs: Tensor) -> list[tuple[int, Tensor]]:
        """Return the places of inputs with a column that is zero in their inactive units alone, and these columns."""
        rank = self.rank
        on, off = (states[self.alive] for states in activation_pattern(self.layer, inputs))  # (h, n)
        # In units of rounding, so that all coordinates are rounded alike.
        rows = self.left * self.values / self.noise[:, None]
        squares = off.T.double() @ (rows[:, :, None] * rows[:, None]).flatten(1)
        kernels = torch.linalg.eigh(squares.view(-1, rank, rank)).eigenvectors[:, :, 0] * self.values
        zero = self._zeros(normalize(kernels, dim=1), LOOSE)
        near = ((zero & off).sum(0) >= (1 - 2 * FLIPPED) * off.sum(0)) & ((zero & on).sum(0) < 0.5 * on.sum(0))
        places = torch.nonzero(near & (off.sum(0) > rank))[:, 0].tolist()
        columns = [(i, self._proved_column(rows, on[:, i], off[:, i])) for i in places]
        return [(i, column) for i, column in columns if column is not None]

    def _proved_column(self, rows: Tensor, on: Tensor, off: Tensor) -> Tensor | None:
        """Return the kernel of the rows of inactive units, if it is unique and active units do not share it."""
        zero = off
        for _ in range(1 if self.one_step else 3):  # units that were on for some of several steps are left out
            svd = torch.linalg.svd(rows[zero], full_matrices=False)
            column = normalize(svd.Vh[-1] * self.values, dim=0)
            everywhere = self._zeros(column[None], TIGHT)[:, 0]
            zero = off & everywhere
            if int(zero.sum()) <= len(column):
                return None
        chance = float(self._by_chance(column[None], TIGHT)[0]) - (len(column) - 1)
        alone = len(column) == 1 or float(svd.S[-2]) > LOOSE * math.sqrt(int(zero.sum()))
        missed = int(off.sum()) - int(zero.sum())
        shared = int((on & everywhere).sum())
        allowed = 0 if self.one_step else FLIPPED * int(off.sum())
        enough = int(zero.sum()) > len(column) - 1 + chance - 3
        return column if alone and missed <= allowed and shared <= chance and enough else None

    def _draw_columns(self, generator: torch.Generator, end: float) -> int:
        """Draw rows until the columns that their kernels give explain the layer; return the number of draws."""
        draws = turn = 0
        while time.monotonic() < end:
            # Inputs that proved a column may be slightly off: every other draw does without them.
            proved = self._consistent() if turn % 2 == 0 else self.columns[:0]
            turn += 1
            kernels = self._random_kernels(proved, generator)
            draws += len(kernels)
            if (self._collect_sparse_columns(kernels) and self._finished()) or not len(kernels) + len(proved):
                break
        return draws

    def _finished(self) -> bool:
        """Return True if all columns are known and explain the layer; add the columns that they prove."""
        while len(self.basis) == self.rank:
            inputs = self._completed()
            if self._explained(inputs):
                return True
            if not self.prove(inputs):
                return False
        return False

    def _explained(self, inputs: Tensor) -> bool:
        self.residual, wrong, complete = fit_layer(self.layer, inputs)
        few = float(wrong.max()) <= FLIPPED * len(self.alive)
        if complete or (self.accept is not None and few and self.accept(inputs)):
            self.complete = inputs
            return True
        return False

    def _completed(self) -> Tensor:
        """Return all inputs, if the columns are right: [X | 1] = Q^-1 R.  # (b, d)"""
        augmented: Tensor = torch.linalg.solve(torch.stack([column for _, column in self.basis], 1), self.right)
        return augmented[:, :-1] / augmented[:, -1:]

    def _consistent(self) -> Tensor:
        """Return the coordinates of the inputs that are consistent with all proved columns, at most b - 1.  # (m, b)"""
        return self._coordinates()[self._exact()][: self.rank - 1]

    def _exact(self) -> Tensor:
        """Mark the inputs that are orthogonal to all proved columns but their own, as true ones are.  # (m,)"""
        along = (self._coordinates() @ self.columns.T).abs()
        return (along - torch.diag(along.diag())).amax(1) <= ORTHOGONAL if len(along) else along.new_zeros(0).bool()

    def _coordinates(self) -> Tensor:
        """Return the inputs that proved a column in the coordinates of the rows of L, with unit length.  # (m, b)"""
        return normalize(with_ones(self.proofs) @ self.right.T / self.values.square(), dim=1)

    def _random_kernels(self, proved: Tensor, generator: torch.Generator) -> Tensor:
        """Return vectors that are orthogonal to random rows of L and to the proved inputs.  # (n, b)"""
        h, rank = self.left.shape
        take = rank - 1 - len(proved)
        if not 0 <= take < h:
            return self.left.new_zeros(0, rank)
        count = min(DRAWS, DRAWS_PER_HIT << take) if take else 1
        unit = normalize(self.left, dim=1)
        places = _row_sets(count, take, h, generator)
        last = torch.randn(count, 1, rank, generator=generator, dtype=unit.dtype)
        systems = torch.cat([proved.expand(count, *proved.shape), unit[places], last], 1)
        right = torch.zeros(count, rank, dtype=unit.dtype)
        right[:, -1] = 1.0
        kernels, info = torch.linalg.solve_ex(systems, right)
        kernels = kernels[(info == 0) & kernels.isfinite().all(1)]
        return normalize(kernels, dim=1)

    def _collect_sparse_columns(self, kernels: Tensor) -> bool:
        """Add the kernels that are sparse columns to the basis; return True if there are new ones."""
        kernels = kernels[self._promising(kernels)]
        counts = self._zeros(kernels, LOOSE).sum(0)
        enough = counts > self._by_chance(kernels, LOOSE)
        new = False
        while bool((enough := enough & self._wants(kernels, counts)).any()):
            best = int(torch.where(enough, counts, -1).argmax())
            enough[best] = False
            column, zeros = self._refit(kernels[best])
            if zeros > float(self._by_chance(column[None], TIGHT)[0]):
                new |= self._offer(column, zeros)
        return new

    def _refit(self, column: Tensor) -> tuple[Tensor, int]:
        """Return the column that fits all of its zero rows best, and the number of these rows."""
        for times in (LOOSE, LOOSE / 2, TIGHT, TIGHT):
            zero = self._zeros(column[None], times)[:, 0]
            if int(zero.sum()) < len(column) - 1:
                break
            rows = self.left[zero] / self.noise[zero, None]
            column = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, 0]
        return column, int(self._zeros(column[None], TIGHT).sum())

    def _offer(self, column: Tensor, zeros: int) -> bool:
        """Add the column to the basis unless it depends on columns with as many zeros; return True if it was added.

        A sum of two true columns is sparse too, but has fewer zeros than either: it is dropped when both are known.
        """
        if not self._wants(column[None], torch.tensor([zeros]))[0]:
            return False
        candidates = sorted([*self.basis, (zeros, column)], key=lambda pair: -pair[0])
        self.basis = []
        for count, candidate in candidates:
            if self._wants(candidate[None], torch.tensor([count]))[0]:
                self.basis.append((count, candidate))
        return True

    def _wants(self, columns: Tensor, zeros: Tensor) -> Tensor:
        """Mark columns outside of the span of those with at least as many zeros.  # (n, b), (n,) -> (n,)"""
        outside = columns
        known = [column for _, column in self.basis]
        directions = torch.linalg.qr(torch.stack(known, 1)).Q.T if known else []
        for (count, _), direction in zip(self.basis, directions, strict=True):
            shortened = outside - (outside @ direction)[:, None] * direction
            outside = torch.where((zeros <= count)[:, None], shortened, outside)
        size: Tensor = outside.norm(dim=1)
        return size > OUTSIDE

    def _promising(self, columns: Tensor) -> Tensor:
        """Mark columns with more zeros in a sample of rows than the rows that made them explain.  # (n, b) -> (n,)"""
        every = max(1, len(self.left) // PREVIEW_ROWS)
        zeros = self._zeros(columns, LOOSE, every)
        expected = columns.shape[1] * len(zeros) / len(self.left)
        return zeros.sum(0) > expected + 3 * math.sqrt(expected)

    def _zeros(self, columns: Tensor, times: float, every: int = 1) -> Tensor:
        """Mark the entries of L q that are zero up to rounding, of every so many rows of L.  # (n, b) -> (h, n)"""
        return (self.left[::every] @ columns.T).abs() <= times * self._rounding(columns)[::every]

    def _rounding(self, columns: Tensor) -> Tensor:
        """Return the rounding of L q: coordinates of small singular values are rounded most.  # (n, b) -> (h, n)"""
        scale: Tensor = (columns / self.values).norm(dim=1)
        return self.noise[:, None] * scale

    def _by_chance(self, columns: Tensor, times: float) -> Tensor:
        """Return the largest number of zeros that a search meets by chance.  # (n, b) -> (n,)

        The density of a coordinate of a random direction in b dimensions is sqrt(b / 2 pi) at zero.
        """
        rank = self.rank
        relative = times * self._rounding(columns) / self.left.norm(dim=1)[:, None]
        mean: Tensor = (relative * math.sqrt(2 * rank / math.pi)).clamp(max=1.0).sum(0)
        return mean + 6 * mean.sqrt() + 3 + rank - 1


def _row_sets(count: int, take: int, h: int, generator: torch.Generator) -> Tensor:
    """Draw sets of different rows: each random order of all rows is cut into sets.  # (count, take)"""
    if not take:
        return torch.zeros(count, 0, dtype=torch.int64)
    per_order = h // take
    orders = torch.rand(math.ceil(count / per_order), h, generator=generator).argsort(1)[:, : per_order * take]
    return orders.reshape(-1, take)[:count]
