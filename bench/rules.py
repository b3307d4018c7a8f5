"""Aggregation rules on 100 updates of a million coordinates, beside a line of numpy with the same arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from bench.timing import side_by_side
from fedglass.core.registry import make
from fedglass.fl.aggregate.rule import AggregationContext, Aggregator

CLIENTS, COORDINATES = 100, 1_000_000
Rows = NDArray[np.float32]


def _distances(rows: Rows) -> object:
    """In double precision, as ours: see `LOOSER`."""
    wide = rows.astype(np.float64)
    products = wide @ wide.T
    return products.diagonal()[:, None] + products.diagonal()[None, :] - 2 * products


NUMPY: dict[str, Callable[[Rows], object]] = {
    "mean": lambda rows: rows.mean(axis=0),
    "krum": _distances,
    "median": lambda rows: np.median(rows, axis=0),
    "trimmed_mean": lambda rows: np.sort(rows, axis=0)[10:-10].mean(axis=0),
    "dnc": lambda rows: [np.linalg.svd(rows[:, :10_000] - rows[:, :10_000].mean(axis=0), False) for _ in range(5)],
}
OPTIONS: dict[str, dict[str, object]] = {"krum": {"byzantine": 10}, "trimmed_mean": {"byzantine": 10}}


LOOSER: dict[str, Callable[[Rows], object]] = {"krum": lambda rows: rows @ rows.T}
"""In single precision, where a common part of the updates drowns the differences that Krum compares."""


def measure() -> list[tuple[str, str, str]]:
    updates = torch.randn(CLIENTS, COORDINATES, generator=torch.Generator().manual_seed(0))
    rows = updates.numpy()
    found = []
    for name, line in NUMPY.items():
        made = make("rules", name, **OPTIONS.get(name, {}))
        lines = {"numpy": line} | ({"numpy in single precision": LOOSER[name]} if name in LOOSER else {})
        work = {"ours": partial(_combine, made, updates)} | {told: partial(of, rows) for told, of in lines.items()}
        seconds = side_by_side(work, 3)
        ratios = ", ".join(f"{seconds['ours'] / seconds[told]:.2f} x {told}" for told in lines)
        found.append((f"{name}, n = 100, d = 10^6: {seconds['ours']:.2f} s", ratios, ""))
    return found


def _combine(made: Aggregator, updates: torch.Tensor) -> object:
    context = AggregationContext(torch.ones(len(updates)), generator=torch.Generator().manual_seed(0))
    return made.aggregate(updates, context, made.init(updates[0]))
