"""The update of a dense layer as a matrix [U | v]: its rounding, its rank, and the inputs that its rows give.

With inputs X and the loss gradients D at the layer's outputs, [U | v] = D [X | 1]. One example makes a matrix of rank
one; a row that only one example has moved gives that example's input as the ratio U_i / v_i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedglass.core.rng import stream

AGREE_WITHIN = 6.0
"""Two rows agree within this many standard deviations of rounding: rounding is bounded, so more than 6 never occurs."""
MAX_RATIO_ERROR = 0.02
"""Relative error of a ratio above which its row is left out: it would agree with any other."""
CLEAN_WITHIN = 2.0
"""The residual of an explained update is at most this many times the expected rounding, as a norm over the layer."""
MOST_LEVELS = 1024
"""The most levels of a quantiser that can be detected, 10 bits: single precision does not resolve much finer ones."""
ON_GRID = 0.01
"""How far from a whole number of steps a value may lie, in steps: single precision keeps well below."""
STANDS_OUT = 3.0
"""How many times the largest singular value of pure rounding one must have to count."""
OVERSAMPLING = 8
"""Singular values that are computed beyond the requested ones, as Halko et al. (2011) advise."""
SUBSPACE_ITERATIONS = 4
"""Iterations on the subspace: singular values that stand out by a factor of 3 are then separated by 3^8."""
SAME_INPUT = 1e-3
"""Relative distance below which two groups of rows give the same input."""
PRUNED_RATIO = 4.0
"""Pruning is assumed if there are this many times as many zeros as entries next to zero, which rounding makes."""
FIT_ITERATIONS = 100
"""Alternations of the rank-one fit to entries that were not pruned; a good fit converges long before."""
CONVERGED = 1e-13
"""The change of a unit vector at which the alternations end."""


@dataclass(frozen=True, eq=False)
class UpdateMatrix:
    """[U | v] of a layer, and the standard deviation of the rounding of each entry."""

    matrix: Tensor  # (h, d + 1), double
    error: Tensor  # (h, d + 1)
    observed: Tensor  # (h, d + 1), False where an entry was pruned and carries no information
    biased: bool = True
    """True if the last column is the bias; otherwise the matrix is U."""

    @property
    def noise(self) -> Tensor:
        """The root mean square rounding of each row's entries.  # (h,)"""
        return self.error.square().mean(1).sqrt()

    def unpruned(self) -> UpdateMatrix:
        """Return the same update of a single example, of which zeros may be missing entries."""
        parts = [slice(-1), slice(-1, None)] if self.biased else [slice(None)]
        masks = [unpruned_entries(self.matrix[:, columns], self.error[:, columns]) for columns in parts]
        return replace(self, observed=torch.cat(masks, 1))

    def without_bias(self) -> UpdateMatrix:
        """Return U alone."""
        columns = self.matrix.shape[1] - self.biased
        matrix, error, observed = (t[:, :columns].contiguous() for t in (self.matrix, self.error, self.observed))
        return UpdateMatrix(matrix, error, observed, biased=False)

    def part(self, rows: Tensor, columns: Tensor | slice) -> UpdateMatrix:
        """Return some rows and some columns, the bias among them."""
        matrix, error, observed = (t[rows][:, columns] for t in (self.matrix, self.error, self.observed))
        return UpdateMatrix(matrix, error, observed)


@dataclass(frozen=True, eq=False)
class RowRatios:
    """The ratios U_i / v_i, and the inputs on which at least two rows agree."""

    ratios: Tensor  # (r, d), of the rows that are precise enough
    errors: Tensor  # (r,), root mean square over the entries
    rows: Tensor  # (r,), the positions of these rows
    inputs: Tensor  # (m, d), one for each group of rows that agree, the largest group first
    votes: Tensor  # (m,), how many rows agree
    residual: float
    """Share of the update's norm that lies in rows of no group."""


@dataclass(frozen=True, eq=False)
class RankOneFit:
    """The rank-one matrix nearest to [U | v]: the input of a layer that one example went through."""

    inputs: Tensor  # (d,); a direction of length 1 if it is not scaled
    scaled: bool
    """True if a bias determines the length of the input."""
    factors: Tensor  # (h,), each row is this multiple of the input
    votes: int
    """The number of rows that agree with the input at rounding level."""
    clean: bool
    """True if the whole matrix agrees with it at rounding level."""
    residual: float


def entry_error(update: Tensor, before: Tensor, steps: int = 1) -> Tensor:
    """Return the standard deviation of the rounding of each entry of an update.

    Weights after training are rounded to their own type at each step, and the difference inherits this rounding. The
    message may also be in a coarser type, or on the grid of a quantiser.

    >>> fine, coarse = torch.tensor([1.1, 3.3]), torch.tensor([1.0, 3.0])  # the second fits into bfloat16
    >>> bool(entry_error(fine, torch.zeros(2)).max() < 1e-6), bool(entry_error(coarse, torch.zeros(2)).max() > 1e-3)
    (True, True)
    """
    sent, start = update.cpu().double(), before.cpu().double()
    size = sent.square().mean(-1, keepdim=True).sqrt() if sent.ndim > 1 else sent.abs()
    weights = torch.maximum(start.abs(), (start + sent).abs())
    rounded = _eps(before) * weights * math.sqrt(steps)
    coarse, least = _coarseness(update)
    step = grid_step(sent)
    error: Tensor = (
        rounded.square() + (_eps(before) * size).square() + (coarse * sent).square() + least**2 + step**2
    ).sqrt() / math.sqrt(12)
    return error


def grid_step(values: Tensor) -> float:
    """Return the step of the uniform grid that all values lie on; 0 if there is none.

    >>> grid_step(torch.tensor([0.0, 0.5, -1.0, 2.5, 3.0, 0.5, 1.0, 1.5])), grid_step(torch.rand(100))
    (0.5, 0.0)
    """
    some = values[values != 0][: 2 * MOST_LEVELS].double()
    levels = some if len(torch.unique(some)) > MOST_LEVELS else torch.unique(values.double())  # a sample rules out most
    if not 3 <= len(levels) <= MOST_LEVELS or values.numel() < 8:
        return 0.0
    gaps = levels.diff()
    step = float(gaps.min())
    span = float(levels[-1] - levels[0])
    # The smallest gap is rounded itself; over the whole span it is not.
    step = span / max(1, round(span / step)) if span / step <= MOST_LEVELS else 0.0
    if step == 0.0:
        return 0.0
    places = (levels - levels[0]) / step
    return step if float((places - places.round()).abs().max()) < ON_GRID else 0.0


def unpruned_entries(values: Tensor, error: Tensor) -> Tensor:
    """Mark the entries of a single example's update that were not pruned.  # (h, d) both

    Pruning shows by more zeros than rounding makes. Whole rows and columns of zeros do not count as pruning, nor do the
    zeros of a quantiser.
    """
    everything = torch.ones_like(values, dtype=torch.bool)
    if grid_step(values):
        return everything
    zero = values == 0
    column = values.shape[1] == 1
    isolated = zero if column else zero & ~zero.all(1, keepdim=True) & ~zero.all(0, keepdim=True)
    nearly_zero = ~zero & (values.abs() <= 1.5 * math.sqrt(12) * error)
    return ~isolated if int(isolated.sum()) > PRUNED_RATIO * int(nearly_zero.sum()) else everything


def stack_update(updates: Sequence[Tensor], errors: Sequence[Tensor]) -> UpdateMatrix:
    """Return [U | v] from the updates of weight and bias with their rounding; only U from that of the weight."""
    matrix, error = (torch.cat([part.view(len(part), -1) for part in parts], 1) for parts in (updates, errors))
    return UpdateMatrix(matrix.double(), error, torch.ones_like(matrix, dtype=torch.bool), len(updates) > 1)


def with_ones(inputs: Tensor) -> Tensor:
    """Return [X | 1] in double precision.  # (n, d) -> (n, d + 1)"""
    return torch.cat([inputs.double(), inputs.new_ones(len(inputs), 1, dtype=torch.float64)], 1)


def truncated_svd(sent: UpdateMatrix, most: int) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return the singular values of [U | v] that stand out of the rounding, at most `most`, between their vectors.

    The last result is the size of the remaining singular values, relative to the rounding that was expected.
    # (h, rank), (rank,), (rank, d + 1)
    """
    left_vectors, values, right_vectors = _singular(sent.matrix, most)
    h, d = sent.matrix.shape
    size = float(sent.error.square().mean().sqrt())
    floor = size * (math.sqrt(h) + math.sqrt(d))
    if most < len(values):
        floor = max(floor, float(values[most]))
    rank = min(int((values > STANDS_OUT * floor).sum()), most)
    remainder = float(sent.matrix.square().sum()) - float(values[:rank].square().sum())
    noise_size = math.sqrt(max(remainder, 0.0) / max(1, (h - rank) * (d - rank)))
    excess_noise = noise_size / size if size and noise_size else 1.0
    return left_vectors[:, :rank], values[:rank], right_vectors[:rank], excess_noise


def _singular(matrix: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first singular values and vectors, a few more than `most`, by subspace iteration."""
    if 4 * (most + OVERSAMPLING) >= min(matrix.shape):
        svd = torch.linalg.svd(matrix, full_matrices=False)
        return svd.U, svd.S, svd.Vh
    draws = torch.randn(matrix.shape[1], most + OVERSAMPLING, generator=stream(0, "spectrum"), dtype=matrix.dtype)
    basis = torch.linalg.qr(matrix @ draws).Q
    for _ in range(SUBSPACE_ITERATIONS):
        basis = torch.linalg.qr(matrix @ torch.linalg.qr(matrix.T @ basis).Q).Q
    svd = torch.linalg.svd(basis.T @ matrix, full_matrices=False)
    return basis @ svd.U, svd.S, svd.Vh


def row_ratios(sent: UpdateMatrix) -> RowRatios:
    """Return U_i / v_i of all rows that are precise enough, and the inputs on which several rows agree.

    Rows that agree are a hint, not a proof: with two classes all rows of one activation pattern give the same mixture.
    """
    moved, v = sent.matrix[:, :-1], sent.matrix[:, -1]
    ratios = moved / v[:, None]
    squares = sent.error.square()
    spread = (squares[:, :-1] + ratios.square() * squares[:, -1:]).mean(1).sqrt() / v.abs()
    size = ratios.square().mean(1).sqrt()
    rows = torch.nonzero((v != 0) & (spread <= MAX_RATIO_ERROR * size) & (size > 0))[:, 0]
    ratios, spread = ratios[rows], spread[rows]
    groups: list[Tensor] = []
    inputs: list[Tensor] = []
    for group in _groups(ratios, spread):
        vector = _top_right_singular_vector(torch.cat([moved[rows[group]], v[rows[group], None]], 1))
        shared = vector[:-1] / vector[-1]  # the input of one example, which a larger group may have nearly given
        if all(float((shared - other).norm()) > SAME_INPUT * float(other.norm()) for other in inputs):
            groups.append(group)
            inputs.append(shared)
    joined = torch.cat([rows[group] for group in groups]) if groups else rows[:0]
    total = float(moved.square().sum())
    ungrouped = 1 - float(moved[joined].square().sum()) / total if total else 0.0
    return RowRatios(
        ratios,
        spread,
        rows,
        torch.stack(inputs) if inputs else moved.new_zeros(0, moved.shape[1]),
        torch.tensor([len(group) for group in groups], dtype=torch.int64),
        math.sqrt(max(0.0, ungrouped)),
    )


def fit_rank_one(sent: UpdateMatrix) -> RankOneFit:
    """Return the rank-one matrix nearest to a layer's update: every row is a multiple of one input.

    Pruned entries are left out of the fit; a zero by rounding is an entry like others.
    """
    factors, vector = _rank_one_factors(sent)
    scaled = sent.biased and float(vector[-1]) != 0
    if scaled:
        factors, vector = factors * vector[-1], vector / vector[-1]
    zeros = torch.zeros_like(sent.matrix)
    residual = torch.where(sent.observed, sent.matrix - factors[:, None] * vector, zeros)
    alive = sent.matrix.abs().amax(1) > 0
    # The input is rounded as well, but far less than a row: the residual of a row is the row's own rounding.
    close = residual.square().sum(1) <= CLEAN_WITHIN**2 * (sent.error.square() * sent.observed).sum(1)
    size = float(torch.where(sent.observed, sent.matrix, zeros).norm())
    left = float(residual.norm())
    return RankOneFit(
        vector[:-1] if sent.biased else vector,
        scaled,
        factors,
        votes=int((close & alive).sum()),
        clean=left <= CLEAN_WITHIN * float((sent.error * sent.observed).norm()),
        residual=left / size if size else math.inf,
    )


def _rank_one_factors(sent: UpdateMatrix) -> tuple[Tensor, Tensor]:
    """Return the factors of the best rank-one fit to the observed entries.  # (h,), (d + 1,)"""
    observed = torch.where(sent.observed, sent.matrix, torch.zeros_like(sent.matrix))
    vector = _top_right_singular_vector(observed)
    factors = observed @ vector
    if bool(sent.observed.all()):
        return factors, vector
    mask = sent.observed.double()
    for _ in range(FIT_ITERATIONS):
        factors = _quotient(observed @ vector, mask @ vector.square())
        fresh = _quotient(factors @ observed, factors.square() @ mask)
        fresh = fresh / fresh.norm()
        moved, vector = float((fresh - vector).norm()), fresh
        if moved < CONVERGED:
            break
    return _quotient(observed @ vector, mask @ vector.square()), vector


def _top_right_singular_vector(matrix: Tensor) -> Tensor:
    """Return the first right singular vector.  # (h, d) -> (d,)"""
    if matrix.shape[0] <= matrix.shape[1]:
        vector: Tensor = torch.linalg.eigh(matrix @ matrix.T).eigenvectors[:, -1] @ matrix
    else:
        vector = torch.linalg.eigh(matrix.T @ matrix).eigenvectors[:, -1]
    for _ in range(2):  # squaring loses half of the digits: two steps of the power method restore them
        vector = (matrix @ (vector / vector.norm())) @ matrix
    size = vector.norm()
    return vector / size if float(size) > 0 else vector


def _quotient(above: Tensor, below: Tensor) -> Tensor:
    """Divide entry by entry; 0 where the denominator is 0."""
    return torch.where(below > 0, above / below.where(below > 0, torch.ones_like(below)), torch.zeros_like(above))


def _groups(ratios: Tensor, spread: Tensor) -> list[Tensor]:
    """Group the rows that agree within their rounding, around the most precise ones; the largest group first."""
    squares = ratios.square().sum(1)
    distances = (squares[:, None] + squares - 2 * ratios @ ratios.T).clamp(min=0) / max(1, ratios.shape[1])
    # Squares of doubles cancel down to 1e-15 of their size.
    cancelled = 1e-14 * (squares[:, None] + squares) / max(1, ratios.shape[1])
    near = distances <= AGREE_WITHIN**2 / 4 * (spread[:, None].square() + spread.square()) + cancelled
    free = torch.ones(len(ratios), dtype=torch.bool)
    groups: list[Tensor] = []
    for seed in torch.argsort(spread).tolist():
        if not free[seed]:
            continue
        group = torch.nonzero(near[seed] & free)[:, 0]
        free[group] = False
        if len(group) > 1:
            groups.append(group)
    return sorted(groups, key=len, reverse=True)


def _eps(tensor: Tensor) -> float:
    return float(torch.finfo(tensor.dtype if tensor.is_floating_point() else torch.float32).eps)


def _coarseness(update: Tensor) -> tuple[float, float]:
    """Return the relative rounding of the coarsest type that all entries fit into, and its smallest step."""
    for kind in (torch.bfloat16, torch.float16, torch.float32):
        if torch.equal(update.to(kind).double(), update.double()):
            info = torch.finfo(kind)
            return float(info.eps), float(info.smallest_normal * info.eps)
    return float(torch.finfo(torch.float64).eps), 0.0
