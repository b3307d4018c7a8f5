"""Labels from the signs of the last layer's gradient: they suppose activations of one sign.

Where activations have both signs, counting does better. Of 336 labels behind one local step of six networks, 40 that
the signs gave were wrong, and none that was counted; with activations of one sign they were right where counts were
not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedglass.attack.forward.target import head_gradient, head_of, is_gradient, network_of
from fedglass.attack.labels.counts import head_statistics, is_clipped, round_to_sum, unsmoothed
from fedglass.attack.labels.given import fixed_labels
from fedglass.attack.parts import Bound
from fedglass.core.registry import register
from fedglass.core.rng import stream
from fedglass.core.text import IDLG, Note
from fedglass.core.types import Observation

COUNTING_LABELS = "last_layer"
NOISE_IMAGES = 16
"""Images of noise with which a network's activations are computed."""


def counted_instead(observation: Observation) -> str:
    """Return the name of a labels part that counts, where the last layer's inputs have both signs for noise images."""
    network, shape = network_of(observation), (NOISE_IMAGES, *observation.knows.shape)
    noise = torch.randn(shape, generator=stream(0, "activations")).to(next(iter(observation.before.values())))
    with torch.no_grad():
        _, hidden = network.features([observation.before[name] for name in network.names], noise)
    return COUNTING_LABELS if bool((hidden < 0).any()) else ""


RANDOM_IMAGES = 100
"""Number of random images that replace the client's: their mean softmax must give the nearest whole count."""


def labels_in_order(order: Tensor, observation: Observation, generator: torch.Generator) -> Bound:
    """Return the first n classes of an order, or, where the message shows it clearly, some of them more than once.

    For softmax and cross entropy the last layer's bias has the mean gradient b_k = p_k - N_k / n, p the mean
    softmax, so that N_k = n (p_k - b_k) [Geng et al., 2021]. Only counts near to whole numbers that add up to n are
    believed. They overrule the order only where one of them exceeds 1: labels that are all different stay as the
    order has them. Without believable counts the first n are taken, as published, and noted.
    """
    n = observation.knows.examples
    distinct = order.repeat(-(-n // len(order)))[:n]  # more examples than classes: the same order is repeated
    if n == 1:
        return fixed_labels(distinct)
    counts = believable_counts(observation, generator)
    if counts is None:
        return replace(fixed_labels(distinct), notes=(Note.TAKEN_AS_DISTINCT,))
    repeated = torch.repeat_interleave(order, counts.to(order.device)[order])
    return fixed_labels(distinct if int(counts.max()) < 2 else repeated)


def believable_counts(observation: Observation, generator: torch.Generator) -> Tensor | None:
    """Return the count of each class; None where no estimate is near to whole numbers that add up.  # (classes,)"""
    n = observation.knows.examples
    probability, _ = head_statistics(observation, generator, 0.0, RANDOM_IMAGES)
    for gradient in _mean_gradients(observation, probability):
        counts = unsmoothed(n * (probability - gradient), observation).detach().cpu()
        rounded = round_to_sum(counts, n)
        if bool((counts - rounded).abs().max() < 0.5):  # false for NaN too
            return rounded
    return None


def _mean_gradients(observation: Observation, probability: Tensor) -> Iterator[Tensor]:
    """Yield b_k in the size that is known, then in the size that the absent classes give it.  # (classes,)

    Where the last hidden activations are not negative, a class is absent whose row of weights has no negative
    entry unless others outweigh it. There b_k = p_k, which gives the size of the message where it is not known, or
    was changed by a defence. Without a bias the sums of the rows replace it.
    """
    weight, bias = head_of(observation)
    rows = -observation.update[weight]  # (classes, features)
    sums = rows.sum(1) if bias is None else -observation.update[bias]
    travel = observation.knows.travel
    if bias is not None and travel is not None and not is_clipped(observation):
        yield sums / travel
    absent = rows.amin(1) >= 0
    if is_gradient(observation) and bool(absent.any()):
        yield sums * (probability[absent].sum() / sums[absent].sum())


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
    supposes features that are not negative. Two rows that point against each other cannot be distinguished: of two
    classes, the sum decides too. Labels are repeated only where the gradient shows it clearly (`labels_in_order`).
    """

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        rows, n = head_gradient(observation), observation.knows.examples  # (classes, features)
        by_direction = n == 1 and len(rows) > 2
        order = torch.argsort(_agreement(rows) if by_direction else rows.sum(dim=1))
        return labels_in_order(order, observation, generator)

    def instead(self, observation: Observation) -> str:
        return counted_instead(observation)


def _agreement(rows: Tensor) -> Tensor:
    """Return the sum of each row's cosines with all rows.

    >>> _agreement(torch.tensor([[1.0, -1.0], [2.0, -2.0], [-3.0, 3.0]]))[2] < 0
    tensor(True)
    """
    directions = normalize(rows, dim=1)
    return directions @ directions.sum(dim=0)


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

    `SignRule` with the minimum over the features instead of the sum: an example's negative entry is less
    easily outweighed by the positive ones of the other examples. The paper takes all labels to be different. So
    does this, unless the gradient of the last layer shows clearly that one of them is repeated (`labels_in_order`).
    """

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        order = torch.argsort(head_gradient(observation).amin(dim=1))  # (classes,)
        return labels_in_order(order, observation, generator)

    def instead(self, observation: Observation) -> str:
        return counted_instead(observation)
