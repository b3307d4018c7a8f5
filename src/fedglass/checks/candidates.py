"""The candidates of the game, and the limits of its rate.

A record is compared with examples of its label that were not trained on, and that do not show the same.

The limits are those of a rate of first places, where records and candidates are both a sample. Candidates' scores do
not depend on the record, so that all records of a label must beat the same best one. An interval for independent trials
covers the true rate in two of three cases then. Here records are drawn again, and with them the best candidate's score:
its tail is a generalised Pareto law, fitted to each draw of the highest tenth by probability-weighted moments [Hosking
and Wallis, 1987]. A rate of 0 or 1 never varies in such draws, so that the interval is never narrower than that of
Clopper and Pearson.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedglass.bounds.success import clopper_pearson
from fedglass.core.errors import UsageError
from fedglass.core.rng import derive, stream
from fedglass.core.thresholds import (
    ENOUGH_CANDIDATES,
    GAME_LEVEL,
    LEAST_CANDIDATES,
    SAME_AS_PRIVATE,
    SAME_ERROR,
    SAME_IN_POOL,
)
from fedglass.federation.truth import Examples

PUBLIC = 1000
"""Public gradients that give the common directions, at most: on CIFAR-10 1,000 name more than 400, and 20 name few."""
MOST_OF_LABEL = 1.2
"""Most candidates of a label, as a multiple of those of one record: each record has its own draw."""
SIDE = 16
"""Height and width at which images are compared."""
BLOCK = 2048
"""Images that are compared with others at once."""


@dataclass(frozen=True, eq=False)
class Draw:
    """Rows of the pool: those that give the common directions, and those that each record is compared with."""

    public: Tensor
    """Rows of all labels of the records, in a random order; most are candidates, too.  # (p,)"""
    records: Tensor
    """The records that are played.  # (r,)"""
    of_label: dict[int, Tensor]
    """All candidates of a label."""
    places: tuple[Tensor, ...]
    """The candidates of each played record, as places within those of its label."""


def draw_candidates(
    records: Examples, pool: Examples, *, candidates: int, private: Sequence[Tensor] = (), seed: int = 0
) -> Draw:
    """Draw public examples, and for each record candidates of its label that show none of the private images.

    The pool holds examples that were not trained on.
    Records whose label has too few are left out, as long as others have enough.
    """
    _check(records, pool)
    usable = _shuffled(_usable(records, pool, private), seed, "usable")
    labels = torch.unique(records.labels).tolist()
    free = {label: usable[pool.labels[usable] == label][: round(MOST_OF_LABEL * candidates)] for label in labels}
    most = max(map(len, free.values()))
    if most < LEAST_CANDIDATES:
        raise UsageError(
            f"The candidate game needs at least {LEAST_CANDIDATES} different candidates of a record's label, got "
            f"{most}: give more, {ENOUGH_CANDIDATES} at least for a verdict."
        )
    least = ENOUGH_CANDIDATES if most >= ENOUGH_CANDIDATES else LEAST_CANDIDATES
    of_label = {label: rows for label, rows in free.items() if len(rows) >= least}
    played = torch.isin(records.labels, torch.tensor([*of_label])).nonzero().flatten()
    places = tuple(
        _shuffled(torch.arange(len(of_label[int(records.labels[i])])), seed, "record", i)[:candidates]
        for i in played.tolist()
    )
    return Draw(_public(records, free, seed), played, of_label, places)


def _check(records: Examples, pool: Examples) -> None:
    """Refuse candidates that cannot be compared with the records."""
    if not len(records.labels):
        raise UsageError("The candidate game needs at least one record: give the examples that were trained on.")
    if pool.images.shape[1:] != records.images.shape[1:]:
        raise UsageError(
            f"The candidates have the shape {tuple(pool.images.shape[1:])} and the records "
            f"{tuple(records.images.shape[1:])}: give candidates of the same shape."
        )
    if len(pool.images) != len(pool.labels) or len(records.images) != len(records.labels):
        raise UsageError("The candidate game needs one label for each image: give as many labels as images.")
    if not bool(torch.isin(pool.labels, records.labels).any()):
        record_labels = ", ".join(map(str, torch.unique(records.labels).tolist()))
        raise UsageError(
            f"No candidate has one of the records' labels ({record_labels}): give candidates with the same labels."
        )


def _public(records: Examples, free: dict[int, Tensor], seed: int) -> Tensor:
    """Return rows whose labels are as frequent as among the records.  # (p,)"""
    shares = {label: float((records.labels == label).double().mean()) for label in free}
    return _shuffled(
        torch.cat([rows[: round(PUBLIC * shares[label])] for label, rows in free.items()]), seed, "public"
    )[:PUBLIC]


def _usable(records: Examples, pool: Examples, private: Sequence[Tensor]) -> Tensor:
    """Return rows of the records' labels that show no private image; of those that show the same only the first."""
    secret = torch.cat([records.images, *private])
    needed = torch.isin(pool.labels, records.labels).nonzero().flatten()
    needed = needed[~shows_one_of(pool.images[needed], secret, SAME_AS_PRIVATE)]
    rows_by_label = []
    for label in torch.unique(records.labels):
        rows = needed[pool.labels[needed] == label]
        rows_by_label.append(rows[is_first(pool.images[rows], SAME_IN_POOL)])
    return torch.cat(rows_by_label)


def shows_one_of(images: Tensor, references: Tensor, correlation: float) -> Tensor:
    """Return which images show the same as one of the others.  # (n, c, h, w), (m, c, h, w) -> (n,)"""
    small, against = _small(images), _small(references)
    return torch.cat([_same(some, against, correlation).any(1) for some in torch.split(small, BLOCK)])


def is_first(images: Tensor, correlation: float) -> Tensor:
    """Return which images show something else than all before them.  # (n, c, h, w) -> (n,)"""
    small = _small(images)
    first_by_block = [torch.zeros(0, dtype=torch.bool)]
    for first in range(0, len(small), BLOCK):
        same = _same(small[first : first + BLOCK], small, correlation)
        first_by_block.append(~same.tril(first - 1).any(1))
    return torch.cat(first_by_block)


def _small(images: Tensor) -> Tensor:
    """Return small versions of the images as rows.  # (n, entries)"""
    height, width = images.shape[-2:]
    return F.adaptive_avg_pool2d(images.float(), (min(SIDE, height), min(SIDE, width))).flatten(1)


def _same(first: Tensor, second: Tensor, correlation: float) -> Tensor:
    """Return which pairs show the same, by one product of matrices.  # (n, e), (m, e) -> (n, m)"""
    products, entries = first @ second.T, first.shape[1]
    squares = [images.square().sum(1) for images in (first, second)]
    error = (squares[0][:, None] + squares[1] - 2 * products) / entries
    means = [images.mean(1) for images in (first, second)]
    spreads = [
        (square / entries - mean.square()).clamp(min=0).sqrt() for square, mean in zip(squares, means, strict=True)
    ]
    together = products / entries - means[0][:, None] * means[1]
    return (error <= SAME_ERROR) | (together >= correlation * (spreads[0][:, None] * spreads[1]).clamp(min=SAME_ERROR))


def _shuffled(rows: Tensor, seed: int, *name: str | int) -> Tensor:
    return rows[torch.randperm(len(rows), generator=stream(seed, "candidates", *name))]


TAIL = 0.1
"""Share of the candidates that the tail is fitted to, and at least `FEWEST_IN_TAIL` of them."""
FEWEST_IN_TAIL = 20
DRAWS, MOST_DRAWS = 800, 20_000
"""Draws at one message, and at most: the limits of many messages are rarer events."""
AT_ONCE = 400
"""Draws in memory at once."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class GameScores:
    """Scores of records, and those of the candidates that each was compared with."""

    scores: Numbers  # (r,)
    groups: NDArray[np.int64]
    """The group of candidates of each record.  # (r,)"""
    pools: Sequence[Numbers]
    """Scores of the candidates of each group."""
    candidates: NDArray[np.int64]
    """The number of candidates that each record was compared with.  # (r,)"""
    better: NDArray[np.int64]
    """The number of candidates that scored at least as high as each record.  # (r,)"""

    @property
    def rate(self) -> float:
        """The share of records that scored higher than all candidates."""
        return float(np.mean(self.better == 0))


def rate_limits(game: GameScores, messages: int, seed: int) -> tuple[float, float]:
    """Return a lower and an upper limit of the rate, each at confidence 1 - 0.05 / messages.

    A verdict compares the lower limit with a control's upper one, so that each has its own level.
    """
    level = GAME_LEVEL / messages
    low, high = clopper_pearson(int((game.better == 0).sum()), len(game.better), 2 * level)
    random = np.random.default_rng(derive(seed, "rates"))
    draws = min(MOST_DRAWS, max(DRAWS, math.ceil(40 / level)))
    parts = [_drawn_rates(game, min(AT_ONCE, draws - first), random) for first in range(0, draws, AT_ONCE)]
    lower, upper = np.quantile(np.concatenate(parts), [level, 1 - level])
    return min(low, float(lower)), max(high, float(upper))


def _drawn_rates(game: GameScores, draws: int, random: np.random.Generator) -> Numbers:
    """Return rates of records drawn again, against the best of as many candidates from the fitted law.  # (draws,)"""
    count = int(game.candidates.max())
    best = np.stack([_drawn_best(pool, count, draws, random) for pool in game.pools], axis=1)  # (draws, groups)
    rows = random.integers(0, len(game.scores), (draws, len(game.scores)))
    wins = game.scores[rows] > np.take_along_axis(best, game.groups[rows], axis=1)
    rates: Numbers = wins.mean(axis=1)
    return rates


def _drawn_best(pool: Numbers, count: int, draws: int, random: np.random.Generator) -> Numbers:
    """Draw the highest of `count` scores several times.  # (draws,)"""
    ordered = np.sort(pool)
    size = min(max(FEWEST_IN_TAIL, round(TAIL * len(pool))), len(pool) - 1)
    threshold = ordered[-size - 1]
    above = np.sort(random.choice(ordered[-size:] - threshold, (draws, size)), axis=1)
    shape, scale = _pareto(above)
    # Of `count` scores the highest is exceeded by a share E / count, E exponential: among those above, so much.
    share = np.minimum(random.exponential(size=draws) * len(pool) / (count * size), 1.0)
    flat = np.abs(shape) < 1e-6
    curved = np.where(flat, 1.0, shape)
    reach = np.where(flat, -np.log(share), np.expm1(-curved * np.log(share)) / curved)
    best: Numbers = threshold + scale * reach
    return best


def _pareto(above: Numbers) -> tuple[Numbers, Numbers]:
    """Return shape and scale by probability-weighted moments, for each row of ordered excesses.  # (draws, k)"""
    size = above.shape[1]
    first = above.mean(axis=1)
    second = (above * (1 - (np.arange(size) + 0.65) / size)).mean(axis=1)
    gap = np.maximum(first - 2 * second, 1e-12 * np.maximum(first, 1e-300))
    return 2 - first / gap, 2 * first * second / gap
