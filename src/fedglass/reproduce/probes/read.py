"""What a participant reads of its peers in a late round, scored as the maliciously curious client is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedglass.attack.hypotheses import AnyAttack
from fedglass.attack.parts import Progress
from fedglass.audit.guesses import IMAGINED, scored_guesses
from fedglass.audit.judgement import energy_at
from fedglass.audit.probe import Finding
from fedglass.audit.target import Target
from fedglass.core.types import Observation
from fedglass.ledger.evidence import Strips
from fedglass.metrics.catalogue import score
from fedglass.metrics.labels import label_errors
from fedglass.metrics.matching import Matching, match
from fedglass.reproduce.cost import SECOND_ORDER, Load
from fedglass.reproduce.probes.accuracy import accuracies
from fedglass.reproduce.probes.peer import back
from fedglass.rounds.truth import Truth

SHOWN = 16
"""Pictures that are kept of a run."""
GUESSED = {
    "grey": "grey",
    "black": "black",
    "the best flat colour": "flat",
    "the nearest of its own images": "own",
    "the mean of public images": "mean",
    "the means of the classes found": "class_mean",
    IMAGINED: "imagined",
}
"""An audit's names for its guesses -> those of the measures."""


@dataclass(frozen=True)
class Read:
    """RMSE over all private images and pixels after optimal assignment [Yue et al., 2025, Eq. 14], in [0, 1].

    Beside it what guesses reach without the message; an attack is to be below the lowest of them. The class means are
    those of the true labels, which the attack is told too.
    """

    accelerated: ClassVar[bool] = True
    attack: ClassVar[None] = None

    reader: AnyAttack
    iterations: int
    """Of all that the reader tries together."""

    def measure(self, target: Target, seed: int, progress: Progress) -> Finding:
        seen, truth = target.observation, target.known_truth
        found = self.reader.run(seen, seed, progress)
        final = found.images.detach().cpu().clamp(0, 1)
        matching = match(final, truth.images)
        private = Matching(matching.partner[: len(truth.private.labels)])
        scores = score(final, truth.private.images, ("rmse", "psnr", "ssim"), private)
        blind = _blind(seen, truth, target, self.reader)
        tested = accuracies(target.utility)
        measures = {
            "rmse": together(scores.values["rmse"]),
            "psnr": statistics.fmean(scores.values["psnr"]),
            "back": 100 * back(final, truth, matching),
            "guess": min(blind.values()),
            **blind,
            "accuracy": tested[max(tested)],
            "at": float(max(tested)),
            "objective": found.energy,
        }
        wrong = int(label_errors(found.labels.cpu(), truth.labels, seen.knows.classes))
        told = {
            "metrics": dict(scores.values),
            "energy": found.energy,
            "energy_truth": energy_at(self.reader, seen, truth.images, truth.labels, found),
            "label_errors": wrong,
            "labels_true": truth.labels.tolist(),
            "extra": {"measures": measures, "skipped": dict(scores.skipped), "rule": found.rule},
        }
        shown = private.apply(final)
        return Finding(told, Strips(truth.private.images[:SHOWN].numpy(), shown[:SHOWN].numpy()))

    def seconds(self, load: Load) -> float:
        size = min(load.training.batch_size or load.examples, load.examples)
        return self.iterations * load.clients * load.steps * SECOND_ORDER * load.gradient(size)


def together(values: Sequence[float]) -> float:
    """The RMSE over several images of equal size from that of each.

    >>> together([3.0, 4.0]) == math.sqrt(12.5)
    True
    """
    return math.sqrt(statistics.fmean(value**2 for value in values))


def _blind(seen: Observation, truth: Truth, target: Target, reader: AnyAttack) -> Mapping[str, float]:
    """The RMSE of guesses that need no message."""
    found = scored_guesses(seen, truth, truth.labels, ("rmse",), target.public, reader)
    return {GUESSED[name]: together(reached["rmse"]) for name, reached in found.items()}
