"""The running statistics of normalisation layers, which travel beside the weights and tell of the data too."""

from __future__ import annotations

import torch
from torch import Tensor

from fedglass.core.params import Params

MEAN, VARIANCE, COUNTER = "running_mean", "running_var", "num_batches_tracked"
"""As torch names a layer's."""


def moved_statistics(before: Params, after: Params) -> list[str]:
    """The names of running means and variances that are not what they were.

    >>> moved_statistics({"norm.running_mean": torch.zeros(2)}, {"norm.running_mean": torch.ones(2)})
    ['norm.running_mean']
    """
    names = [name for name in before if name in after and name.rpartition(".")[2] in (MEAN, VARIANCE)]
    return [name for name in names if not _unmoved(before[name], after[name])]


def _unmoved(before: Tensor, after: Tensor) -> bool:
    """Whether they are the same, but for having been stored in half precision or averaged over clients."""
    rounded = (before.half().float(), before.bfloat16().float())
    return torch.allclose(after, before, rtol=1e-5, atol=1e-8) or any(torch.equal(after, each) for each in rounded)
