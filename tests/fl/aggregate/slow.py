"""The rules once more, slowly, with loops over clients and coordinates, as their papers define them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]


def krum_choice(rows: Rows, byzantine: int, among: Sequence[int] | None = None) -> int:
    """Blanchard et al., 2017: s(i) = sum over the n - f - 2 closest of |v_i - v_j|^2."""
    left = list(range(len(rows))) if among is None else list(among)
    scores = {}
    for i in left:
        distances = sorted(float(((rows[i] - rows[j]) ** 2).sum()) for j in left if j != i)
        # Rounded, since a pair's distance from either side may differ in the last digit, and then is no tie.
        scores[i] = round(sum(distances[: len(left) - byzantine - 2]), 9), sum(distances)
    return min(left, key=lambda i: scores[i])


def multi_krum_iterative(rows: Rows, byzantine: int, count: int) -> set[int]:
    left, winners = list(range(len(rows))), set[int]()
    while len(winners) < count:
        winner = krum_choice(rows, byzantine, left)
        left.remove(winner)
        winners.add(winner)
    return winners


def multi_krum_one_pass(rows: Rows, byzantine: int, count: int) -> set[int]:
    n, scores = len(rows), []
    for i in range(n):
        distances = sorted(float(((rows[i] - rows[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(distances[: n - byzantine - 2]))
    return set(sorted(range(n), key=lambda i: scores[i])[:count])


def median(rows: Rows) -> Rows:
    return np.array([_median(sorted(column)) for column in rows.T])


def _median(ordered: Sequence[float]) -> float:
    n = len(ordered)
    return ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2


def trimmed_mean(rows: Rows, byzantine: int) -> Rows:
    return np.array([np.mean(sorted(column)[byzantine : len(rows) - byzantine]) for column in rows.T])


def projections(rows: Rows) -> Rows:
    """Shejwalkar and Houmansadr, 2021: squared projections on the top right singular vector, by a full SVD."""
    centred = rows - rows.mean(axis=0)
    return np.asarray((centred @ np.linalg.svd(centred)[2][0]) ** 2)


def total_distance(rows: Rows, shares: Rows) -> Callable[[Rows], float]:
    """What the geometric median makes least."""
    return lambda point: float(sum(w * math.dist(row, point) for w, row in zip(shares, rows, strict=True)))


def centred_clipping(rows: Rows, start: Rows, radius: float, iterations: int) -> Rows:
    centre = start.copy()
    for _ in range(iterations):
        moves = [(row - centre) * min(1.0, radius / max(float(np.linalg.norm(row - centre)), 1e-300)) for row in rows]
        centre = centre + np.mean(moves, axis=0)
    return centre


def cosine_transform(row: Rows) -> Rows:
    """Type II, orthonormal, by its sum."""
    n = len(row)
    k, i = np.arange(n)[:, None], np.arange(n)[None, :]
    table = np.cos(math.pi * k * (2 * i + 1) / (2 * n)) * math.sqrt(2 / n)
    table[0] /= math.sqrt(2)
    return np.asarray(table @ row)
