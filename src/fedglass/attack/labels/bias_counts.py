"""How often each label occurs, read off the gradient of the last layer's bias alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.forward.target import head_of, network_of
from fedglass.attack.labels.counts import GENG, head_statistics, is_clipped, unsmoothed
from fedglass.attack.labels.known import known
from fedglass.attack.labels.rounding import round_to_sum
from fedglass.attack.parts import Bound
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact, refusal
from fedglass.core.registry import register
from fedglass.core.types import Observation


@register("labels", "bias_counts", summary="label counts from the last layer's bias, at the weights before", paper=GENG)
@dataclass(frozen=True)
class BiasCounts:
    """N_k = N (p_k - b_k), b the mean gradient of the last layer's bias and p the mean softmax at the weights before.

    For softmax and cross entropy b_k is the mean of p_k(x_j) - [y_j = k], without the hidden activations that
    `CountsBefore` has to guess; random images stand in for the x_j in p, as there [Geng et al., 2021]. The
    "bias-corrected" strategy of the Breaching framework (unpublished, after Wainakh et al., 2022) hands labels out by
    a guessed impact of one example instead, and miscounts where the network answers evenly: it is not followed.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.SIZE})

    def check(self, observation: Observation) -> None:
        """Raise what `bind` would raise of this network, without its work."""
        mean_bias_gradient(observation)

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        n, gradient = observation.knows.examples, mean_bias_gradient(observation)
        probability, _ = head_statistics(observation, generator, 0.0)
        whole = round_to_sum(unsmoothed(n * (probability - gradient), observation), n)
        labels = torch.repeat_interleave(torch.arange(len(whole)), whole)
        # In random order: which batch a label belongs to is not known.
        return known(labels[torch.randperm(n, generator=generator)].to(probability.device))


def mean_bias_gradient(observation: Observation) -> Tensor:
    """The mean over the local steps of the gradient of the last layer's bias.  # (classes,)"""
    _, bias = head_of(observation, network_of(observation))
    if bias is None:
        raise UsageError(
            "Label counts from the bias need a last layer that has one, and this network's has none: choose another "
            "way to find the labels, such as minimum_rule."
        )
    travel = observation.knows.travel
    if travel is None or is_clipped(observation):
        raise refusal("Counting labels", [Fact.SIZE])
    return observation.update[bias] / -travel
