"""The label of a single example, read off the signs of the last layer's gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedglass.attack.forward.target import head_gradient
from fedglass.attack.labels.known import known
from fedglass.attack.parts import Bound
from fedglass.core.types import Observation


@dataclass(frozen=True)
class SignRule:
    """The classes whose row of the last layer's gradient has the most negative sum [Zhao et al., 2020, Eq. 5].

    For one example and non-negative activations the true class is the only negative one. For n examples the
    n most negative classes are taken, each once: repeated labels can not be told from this rule, which the
    paper states for one example.
    """

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        rows = head_gradient(observation).sum(dim=1)  # (classes,)
        n = observation.knows.examples
        # More examples than classes: go round again in the same order.
        order = torch.argsort(rows)
        return known(order.repeat(-(-n // len(order)))[:n])
