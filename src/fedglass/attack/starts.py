"""The run of lowest energy from several starts: each to its end, or the worse half given up on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from fedglass.attack.parts import Progress, Steps, finished
from fedglass.core.types import Reconstruction

HALVINGS = (0.25, 0.5)
"""Shares of the way at which the worse half of the starts is given up: eight starts cost four whole runs. Measured with
Inverting Gradients on LeNet5, eight starts for each of four messages: the lowest energies up to 1/16, 1/8, 1/4 and 1/2
of the way have rank correlations of 0.2, 0.3, 0.6 and 0.9 with those at the end."""

Run = Callable[[int, Progress], Steps[Reconstruction]]
"""The run from the start of a seed."""


def best_of(run: Run, seeds: Sequence[int], progress: Progress) -> Reconstruction:
    """Return the run of lowest energy, after each was run to its end."""
    runs = [finished(run(seed, part(progress, i, len(seeds)))) for i, seed in enumerate(seeds)]
    return min(runs, key=lambda found: rank(found.energy))


def halved(run: Run, seeds: Sequence[int], progress: Progress) -> Reconstruction:
    """Return the run of lowest energy among those that were not given up on their way (successive halving)."""
    whole = round(1000 * cost_of(len(seeds)))
    told = _together(progress, whole)
    starts = [_Start(run(seed, told(seed))) for seed in seeds]
    for share in HALVINGS:
        energies = {start: start.advance(share) for start in starts}
        starts = sorted(starts, key=lambda start: energies[start])[: math.ceil(len(starts) / 2)]
    best = min((start.finish() for start in starts), key=lambda found: rank(found.energy))
    progress(whole, whole)
    return best


def rank(energy: float) -> float:
    """For choosing among runs by their energy; one that is not a number comes last."""
    return energy if math.isfinite(energy) else math.inf


def part(progress: Progress, index: int, parts: int) -> Progress:
    """The share of a progress bar that one restart or stage owns."""
    return lambda done, total: progress(index * total + done, parts * total)


class _Start:
    """A run from one start that can be paused."""

    def __init__(self, steps: Steps[Reconstruction]) -> None:
        self._steps = steps
        self._found: Reconstruction | None = None

    def advance(self, share: float) -> float:
        """Go on to that share of the way; the lowest energy since the last pause."""
        energies: list[float | Tensor] = []
        while self._found is None:
            try:
                at, energy = next(self._steps)
            except StopIteration as end:  # before its time: not finite any more
                self._found = end.value
                break
            energies.append(energy)
            if at >= share:
                break
        return min((rank(float(energy)) for energy in energies), default=math.inf)

    def finish(self) -> Reconstruction:
        return finished(self._steps) if self._found is None else self._found


def cost_of(starts: int) -> float:
    """How many whole runs the halving of that many starts takes.

    >>> cost_of(8), cost_of(1)
    (4.0, 1.0)
    """
    cost, last = 0.0, 0.0
    for share in (*HALVINGS, 1.0):
        cost, last, starts = cost + starts * (share - last), share, math.ceil(starts / 2)
    return cost


def _together(progress: Progress, whole: int) -> Callable[[int], Progress]:
    """The progress bar, in thousandths of a run, of runs that take turns; each speaks by its own key."""
    shares: dict[int, float] = {}

    def of(key: int) -> Progress:
        def tell(done: int, total: int) -> None:
            shares[key] = done / total
            progress(min(whole, round(1000 * sum(shares.values()))), whole)

        return tell

    return of
