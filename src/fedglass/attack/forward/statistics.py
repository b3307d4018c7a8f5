"""Predictions of another operator, followed by the BatchNorm statistics that come with an update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedglass.attack.forward.target import local_steps, network_of
from fedglass.attack.needs import reads_of
from fedglass.attack.parts import BoundForward, Forward
from fedglass.core.facts import Fact
from fedglass.core.tensors import COUNTER, MEAN, VARIANCE, moved_statistics
from fedglass.core.types import BatchNorm, Candidate, Observation, Training


@dataclass(frozen=True)
class BesideStatistics:
    """The prediction of `forward`, followed by mean and variance of the input of each BatchNorm layer.

    A step in train mode moves a layer's running statistics to r' = (1 - m) r + m s, with s those of the batch, so that
    r' gives the mean of s over T steps, (r' - (1 - m)^T r) / (1 - (1 - m)^T). Defences of the update do not change it.
    Exact for one step of one client on all of its examples. For more steps s is taken half way along the update. Of an
    aggregate only the mean is read: the variance within a client's batches is not that of all examples.
    Where no statistics have moved, this is `forward` alone.
    """

    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.STATISTICS})

    forward: Forward

    def reads(self, observation: Observation) -> frozenset[Fact]:
        return reads_of(self.forward, observation)

    def bind(self, observation: Observation) -> BoundForward:
        inner, observed = self.forward.bind(observation), batch_statistics(observation)
        if not observed:
            return inner
        network = network_of(_with_batch_statistics(observation))
        steps = steps_taken(observation)
        travelled = (steps - 1) / (2 * steps)  # the mean of 0, 1, ... T - 1 over T
        before, update = observation.before, observation.update
        weights = [before[name] + travelled * update[name] for name in network.names]
        with torch.no_grad():  # without layers that run twice in a pass, or never: they cannot be matched
            once = network.statistics(weights, weights[0].new_zeros(2, *observation.knows.shape))
        target = {name: tensor for name, tensor in observed.items() if name.rpartition(".")[0] in once}

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            statistics = network.statistics(weights, candidate.images[0])
            buffers = (name.rpartition(".") for name in target)
            moments = [statistics[layer][0 if kind == MEAN else 1] for layer, _, kind in buffers]
            return [*inner.predict(candidate, unknowns), *moments]

        return replace(inner, target=(*inner.target, *target.values()), names=(*inner.names, *target), predict=predict)


def steps_taken(observation: Observation) -> int:
    """Return T, the local steps: those that the layers have counted, or else those that the adversary knows."""
    before, after = observation.buffers, observation.buffers_after
    counted = {
        round(float(after[name]) - float(before[name]))
        for name in before
        if name.endswith(COUNTER) and name in after and observation.knows.clients == 1
    }
    return max([0, *counted]) or max(local_steps(observation) or 1, 1)


def batch_statistics(observation: Observation) -> Mapping[str, Tensor]:
    """Return the mean over the local steps of each batch's statistics, by the name of the buffer that holds it."""
    before, after, steps = observation.buffers, observation.buffers_after, steps_taken(observation)
    decay = {
        name: (1 - layer.momentum) ** steps
        for name, layer in observation.model.named_modules()
        if isinstance(layer, _BatchNorm) and layer.momentum
    }
    kinds = (MEAN, VARIANCE) if observation.knows.clients == 1 else (MEAN,)
    return {
        name: (after[name] - decay[layer] * before[name]) / (1 - decay[layer])
        for name in moved_statistics(before, after)
        for layer, _, kind in [name.rpartition(".")]
        if layer in decay and kind in kinds
    }


def _with_batch_statistics(observation: Observation) -> Observation:
    """Suppose a training in train mode: statistics that have moved were moved in it, whatever else is known."""
    training = observation.knows.training or Training(lr=1.0)
    knows = replace(observation.knows, training=replace(training, batch_norm=BatchNorm.BATCH))
    return replace(observation, knows=knows)
