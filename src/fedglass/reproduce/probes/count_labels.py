"""How many labels are read off a message, without images."""

from __future__ import annotations

from dataclasses import dataclass

from fedglass.attack.parts import Labels, Progress
from fedglass.core.rng import stream
from fedglass.core.types import Observation
from fedglass.metrics.labels import label_errors
from fedglass.reproduce.experiment import Finding
from fedglass.rounds.truth import Truth


@dataclass(frozen=True)
class CountLabels:
    """Half the L1 distance between the recovered label counts and the true ones [Dimitrov et al., 2022, Table 2]."""

    labels: Labels

    def measure(self, seen: Observation, truth: Truth, seed: int, progress: Progress) -> Finding:
        found = self.labels.bind(seen, stream(seed, "labels")).decode([])
        errors = label_errors(found, truth.labels, seen.knows.classes)
        record = {"labels_true": truth.labels.tolist(), "labels_recovered": found.tolist(), "label_errors": errors}
        return Finding({"label_errors": float(errors)}, record=record)
