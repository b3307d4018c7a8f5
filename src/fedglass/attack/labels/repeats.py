"""Labels that occur more than once, for rules that put the classes in order and take each of them once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedglass.attack.forward.target import head_of, is_gradient, network_of
from fedglass.attack.labels.counts import head_statistics, is_clipped, unsmoothed
from fedglass.attack.labels.rounding import round_to_sum
from fedglass.attack.parts import Bound
from fedglass.core.notes import TAKEN_AS_DISTINCT
from fedglass.core.types import Observation

DUMMIES = 100
"""How many random images stand in for the client's: their mean answer is asked for, to the nearest whole count."""


def first_of(order: Tensor, observation: Observation, generator: torch.Generator) -> Bound:
    """The first n classes of an order, or, where the message says so clearly, some of them more than once.

    For softmax and cross entropy the last layer's bias has the mean gradient b_k = p_k - N_k / n, p the mean
    softmax, so that N_k = n (p_k - b_k) [Geng et al., 2021]. Only counts that are near to whole numbers which add
    up to n are believed, and only where one of them exceeds 1 do they overrule the order: labels that are all
    different stay what the order says. With nothing to believe the first n are taken, as published, and noted.
    """
    n = observation.knows.examples
    distinct = order.repeat(-(-n // len(order)))[:n]  # more examples than classes: round again in the same order
    if n == 1:
        return Bound((), lambda tensors: distinct)
    whole = believable_counts(observation, generator)
    if whole is None:
        return Bound((), lambda tensors: distinct, notes=(TAKEN_AS_DISTINCT,))
    if int(whole.max()) < 2:
        return Bound((), lambda tensors: distinct)
    repeated = torch.repeat_interleave(order, whole.to(order.device)[order])
    return Bound((), lambda tensors: repeated)


def believable_counts(observation: Observation, generator: torch.Generator) -> Tensor | None:
    """How often each class occurs; None where no estimate is near to whole numbers that add up.  # (classes,)"""
    n = observation.knows.examples
    probability, _ = head_statistics(observation, generator, 0.0, DUMMIES)
    for gradient in _mean_gradients(observation, probability):
        counts = unsmoothed(n * (probability - gradient), observation).detach().cpu()
        whole = round_to_sum(counts, n)
        if bool((counts - whole).abs().max() < 0.5):  # false for NaN too
            return whole
    return None


def _mean_gradients(observation: Observation, probability: Tensor) -> Iterator[Tensor]:
    """b_k in the size that is known, then in the size that the absent classes give it.  # (classes,)

    Where the last hidden activations are not negative, a class is absent whose row of weights has no negative
    entry unless others outweigh it. There b_k = p_k, which settles the size of a message whose size is not known, or
    was changed by a defence. Without a bias the sums of the rows stand in for it.
    """
    weight, bias = head_of(observation, network_of(observation))
    rows = -observation.update[weight]  # (classes, features)
    sums = rows.sum(1) if bias is None else -observation.update[bias]
    travel = observation.knows.travel
    if bias is not None and travel is not None and not is_clipped(observation):
        yield sums / travel
    absent = rows.amin(1) >= 0
    if is_gradient(observation) and bool(absent.any()):
        yield sums * (probability[absent].sum() / sums[absent].sum())
