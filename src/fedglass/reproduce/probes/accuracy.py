"""How good the model of a federation is, at its end and on the way: no attack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedglass.attack.parts import Progress
from fedglass.audit.probe import Finding
from fedglass.audit.target import Target
from fedglass.reproduce.cost import Load
from fedglass.reproduce.courses import ACCURACY


@dataclass(frozen=True)
class Accuracy:
    """Test accuracy in % after the last round, and every tenth on the way."""

    accelerated: ClassVar[bool] = False
    attack: ClassVar[None] = None

    def measure(self, target: Target, seed: int, progress: Progress) -> Finding:
        points = accuracies(target.utility)
        last = max(points)
        measures = {"accuracy": points[last], **{f"accuracy_{at}": value for at, value in points.items()}}
        return Finding({"extra": {"measures": measures}})

    def seconds(self, load: Load) -> float:
        return 1.0


def accuracies(utility: Mapping[str, float]) -> dict[int, float]:
    """In %, by the number of rounds.

    >>> accuracies({"test accuracy after 10": 0.5})
    {10: 50.0}
    """
    start = f"{ACCURACY} after "
    return {int(name.removeprefix(start)): 100 * v for name, v in utility.items() if name.startswith(start)}
