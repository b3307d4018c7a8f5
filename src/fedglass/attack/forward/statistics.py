"""The running statistics of BatchNorm layers, which come with an update, beside what another operator predicts."""

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
    """What `forward` predicts, and after it mean and variance of what each BatchNorm layer is given.

    A step in train mode moves a layer's running statistics to r' = (1 - m) r + m s, with s those of the batch, so that
    r' tells the mean of s over T steps, (r' - (1 - m)^T r) / (1 - (1 - m)^T). Defences of the update leave it as it is.
    Exact for one step of one client on all of its examples. For more steps s is taken half way along the update; the
    variance within a client's batches is not that of all examples behind an aggregate, of which the mean alone is read.
    Where no statistics have moved it is `forward` alone.
    """

    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.STATISTICS})

    forward: Forward

    def reads(self, observation: Observation) -> frozenset[Fact]:
        return reads_of(self.forward, observation)

    def bind(self, observation: Observation) -> BoundForward:
        inner, told = self.forward.bind(observation), batch_statistics(observation)
        if not told:
            return inner
        network = network_of(_by_the_batch(observation))
        steps = steps_taken(observation)
        travelled = (steps - 1) / (2 * steps)  # the mean of 0, 1, ... T - 1 over T
        before, update = observation.before, observation.update
        weights = [before[name] + travelled * update[name] for name in network.names]
        with torch.no_grad():  # a layer that runs twice in a pass, or never, tells nothing that could be matched
            once = network.statistics(weights, weights[0].new_zeros(2, *observation.knows.shape))
        seen = {name: tensor for name, tensor in told.items() if name.rpartition(".")[0] in once}

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            found = network.statistics(weights, candidate.images[0])
            rows = (name.rpartition(".") for name in seen)
            moments = [found[layer][0 if kind == MEAN else 1] for layer, _, kind in rows]
            return [*inner.predict(candidate, unknowns), *moments]

        return replace(inner, target=(*inner.target, *seen.values()), names=(*inner.names, *seen), predict=predict)


def steps_taken(observation: Observation) -> int:
    """T: what the layers have counted, or what the adversary knows."""
    before, after = observation.buffers, observation.buffers_after
    counted = {
        round(float(after[name]) - float(before[name]))
        for name in before
        if name.endswith(COUNTER) and name in after and observation.knows.clients == 1
    }
    most = max(counted, default=0)
    known = local_steps(observation)
    return most if most > 0 else known if known is not None and known > 0 else 1


def batch_statistics(observation: Observation) -> Mapping[str, Tensor]:
    """The mean over the local steps of each batch's statistics, by the name of the buffer that tells it."""
    before, after, steps = observation.buffers, observation.buffers_after, steps_taken(observation)
    kept = {
        name: (1 - layer.momentum) ** steps
        for name, layer in observation.model.named_modules()
        if isinstance(layer, _BatchNorm) and layer.momentum
    }
    kinds = (MEAN, VARIANCE) if observation.knows.clients == 1 else (MEAN,)
    return {
        name: (after[name] - kept[layer] * before[name]) / (1 - kept[layer])
        for name in moved_statistics(before, after)
        for layer, _, kind in [name.rpartition(".")]
        if layer in kept and kind in kinds
    }


def _by_the_batch(observation: Observation) -> Observation:
    """What moved was moved in train mode, whatever is known of the training."""
    training = observation.knows.training or Training(lr=1.0)
    knows = replace(observation.knows, training=replace(training, batch_norm=BatchNorm.BATCH))
    return replace(observation, knows=knows)
