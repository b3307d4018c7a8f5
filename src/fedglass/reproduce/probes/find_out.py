"""Whether a participant finds out by its own images what it was not told [Wilson et al., 2024, Appendix B]."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import ClassVar

from fedglass.attack.attack import Attack
from fedglass.attack.parts import Progress
from fedglass.attack.search import SearchByOwn
from fedglass.audit.probe import Finding
from fedglass.audit.target import Target
from fedglass.core.errors import UsageError
from fedglass.core.types import Reconstruction
from fedglass.ledger.evidence import Strips
from fedglass.metrics.catalogue import score
from fedglass.metrics.matching import Matching, match
from fedglass.reproduce.cost import Load, attack_seconds
from fedglass.reproduce.curves import Lines

NEAR = 1.25
"""A guess within this factor of the truth has found it: the grids' neighbours are farther."""


@dataclass(frozen=True)
class FindOut:
    """What the search takes for the learning rate and the number of images, beside what they are.

    The search looks at no image of another client; the truth is for the score alone.
    """

    accelerated: ClassVar[bool] = True

    search: SearchByOwn
    lr: float
    """The clients' true rate, which the adversary may not know."""

    @property
    def attack(self) -> Attack:
        return self.search.probe

    def measure(self, target: Target, seed: int, progress: Progress) -> Finding:
        found, truth = self.search.run(target.observation, seed, progress), target.known_truth
        if found.supposed is None:
            raise UsageError("The search has told nothing of what it found.")
        ratios = {"rate": found.supposed.lr / self.lr, "images": len(found.labels) / len(truth.labels)}
        shown = found.images.detach().cpu().clamp(0, 1)
        private = truth.private.images
        matching = Matching(match(shown, truth.images).partner[: len(private)])
        values = dict(score(shown, private, ("psnr",), matching).values)
        hit = all(1 / NEAR <= ratio <= NEAR for ratio in ratios.values())
        measures = {**ratios, "found": 100.0 * hit, "psnr": statistics.fmean(values["psnr"])}
        fields = {"energy": found.energy, "trace": list(found.trace), "metrics": values}
        extra = {"measures": measures, "lines": [asdict(line) for line in _drawn(found)]}
        return Finding({**fields, "extra": extra}, Strips(private.numpy(), matching.apply(shown).numpy()))

    def seconds(self, load: Load) -> float:
        tries = len(self.search.rates) * len(self.search.counts) + 1
        return tries * attack_seconds(self.search.probe, load)


def _drawn(found: Reconstruction) -> list[Lines]:
    """The error of the adversary's own images under each guess, over what was unknown."""
    error, drawn = "error of its own images", []
    for axis, of in (("learning rate", lambda trial: trial.lr), ("images", lambda trial: float(trial.examples))):
        best: dict[float, float] = {}
        for trial in found.tried:
            best[of(trial)] = min(trial.error, best.get(of(trial), trial.error))
        points = [(place, value) for place, value in best.items() if value > 0]
        if len(points) > 1:
            drawn.append(Lines(error, axis, {"guesses": points}))
    return drawn
