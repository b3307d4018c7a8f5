"""Label counts from weights and bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.forward.target import head_of, network_of
from fedglass.attack.images.pixels import like
from fedglass.attack.labels.counts import (
    Counts,
    InterpolatedCounts,
    required_steps,
    mean_bias_gradient,
    mean_counts,
    round_to_sum,
    unsmoothed,
)
from fedglass.attack.labels.given import fixed_labels
from fedglass.attack.parts import Bound
from fedglass.core.facts import Fact
from fedglass.core.registry import register
from fedglass.core.types import Observation, Own

MA = (
    "Ma, Sun, Cui, Li, Guan, Liu: Instance-wise Batch Label Restoration via Gradients in Federated Learning, "
    "ICLR 2023, https://openreview.net/forum?id=FIrQfNSOoTr"
)


@register("labels", "instance_counts", summary="label counts from the last layer's weights and bias (iLRG)", paper=MA)
@dataclass(frozen=True)
class InstanceCounts:
    """Counts n that solve sum_j n_j = N and sum_j p_j[i] n_j - n_i = N b_i for every class i [Ma et al., 2023].

    b is the mean gradient of the last layer's bias and G that of its weights; e_j = G_j / b_j estimates the features
    of the examples of class j, and p_j = softmax(W e_j + bias) the network's answer to them. Solved by least squares,
    then rounded to the right sum: the release's rounding is wrong where the rounded counts add up to less. Of several
    local steps the mean is taken for one gradient.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.SIZE})

    def check(self, observation: Observation) -> None:
        """Refuse what `bind` would refuse of this network, without its work."""
        mean_bias_gradient(observation)

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        n, bias_gradient = observation.knows.examples, mean_bias_gradient(observation)
        counts = solve_counts(predictions_by_class(observation, bias_gradient), bias_gradient.double(), n)
        return labels_from_counts(counts, observation, generator)


def predictions_by_class(observation: Observation, bias_gradient: Tensor) -> Tensor:
    """Return p_j, the softmax for the examples of class j, one row for each class.  # (classes, classes), double"""
    weight, bias = head_of(observation, network_of(observation))
    assert bias is not None, "the gradient of the bias was computed before"
    travel = observation.knows.travel
    assert travel is not None, "the size of the bias's gradient was known before"
    gradient = observation.update[weight].double() / -travel  # (classes, features)
    features = gradient / bias_gradient.double()[:, None]
    # A class without any gradient shows nothing of its examples' features: the median of all classes is used.
    sound = features.isfinite().all(1)
    middle = features[sound].median(0).values if bool(sound.any()) else torch.zeros_like(features[0])
    features = torch.where(sound[:, None], features, middle)
    logits = features @ observation.before[weight].double().T + observation.before[bias].double()
    return logits.softmax(-1)


def solve_counts(answers: Tensor, bias_gradient: Tensor, examples: int) -> Tensor:
    """Return the counts before rounding, none of them negative.  # (classes, classes), (classes,) -> (classes,)

    >>> answers = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    >>> gradient = torch.tensor([1 / 3 - 1 / 2, 1 / 3 - 1 / 2, 1 / 3], dtype=torch.float64)  # labels 0 and 1
    >>> solve_counts(answers, gradient, 2).round(decimals=6) + 0.0
    tensor([1., 1., 0.], dtype=torch.float64)
    """
    classes = len(answers)
    total = torch.ones(1, classes, dtype=answers.dtype, device=answers.device)
    rows = torch.cat([total, answers.T - torch.eye(classes, dtype=answers.dtype, device=answers.device)])
    right = torch.cat([bias_gradient.new_ones(1), bias_gradient]) * examples
    counts: Tensor = torch.linalg.lstsq(rows.cpu(), right.cpu()[:, None], driver="gelsd").solution[:, 0]
    return counts.clamp(min=0).to(answers.device)


@register("labels", "own_counts", summary="label counts from the last layer, a participant's own images standing in")
@dataclass(frozen=True)
class OwnCounts(Counts):
    """`InterpolatedCounts` with the adversary's own images instead of noise, where it is a participant.

    Mean softmax p and mean sum of activations O are then those of pictures like the unknown ones; noise excites the
    hidden units more than photographs do, which makes every count too small. No bias is needed.
    """

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        contribution = observation.own
        if contribution is None or not len(contribution.labels):
            return InterpolatedCounts().bind(observation, generator)
        return labels_from_counts(counts_by_own_images(contribution.images, observation), observation, generator)


@register("labels", "last_layer", summary="instance_counts where the last layer has a bias, else own_counts")
@dataclass(frozen=True)
class LastLayerCounts(Counts):
    """`InstanceCounts` where the last layer has a bias, `OwnCounts` where it has none."""

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        _, bias = head_of(observation, network_of(observation))
        part = OwnCounts() if bias is None else InstanceCounts()
        return part.bind(observation, generator)


def counts_by_own_images(images: Tensor, observation: Observation) -> Tensor:
    """Return the mean of N p - N dW / (T O) over the way from the weights before to those after.  # (classes,)"""
    steps = required_steps(observation)
    before, after = (_statistics(images, observation, share) for share in (0.0, 1.0))
    shares = [i / steps for i in range(steps)]
    return mean_counts(observation, before, after, shares, steps, "the adversary's own images")


def _statistics(images: Tensor, observation: Observation, share: float) -> tuple[Tensor, Tensor]:
    """Return mean softmax and mean sum of the last hidden activations over the adversary's own images."""
    network = network_of(observation)
    weights = [observation.before[name] + share * observation.update[name] for name in network.names]
    inputs = observation.knows.whitening.whiten(images.to(like(observation)))
    with torch.no_grad():
        logits, hidden = network.features(weights, inputs)
    return logits.softmax(-1).mean(0), hidden.flatten(1).sum(1).mean()
