"""SPEAR: a whole batch behind a dense layer with ReLU, from the zeros of its gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedglass.attack.exact.dense import dense_inputs, first_dense
from fedglass.attack.exact.division import as_images, within_bounds
from fedglass.attack.exact.method import Search, Solved
from fedglass.attack.exact.verify import message_of
from fedglass.core.registry import register
from fedglass.core.types import Observation

PAPER = (
    "Dimitrov, Baader, Müller, Vechev: SPEAR: Exact Gradient Inversion of Batches in Federated Learning, NeurIPS 2024, "
    "https://arxiv.org/abs/2403.03945"
)


@register(
    "exact",
    "spear",
    summary="a whole batch from the zeros that ReLU leaves in the first dense layer's update",
    paper=PAPER,
)
@dataclass(frozen=True)
class Spear:
    """All examples of a batch from the rank and the zeros of the first dense layer's update [Dimitrov et al., 2024].

    Rows that a single example has moved shorten the search. It takes about 2^b draws for b examples without such rows.
    """

    name: ClassVar[str] = "spear"
    paper: ClassVar[str] = PAPER
    cost: ClassVar[float] = 30.0

    def applies(self, observation: Observation) -> str:
        layer = first_dense(observation)
        if isinstance(layer, str):
            return layer
        if observation.knows.examples == 1:
            return "a single example is read by division"
        if not layer.relu:
            return "no ReLU follows the first dense layer"
        if layer.bias is None or layer.bias_before is None:
            return "the first dense layer trains no bias"
        if observation.knows.examples > min(layer.weight.shape):
            return "there are more examples than units or pixels"
        return ""

    def solve(self, observation: Observation, search: Search) -> Solved | None:
        layer, knows = first_dense(observation), observation.knows
        if isinstance(layer, str) or layer.bias is None or layer.bias_before is None or layer.bias_error is None:
            return None
        message = message_of(observation)

        def accept(inputs: Tensor) -> bool:
            return message.verified(message.replay(as_images(knows, inputs)).residual)

        found = dense_inputs(
            layer.weight,
            layer.bias,
            layer.weight_before,
            layer.bias_before,
            knows.examples,
            search,
            (layer.weight_error, layer.bias_error),
            layer.relu,
            layer.after,
            knows.local_steps,
            accept,
        )
        inputs = found.inputs[within_bounds(knows, found.inputs)]
        if found.guesses is not None:
            guesses = found.guesses[within_bounds(knows, found.guesses)]
            inputs = guesses if len(guesses) > len(inputs) else inputs
        if not len(inputs):
            return None
        images, again = message.replay_levels(as_images(knows, inputs))
        whole = found.complete and len(inputs) == knows.examples
        sure = message.verified(again.residual) or (whole and not message.contradicts(again.residual))
        residual = again.residual if math.isfinite(again.residual) else found.residual
        return Solved(images, again.labels, residual, sure, dict(found.details))
