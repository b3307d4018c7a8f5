"""Whom a record is compared with: examples of its own label that nobody trained on, and none that shows the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.rounds.truth import Examples

LEAST = 20
"""Candidates of a record's label below which the game is not played: a rank among fewer says nothing."""
ENOUGH = 200
"""Candidates of a record's label below which a rate decides nothing."""
FEW_RECORDS = 8
"""Records below which ranks decide and no rate: a rate of 7 of 7 still has a lower limit of .59."""
PUBLIC = 400
"""Public gradients that give the common directions: on CIFAR-10 400 name .91 of 32 records, 20 name .28."""
SHARE = 5
"""One in so many examples of a record's label may become public where they do not suffice for all candidates."""
SPREAD = 1.2
"""How many times the candidates of one record those of a label are at most: each has a draw of its own."""
SIDE = 16
"""Height and width at which images are compared."""
SAME_AS_PRIVATE = 0.95
"""Correlation from which a candidate shows what a private record shows: noise of .05 on CIFAR-10 stays above in 99 % of
the images, and 0.4 % of them have another image of their class above."""
SAME_IN_POOL = 0.98
"""The same between two candidates, which is stricter: 62 % of Fashion-MNIST have an image of their class above .95."""
SAME_ERROR = 1e-3
"""Mean squared error, 30 dB, up to which images are the same whatever their correlation: flat ones have none."""
BLOCK = 2048
"""Images that are compared with others at once."""


@dataclass(frozen=True, eq=False)
class Pool:
    """Public examples or candidates, which nobody trained on."""

    images: Tensor  # (m, c, h, w), pixels in [0, 1]
    labels: Tensor  # (m,)
    same_source: bool = True
    """False: images of another kind, so that the game gives a chart and never a verdict."""
    name: str = ""


@dataclass(frozen=True, eq=False)
class Draw:
    """Rows of the pool: those that give the common directions, and those that each record is compared with."""

    public: Tensor  # (p,)
    records: Tensor
    """Which of the records are played.  # (r,)"""
    of_label: dict[int, Tensor]
    """All candidates of a label."""
    own: tuple[Tensor, ...]
    """Of each played record, places within its label's candidates."""

    @property
    def fewest(self) -> int:
        """Candidates of the record that has the fewest."""
        return min(len(rows) for rows in self.own)


def check_pool(records: Examples, pool: Pool) -> None:
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


def draw_candidates(
    records: Examples, pool: Pool, *, candidates: int, private: Sequence[Tensor] = (), seed: int = 0
) -> Draw:
    """Draw public examples, and for each record candidates of its label that show none of the private images.

    Records whose label has too few are left out, as long as others have enough.
    """
    check_pool(records, pool)
    left = _usable(records, pool, private)
    labels, counts = torch.unique(records.labels, return_counts=True)
    free = {int(label): _shuffled(left[pool.labels[left] == label], seed, "label", int(label)) for label in labels}
    _refuse_too_few(records, pool, free)
    few = len(records.labels) < FEW_RECORDS
    public = []
    for label, count in zip(labels.tolist(), counts.tolist(), strict=True):
        size = len(free[label])
        allowed = size - candidates if few else max(size - candidates, min(size // SHARE, size - ENOUGH))
        take = min(round(PUBLIC * count / len(records.labels)), max(allowed, 0))
        public.append(free[label][:take])
        free[label] = free[label][take:][: round(SPREAD * candidates)]
    others = _shuffled(left[~torch.isin(pool.labels[left], labels)], seed, "others")
    return _draw(records, free, torch.cat([*public, others])[:PUBLIC], candidates, seed)


def _draw(records: Examples, free: dict[int, Tensor], public: Tensor, candidates: int, seed: int) -> Draw:
    sizes = torch.tensor([len(free[label]) for label in records.labels.tolist()])
    least = ENOUGH if bool((sizes >= ENOUGH).any()) else LEAST
    played = (sizes >= least).nonzero().flatten()
    own = tuple(
        torch.randperm(int(sizes[i]), generator=stream(seed, "candidates", "record", i))[:candidates]
        for i in played.tolist()
    )
    kept = set(records.labels[played].tolist())
    return Draw(public, played, {label: rows for label, rows in free.items() if label in kept}, own)


def _refuse_too_few(records: Examples, pool: Pool, free: dict[int, Tensor]) -> None:
    most = max(map(len, free.values()))
    if not bool(torch.isin(pool.labels, records.labels).any()):
        raise UsageError(
            f"No candidate has one of the records' labels ({', '.join(map(str, sorted(free)))}): give candidates with "
            "the same labels."
        )
    if most < LEAST:
        raise UsageError(
            f"The candidate game needs at least {LEAST} different candidates of a record's label, got {most}: give "
            f"more, {ENOUGH} at least for a verdict."
        )


def _usable(records: Examples, pool: Pool, private: Sequence[Tensor]) -> Tensor:
    """Rows of the pool that show no private image, and of those that show the same only the first."""
    secret = torch.cat([records.images, *private])
    keep = ~shows_one_of(pool.images, secret, SAME_AS_PRIVATE)
    needed = torch.isin(pool.labels, records.labels)
    for label in torch.unique(records.labels):
        rows = (keep & needed & (pool.labels == label)).nonzero().flatten()
        keep[rows] = is_first(pool.images[rows], SAME_IN_POOL)
    return keep.nonzero().flatten()


def shows_one_of(images: Tensor, others: Tensor, correlation: float) -> Tensor:
    """Return which images show the same as one of the others.  # (n, c, h, w), (m, c, h, w) -> (n,)"""
    small, against = _small(images), _small(others)
    found = [_same(some, against, correlation).any(1) for some in torch.split(small, BLOCK)]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.bool)


def is_first(images: Tensor, correlation: float) -> Tensor:
    """Return which images show something else than all before them.  # (n, c, h, w) -> (n,)"""
    small = _small(images)
    found = []
    for first, some in zip(range(0, len(small), BLOCK), torch.split(small, BLOCK), strict=True):
        same = _same(some, small, correlation)
        found.append(~same.tril(first - 1).any(1))
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.bool)


def _small(images: Tensor) -> Tensor:
    """# (n, entries)"""
    height, width = images.shape[-2:]
    return F.adaptive_avg_pool2d(images.float(), (min(SIDE, height), min(SIDE, width))).flatten(1)


def _same(left: Tensor, right: Tensor, correlation: float) -> Tensor:
    """Which pairs show the same, by one product of matrices.  # (n, e), (m, e) -> (n, m)"""
    products, entries = left @ right.T, left.shape[1]
    squares = [each.square().sum(1) for each in (left, right)]
    error = (squares[0][:, None] + squares[1] - 2 * products) / entries
    means = [each.mean(1) for each in (left, right)]
    spreads = [
        (square / entries - mean.square()).clamp(min=0).sqrt() for square, mean in zip(squares, means, strict=True)
    ]
    together = products / entries - means[0][:, None] * means[1]
    return (error <= SAME_ERROR) | (together >= correlation * (spreads[0][:, None] * spreads[1]).clamp(min=SAME_ERROR))


def _shuffled(rows: Tensor, seed: int, *name: str | int) -> Tensor:
    return rows[torch.randperm(len(rows), generator=stream(seed, "candidates", *name))]
