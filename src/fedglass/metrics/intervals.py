"""How sure a mean is: bootstrap percentile intervals and standard errors, with or without clusters."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.errors import DataError, UsageError
from fedglass.core.rng import stream

AT_ONCE = 2**22
"""Random indices held at a time."""


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence bounds, which are None where one unit alone can not give any."""

    mean: float
    low: float | None
    high: float | None
    n: int
    level: float = 0.95
    clusters: int | None = None
    """How many independent units were resampled, where that is not the n values themselves."""

    @property
    def available(self) -> bool:
        return self.low is not None

    def __str__(self) -> str:
        bounds = f"[{self.low:.3g}, {self.high:.3g}]" if self.available else "(no interval)"
        groups = "" if self.clusters is None else f" in {self.clusters} clusters"
        return f"{self.mean:.3g} {bounds}, n={self.n}{groups}"


def bootstrap_mean(
    values: Sequence[float],
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    clusters: Sequence[Hashable] | None = None,
) -> Interval:
    """The percentile interval of the mean [Efron, 1979]; deterministic in the seed.

    With `clusters`, one name per value, all values of a cluster are drawn together: images of one client
    share their model, labels and noise, so resampling them one by one would claim more certainty than there
    is. With few units (under about 10) percentile intervals are too narrow. One unit gives no interval.

    >>> print(bootstrap_mean([20.0, 22.0, 24.0, 30.0]))
    24 [21, 28], n=4
    >>> print(bootstrap_mean([20.0, 22.0, 24.0], clusters=["a", "a", "a"]))
    22 (no interval), n=3 in 1 clusters
    """
    if not 0 < level < 1 or resamples < 1:
        raise UsageError(
            f"Expected level in (0, 1) and resamples of at least 1, got level={level} and resamples={resamples}."
        )
    sums, sizes = _units(values, clusters)
    count = None if clusters is None else len(sums)
    mean = float(sums.sum() / sizes.sum())
    if len(sums) == 1:
        return Interval(mean, None, None, len(values), level, count)
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.quantile(_resampled(sums, sizes, resamples, seed), tails).tolist()
    return Interval(mean, low, high, len(values), level, count)


def standard_error(values: Sequence[float], clusters: Sequence[Hashable] | None = None) -> float | None:
    """Standard error of the mean, robust to clusters where they are given; None for one unit.

    sqrt(G / (G - 1) * sum_g (sum_{i in g} (x_i - mean))^2) / n; deviation / sqrt(n) for clusters of one.

    >>> standard_error([1.0, 3.0])
    1.0
    """
    sums, sizes = _units(values, clusters)
    units = len(sums)
    if units == 1:
        return None
    residuals = sums - sizes * sums.sum() / sizes.sum()
    return math.sqrt(units / (units - 1) * float(residuals.square().sum())) / len(values)


def _units(values: Sequence[float], clusters: Sequence[Hashable] | None) -> tuple[Tensor, Tensor]:
    """Sum and size of each unit that is drawn as a whole.  # (g,) and (g,)"""
    x = torch.tensor([float(v) for v in values], dtype=torch.float64)
    if len(x) == 0 or not torch.isfinite(x).all():
        raise DataError(f"Expected at least one finite value for a mean, got {list(values)[:5]}.")
    if clusters is None:
        return x, torch.ones_like(x)
    if len(clusters) != len(x):
        raise DataError(f"Expected one cluster per value, got {len(clusters)} for {len(x)} values.")
    place: dict[Hashable, int] = {}
    index = torch.tensor([place.setdefault(c, len(place)) for c in clusters])
    empty = torch.zeros(len(place), dtype=torch.float64)
    return empty.index_add(0, index, x), empty.index_add(0, index, torch.ones_like(x))


def _resampled(sums: Tensor, sizes: Tensor, resamples: int, seed: int) -> Tensor:
    """Means of units drawn with replacement.  # (resamples,)"""
    generator, units = stream(seed, "bootstrap"), len(sums)
    rows = max(1, AT_ONCE // units)
    means = []
    for start in range(0, resamples, rows):
        shape = (min(rows, resamples - start), units)
        drawn = torch.randint(units, shape, generator=generator)
        means.append(sums[drawn].sum(1) / sizes[drawn].sum(1))
    return torch.cat(means)
