"""Labels that the adversary is told."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedglass.attack.labels.known import known
from fedglass.attack.parts import Bound
from fedglass.core.errors import UsageError
from fedglass.core.types import Observation


@dataclass(frozen=True)
class OracleLabels:
    """The true labels, in no particular order: ORACLE knowledge, and marked as such in the report."""

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        labels = observation.knows.labels
        if labels is None:
            raise UsageError(
                "OracleLabels needs the true labels, but the adversary does not know them: set "
                "adversary.knows_labels = true, or choose labels that are recovered from the message."
            )
        return known(labels)
