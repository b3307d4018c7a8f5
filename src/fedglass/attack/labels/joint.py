"""Labels that are optimised together with the images."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedglass.attack.images.pixels import like
from fedglass.attack.parts import Bound
from fedglass.core.papers import DLG
from fedglass.core.registry import register
from fedglass.core.types import Observation, Unknown


@register("labels", "joint", summary="free logits, optimised together with the images", paper=DLG)
@dataclass(frozen=True)
class JointLabels:
    """Softmax of free logits, started from N(0, 1) [Zhu et al., 2019, Algorithm 1].

    `rate` is relative to the solver's.
    """

    rate: float = 1.0

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        knows = observation.knows
        start = torch.randn(knows.examples, knows.classes, generator=generator).to(like(observation))
        return Bound((Unknown(start, rate=self.rate),), lambda tensors: tensors[0].softmax(dim=-1))
