"""The labels of a batch, read off the smallest entries of the last layer's gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedglass.attack.forward.target import head_gradient
from fedglass.attack.labels.repeats import first_of
from fedglass.attack.labels.signs import counted_instead
from fedglass.attack.parts import Bound
from fedglass.core.registry import register
from fedglass.core.types import Observation


@register(
    "labels",
    "minimum_rule",
    summary="classes with the most negative single entry in the last layer's gradient, repeated where it says so",
    paper=(
        "Yin, Mallya, Vahdat, Alvarez, Kautz, Molchanov: See through Gradients (GradInversion), CVPR 2021, "
        "https://arxiv.org/abs/2104.07586"
    ),
)
@dataclass(frozen=True)
class MinimumRule:
    """The n classes with the most negative entry in their row of the last layer's gradient [Yin et al., 2021].

    As `SignRule`, with the minimum over the features in place of the sum: an example's negative entry is less
    easily outweighed by the positive ones of the other examples. The paper takes all labels to be different. So
    does this, unless the gradient of the last layer says clearly that one of them is repeated (`first_of`).
    """

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        order = torch.argsort(head_gradient(observation).amin(dim=1))  # (classes,)
        return first_of(order, observation, generator)

    def instead(self, observation: Observation) -> str:
        return counted_instead(observation)
