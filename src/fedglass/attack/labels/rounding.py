"""Real-valued counts made whole."""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 2.0**40
"""Counts beyond this carry no information; cut off, they can be added up without overflow."""


def round_to_sum(counts: Tensor, total: int) -> Tensor:
    """Whole non-negative counts of the given sum, as DLFA's release makes them [Dimitrov et al., 2022].

    Rounded down and clamped at zero, then one more for the largest remainders, or one less for positive counts
    with the smallest remainders, until the sum is right.

    >>> round_to_sum(torch.tensor([1.6, 0.7, -0.2]), 3)
    tensor([2, 1, 0])
    >>> round_to_sum(torch.tensor([2.1, 1.9]), 2)
    tensor([1, 1])
    """
    counts = counts.detach().double().cpu().clamp(-LARGEST, LARGEST)
    whole = counts.floor().clamp(min=0).long()
    while (missing := total - int(whole.sum())) != 0:
        remainder = counts - whole
        open_rows = torch.arange(len(whole)) if missing > 0 else whole.nonzero().flatten()
        sign = 1 if missing > 0 else -1
        # As many full turns over all classes at once as fit, which leave the order of the remainders alone.
        turns = abs(missing) // len(open_rows)
        if missing < 0:
            turns = min(turns, int(whole[open_rows].min()))
        if turns:
            whole[open_rows] += sign * turns
            continue
        order = remainder[open_rows].argsort(descending=missing > 0, stable=True)
        whole[open_rows[order[: abs(missing)]]] += sign
    return whole
