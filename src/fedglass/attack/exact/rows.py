"""The rows of a dense layer's update: their precision, their rank, and the inputs that rows give by division."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.rng import stream

AGREE = 6.0
"""Standard deviations of rounding within which two rows agree: rounding is bounded, so more than 6 never occurs."""
ROUGH = 0.02
"""Rows whose ratio is known worse than this, relative to its size, would agree with any other: they are left out."""
CLEAN = 2.0
"""How many times the expected rounding the remainder of an explained update may have, as a norm over the layer."""
GRID = 1024
"""The most levels of a quantiser that is looked for, 10 bits: single precision does not tell much finer ones."""
ON_GRID = 0.01
"""How far from a whole number of steps a value may lie, in steps: single precision keeps well below."""
STANDS_OUT = 3.0
"""How many times the largest singular value of pure rounding one must have to count."""
BESIDE = 8
"""Singular values that are computed beyond those asked for, as Halko et al. (2011) advise."""
ITERATIONS = 4
"""Of the subspace iteration: what stands out by a factor of 3 is then separated by 3^8."""
MERGED = 1e-3
"""Relative distance below which two groups of rows give the same input."""
PRUNED = 4.0
"""Pruning is supposed where there are this many times as many zeros as entries next to zero, which rounding gives."""
ROUNDS = 100
"""Alternations of the rank-one fit to entries that were not pruned; where it fits, it has settled long before."""
SETTLED = 1e-13
"""The move of a unit vector at which they end."""


@dataclass(frozen=True, eq=False)
class Sent:
    """[U | v] of a layer and the rounding that each entry can have, as a standard deviation."""

    matrix: Tensor  # (h, d + 1), double
    error: Tensor  # (h, d + 1)
    kept: Tensor  # (h, d + 1), False where an entry was pruned: it tells nothing
    biased: bool = True
    """Whether the last column is the bias; without it the matrix is U."""

    @property
    def noise(self) -> Tensor:
        """The rounding of each row's entries, root mean square.  # (h,)"""
        return self.error.square().mean(1).sqrt()


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The part of [U | v] that is no rounding, by its singular values."""

    left: Tensor  # (h, rank)
    values: Tensor  # (rank,)
    right: Tensor  # (rank, d + 1)
    share: float
    """What is left besides, relative to the rounding that was expected."""

    @property
    def rank(self) -> int:
        return len(self.values)


@dataclass(frozen=True, eq=False)
class Rows:
    """The ratios U_i / v_i, and those on which at least two rows agree."""

    ratios: Tensor  # (r, d), of the rows that are precise enough
    errors: Tensor  # (r,), root mean square over the entries
    rows: Tensor  # (r,), which rows they are
    inputs: Tensor  # (m, d), one for each group of rows that agree, the largest group first
    votes: Tensor  # (m,), how many rows agree
    residual: float
    """Share of the update's norm that lies in rows of no group."""


@dataclass(frozen=True, eq=False)
class OneInput:
    """The input of a layer that one example went through."""

    inputs: Tensor  # (d,); a direction of length 1 where it is not scaled
    scaled: bool
    """Whether a bias tells its length."""
    factors: Tensor  # (h,), what each row is a multiple of it by
    votes: int
    """How many rows agree with it at rounding level."""
    clean: bool
    """Whether all of them do."""
    residual: float


def entry_error(update: Tensor, before: Tensor, steps: int = 1) -> Tensor:
    """Return the rounding that each entry of an update can have, as a standard deviation.

    Weights after training are rounded to their own type, at each step, which the difference inherits; the message may
    be in a coarser type, or on the grid of a quantiser.

    >>> fine, coarse = torch.tensor([1.1, 3.3]), torch.tensor([1.0, 3.0])  # the second fits into bfloat16
    >>> bool(entry_error(fine, torch.zeros(2)).max() < 1e-6), bool(entry_error(coarse, torch.zeros(2)).max() > 1e-3)
    (True, True)
    """
    sent, start = update.double().cpu(), before.double().cpu()
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
    """Return the step of the uniform grid that all values lie on; 0 where they lie on none.

    >>> grid_step(torch.tensor([0.0, 0.5, -1.0, 2.5, 3.0, 0.5, 1.0, 1.5])), grid_step(torch.rand(100))
    (0.5, 0.0)
    """
    some = values[values != 0][: 2 * GRID].double()
    known = some if len(torch.unique(some)) > GRID else torch.unique(values.double())  # a look at some rules most out
    if not 3 <= len(known) <= GRID or values.numel() < 8:
        return 0.0
    gaps = known.diff()
    step = float(gaps.min())
    span = float(known[-1] - known[0])
    # The smallest gap is rounded itself; over the whole span it is not.
    step = span / max(1, round(span / step)) if span / step <= GRID else 0.0
    if step == 0.0:
        return 0.0
    places = (known - known[0]) / step
    return step if float((places - places.round()).abs().max()) < ON_GRID else 0.0


def kept_entries(values: Tensor, error: Tensor) -> Tensor:
    """Return which entries of a single example's update were not pruned: there are too many zeros for rounding.

    Whole rows and columns of zeros are no pruning, nor are the zeros of a quantiser.  # (h, d) both
    """
    everything = torch.ones_like(values, dtype=torch.bool)
    if grid_step(values):
        return everything
    zero = values == 0
    column = values.shape[1] == 1
    lone = zero if column else zero & ~zero.all(1, keepdim=True) & ~zero.all(0, keepdim=True)
    beside = ~zero & (values.abs() <= 1.5 * math.sqrt(12) * error)
    return ~lone if int(lone.sum()) > PRUNED * int(beside.sum()) else everything


def stacked(
    update: Tensor, bias: Tensor | None, error: Tensor, bias_error: Tensor | None, pruned: bool = False
) -> Sent:
    """Return [U | v] with its rounding; U alone where there is no bias. With `pruned` zeros may be missing entries."""
    parts = [(update.double(), error)]
    if bias is not None:
        told = torch.zeros_like(bias.double()) if bias_error is None else bias_error
        parts.append((bias.double()[:, None], told[:, None]))
    kept = [kept_entries(u, each) if pruned else torch.ones_like(u, dtype=torch.bool) for u, each in parts]
    matrix, errors = (torch.cat([part[i] for part in parts], 1) for i in (0, 1))
    return Sent(matrix, errors, torch.cat(kept, 1), bias is not None)


def spectrum(sent: Sent, most: int | None = None) -> Spectrum:
    """Return the singular values of [U | v] that stand out of the rounding, at most `most`, and their vectors."""
    left, values, right = _singular(sent.matrix, most)
    h, d = sent.matrix.shape
    size = float(sent.error.square().mean().sqrt())
    floor = size * (math.sqrt(h) + math.sqrt(d))
    if most is not None and most < len(values):
        floor = max(floor, float(values[most]))
    rank = min(int((values > STANDS_OUT * floor).sum()), len(values) if most is None else most)
    rest = float(sent.matrix.square().sum()) - float(values[:rank].square().sum())
    seen = math.sqrt(max(rest, 0.0) / max(1, (h - rank) * (d - rank)))
    return Spectrum(left[:, :rank], values[:rank], right[:rank], seen / size if size and seen else 1.0)


def _singular(matrix: Tensor, most: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """The first singular values and vectors; some more than `most`, by iterating on a subspace."""
    if most is None or 4 * (most + BESIDE) >= min(matrix.shape):
        found = torch.linalg.svd(matrix, full_matrices=False)
        return found.U, found.S, found.Vh
    draws = torch.randn(matrix.shape[1], most + BESIDE, generator=stream(0, "spectrum"), dtype=matrix.dtype)
    basis = torch.linalg.qr(matrix @ draws).Q
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(matrix @ torch.linalg.qr(matrix.T @ basis).Q).Q
    found = torch.linalg.svd(basis.T @ matrix, full_matrices=False)
    return basis @ found.U, found.S, found.Vh


def row_ratios(update: Tensor, bias: Tensor, errors: tuple[Tensor, Tensor]) -> Rows:
    """Return U_i / v_i of all rows that are precise enough, and the inputs on which several rows agree.

    `errors` is the rounding of the entries of both, see `entry_error`. Rows that agree are a hint, no proof: with two
    classes all rows of one activation pattern give the same mixture.  # update (h, d), bias (h,)
    """
    moved, v = update.double(), bias.double()
    ratios = moved / v[:, None]
    spread = (errors[0].square() + ratios.square() * errors[1][:, None].square()).mean(1).sqrt() / v.abs()
    size = ratios.square().mean(1).sqrt()
    rows = torch.nonzero((v != 0) & (spread <= ROUGH * size) & (size > 0))[:, 0]
    ratios, spread = ratios[rows], spread[rows]
    groups, inputs = _merged(
        [(group, _direction(moved[rows[group]], v[rows[group]])) for group in _groups(ratios, spread)]
    )
    joined = torch.cat([rows[group] for group in groups]) if groups else rows[:0]
    total = float(moved.square().sum())
    left = 1 - float(moved[joined].square().sum()) / total if total else 0.0
    return Rows(
        ratios,
        spread,
        rows,
        torch.stack(inputs) if inputs else moved.new_zeros(0, moved.shape[1]),
        torch.tensor([len(group) for group in groups], dtype=torch.int64),
        math.sqrt(max(0.0, left)),
    )


def one_input(sent: Sent) -> OneInput:
    """Return the one input that a layer's update is a multiple of in every row: its first right singular vector.

    Pruned entries are left out of the fit; a rounded zero is an entry like others.
    """
    factors, vector = _rank_one(sent)
    scaled = sent.biased and float(vector[-1]) != 0
    if scaled:
        factors, vector = factors * vector[-1], vector / vector[-1]
    left = torch.where(sent.kept, sent.matrix - factors[:, None] * vector, torch.zeros_like(sent.matrix))
    alive = sent.matrix.abs().amax(1) > 0
    # The input itself is rounded as well, less than a row by far: the remainder of a row is the row's own rounding.
    close = left.square().sum(1) <= CLEAN**2 * (sent.error.square() * sent.kept).sum(1)
    whole = float(torch.where(sent.kept, sent.matrix, torch.zeros_like(sent.matrix)).norm())
    votes = int((close & alive).sum())
    found = vector[:-1] if sent.biased else vector
    expected = float((sent.error * sent.kept).norm())
    return OneInput(
        found,
        scaled,
        factors,
        votes,
        float(left.norm()) <= CLEAN * expected,
        float(left.norm()) / whole if whole else math.inf,
    )


def _rank_one(sent: Sent) -> tuple[Tensor, Tensor]:
    """Factors of the best rank-one fit to the entries that are known.  # (h,), (d + 1,)"""
    known = torch.where(sent.kept, sent.matrix, torch.zeros_like(sent.matrix))
    vector = _leading(known)
    factors = known @ vector
    if bool(sent.kept.all()):
        return factors, vector
    mask = sent.kept.double()
    for _ in range(ROUNDS):
        factors = _quotient(known @ vector, mask @ vector.square())
        fresh = _quotient(factors @ known, factors.square() @ mask)
        fresh = fresh / fresh.norm()
        moved, vector = float((fresh - vector).norm()), fresh
        if moved < SETTLED:
            break
    return _quotient(known @ vector, mask @ vector.square()), vector


def _leading(matrix: Tensor) -> Tensor:
    """The first right singular vector.  # (h, d) -> (d,)"""
    if matrix.shape[0] <= matrix.shape[1]:
        vector: Tensor = torch.linalg.eigh(matrix @ matrix.T).eigenvectors[:, -1] @ matrix
    else:
        vector = torch.linalg.eigh(matrix.T @ matrix).eigenvectors[:, -1]
    for _ in range(2):  # squaring has cost half of the digits: two steps of the power method bring them back
        vector = (matrix @ (vector / vector.norm())) @ matrix
    size = vector.norm()
    return vector / size if float(size) > 0 else vector


def _quotient(above: Tensor, below: Tensor) -> Tensor:
    """Zero where nothing is known."""
    return torch.where(below > 0, above / below.where(below > 0, torch.ones_like(below)), torch.zeros_like(above))


def _direction(moved: Tensor, bias: Tensor) -> Tensor:
    """The input that rows of one example share.  # (r, d), (r,) -> (d,)"""
    vector: Tensor = _leading(torch.cat([moved, bias[:, None]], 1))
    return vector[:-1] / vector[-1]


def _groups(ratios: Tensor, spread: Tensor) -> list[Tensor]:
    """Rows that agree within their rounding, seeded by the most precise ones; the largest group first."""
    squares = ratios.square().sum(1)
    distances = (squares[:, None] + squares - 2 * ratios @ ratios.T).clamp(min=0) / max(1, ratios.shape[1])
    # Squares of doubles cancel down to 1e-15 of their size.
    cancelled = 1e-14 * (squares[:, None] + squares) / max(1, ratios.shape[1])
    near = distances <= AGREE**2 / 4 * (spread[:, None].square() + spread.square()) + cancelled
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


def _merged(groups: list[tuple[Tensor, Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    """Groups and their inputs; a smaller group whose input is nearly that of a larger one is left out."""
    kept: list[tuple[Tensor, Tensor]] = []
    for group, found in groups:
        if all(float((found - other).norm()) > MERGED * float(other.norm()) for _, other in kept):
            kept.append((group, found))
    return [group for group, _ in kept], [found for _, found in kept]


def _eps(tensor: Tensor) -> float:
    return float(torch.finfo(tensor.dtype if tensor.is_floating_point() else torch.float32).eps)


def _coarseness(update: Tensor) -> tuple[float, float]:
    """The relative rounding of the type that all entries fit into, and the smallest step of that type."""
    for kind in (torch.bfloat16, torch.float16, torch.float32):
        if torch.equal(update.to(kind).double(), update.double()):
            info = torch.finfo(kind)
            return float(info.eps), float(info.smallest_normal * info.eps)
    return float(torch.finfo(torch.float64).eps), 0.0
