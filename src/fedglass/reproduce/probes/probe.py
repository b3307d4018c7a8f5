"""What is measured for a published table."""

from __future__ import annotations

from typing import Any, Protocol

from fedglass.attack.attack import Attack
from fedglass.audit.cases import Probe
from fedglass.audit.play_attack import run_fields
from fedglass.audit.scoring import energy_at
from fedglass.audit.target import Target
from fedglass.core.types import Reconstruction
from fedglass.metrics.matching import label_errors
from fedglass.reproduce.cost import Workload


class PublishedProbe(Probe, Protocol):
    """A probe whose findings have `measures` in their extra: figures by the names of the published table."""

    @property
    def accelerated(self) -> bool:
        """Whether an accelerator is of use; small networks are quicker without."""
        ...

    @property
    def attack(self) -> Attack | None:
        """What it plays, where it plays an attack."""
        ...

    def seconds(self, load: Workload) -> float:
        """About how long it takes on one core."""
        ...


def of_attack(attack: Attack, target: Target, found: Reconstruction) -> dict[str, Any]:
    """What a record says of an attack's run beside the truth."""
    seen, truth = target.observation, target.known_truth
    return {
        **run_fields(attack, found),
        "labels_true": truth.labels.tolist(),
        "label_errors": int(label_errors(found.labels.cpu(), truth.labels, seen.knows.classes)),
        "energy_truth": energy_at(attack, seen, truth.images, truth.labels, found),
    }
