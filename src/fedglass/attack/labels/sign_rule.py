"""The label of a single example, read off the signs of the last layer's gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedglass.attack.forward.target import head_gradient
from fedglass.attack.labels.repeats import first_of
from fedglass.attack.labels.signs import counted_instead
from fedglass.attack.parts import Bound
from fedglass.core.papers import IDLG
from fedglass.core.registry import register
from fedglass.core.types import Observation


@register(
    "labels",
    "sign_rule",
    summary="classes with the most negative gradient in the last layer, repeated where it says so",
    paper=IDLG,
)
@dataclass(frozen=True)
class SignRule:
    """The class whose row of the last layer's gradient points against all others [Zhao et al., 2020].

    The rows of one example are multiples of its features, by a factor that is negative for the true class alone.
    Several examples have no such rows: there the n classes with the most negative sums are taken, each once, which
    supposes features that are not negative. Two rows that point against each other can not be told apart: of two
    classes, the sum decides too. Labels are repeated only where the gradient says so clearly (`first_of`).
    """

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        rows, n = head_gradient(observation), observation.knows.examples  # (classes, features)
        lonely = n == 1 and len(rows) > 2
        order = torch.argsort(_agreement(rows) if lonely else rows.sum(dim=1))
        return first_of(order, observation, generator)

    def instead(self, observation: Observation) -> str:
        return counted_instead(observation)


def _agreement(rows: Tensor) -> Tensor:
    """The sum of each row's cosines with all rows.

    >>> _agreement(torch.tensor([[1.0, -1.0], [2.0, -2.0], [-3.0, 3.0]]))[2] < 0
    tensor(True)
    """
    directions = normalize(rows, dim=1)
    return directions @ directions.sum(dim=0)
