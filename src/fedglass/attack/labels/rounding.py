"""Real-valued counts made whole."""

from __future__ import annotations

import torch
from torch import Tensor


def round_to_sum(counts: Tensor, total: int) -> Tensor:
    """Whole non-negative counts of the given sum, as DLFA's release makes them [Dimitrov et al., 2022].

    Rounded down and clamped at zero, then one more for the largest remainders, or one less for positive counts
    with the smallest remainders, until the sum is right.

    >>> round_to_sum(torch.tensor([1.6, 0.7, -0.2]), 3)
    tensor([2, 1, 0])
    >>> round_to_sum(torch.tensor([2.1, 1.9]), 2)
    tensor([1, 1])
    """
    counts = counts.detach().double().cpu()
    whole = counts.floor().clamp(min=0).long()
    while (missing := total - int(whole.sum())) != 0:
        remainder = counts - whole
        if missing > 0:
            rows = remainder.argsort(descending=True)[:missing]
            whole[rows] += 1
        else:
            positive = torch.where(whole > 0, remainder, torch.inf)
            rows = positive.argsort()[: min(-missing, int((whole > 0).sum()))]
            whole[rows] -= 1
    return whole
