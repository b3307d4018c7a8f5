"""How many labels are read off a message, without images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedglass.attack.parts import Labels, Progress
from fedglass.audit.probe import Finding
from fedglass.audit.target import Target
from fedglass.core.rng import stream
from fedglass.metrics.labels import label_errors
from fedglass.reproduce.cost import Load


@dataclass(frozen=True)
class CountLabels:
    """Half the L1 distance between the recovered label counts and the true ones [Dimitrov et al., 2022, Table 2]."""

    accelerated: ClassVar[bool] = False
    attack: ClassVar[None] = None

    labels: Labels

    def measure(self, target: Target, seed: int, progress: Progress) -> Finding:
        seen, truth = target.observation, target.known_truth
        found = self.labels.bind(seen, stream(seed, "labels")).decode([])
        errors = label_errors(found, truth.labels, seen.knows.classes)
        fields = {"labels_true": truth.labels.tolist(), "labels_recovered": found.tolist(), "label_errors": errors}
        return Finding({**fields, "extra": {"measures": {"label_errors": float(errors)}}})

    def seconds(self, load: Load) -> float:
        return 60 * load.gradient(50)  # 3000 dummy images, twice, without a gradient
