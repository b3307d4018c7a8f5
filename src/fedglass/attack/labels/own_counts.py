"""How often each label occurs, from the last layer's weights alone, with images of the adversary's own to compare."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.forward.target import head_of, network_of
from fedglass.attack.images.pixels import like
from fedglass.attack.labels.counts import (
    Counts,
    InterpolatedCounts,
    known_steps,
    mean_counts,
    unsmoothed,
)
from fedglass.attack.labels.instance_counts import InstanceCounts
from fedglass.attack.labels.known import known
from fedglass.attack.labels.rounding import round_to_sum
from fedglass.attack.parts import Bound
from fedglass.core.registry import register
from fedglass.core.types import Observation, Own


@register("labels", "own_counts", summary="label counts from the last layer, a participant's own images standing in")
@dataclass(frozen=True)
class OwnCounts(Counts):
    """`InterpolatedCounts` with the adversary's own images in place of noise, where it is a participant.

    Mean softmax p and mean sum of activations O are then those of pictures like the ones sought; noise excites the
    hidden units more than photographs do, which makes every count too small. No bias is needed.
    """

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        own = observation.own
        if own is None or not len(own.labels):
            return InterpolatedCounts().bind(observation, generator)
        n, counts = observation.knows.examples, counts_by(own, observation)
        whole = round_to_sum(unsmoothed(counts, observation), n)
        labels = torch.repeat_interleave(torch.arange(len(whole)), whole)
        # In random order: which batch a label belongs to is not known.
        return known(labels[torch.randperm(n, generator=generator)].to(counts.device))


@register("labels", "last_layer", summary="instance_counts where the last layer has a bias, else own_counts")
@dataclass(frozen=True)
class LastLayerCounts(Counts):
    """`InstanceCounts` where the last layer has a bias, `OwnCounts` where it has none."""

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        _, bias = head_of(observation, network_of(observation))
        part = OwnCounts() if bias is None else InstanceCounts()
        return part.bind(observation, generator)


def counts_by(own: Own, observation: Observation) -> Tensor:
    """N p - N dW / (T O) in the mean over the way from the weights before to those after.  # (classes,)"""
    steps = known_steps(observation)
    before, after = (_statistics(own, observation, share) for share in (0.0, 1.0))
    shares = [i / steps for i in range(steps)]
    return mean_counts(observation, before, after, shares, steps, "the adversary's own images")


def _statistics(own: Own, observation: Observation, share: float) -> tuple[Tensor, Tensor]:
    """Mean softmax and mean sum of the last hidden activations over the adversary's own images."""
    network = network_of(observation)
    weights = [observation.before[name] + share * observation.update[name] for name in network.names]
    inputs = observation.knows.whitening.whiten(own.images.to(like(observation)))
    with torch.no_grad():
        logits, hidden = network.features(weights, inputs)
    return logits.softmax(-1).mean(0), hidden.flatten(1).sum(1).mean()
