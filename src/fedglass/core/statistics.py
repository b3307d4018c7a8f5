"""The running statistics of normalisation layers, which travel beside the weights and tell of the data too."""

from __future__ import annotations

import torch
from torch import Tensor

from fedglass.core.params import Params

MEAN, VARIANCE, COUNTER = "running_mean", "running_var", "num_batches_tracked"
"""As torch names a layer's."""
RUNNING = (MEAN, VARIANCE, COUNTER)


def moved_statistics(before: Params, after: Params) -> list[str]:
    """The names of running means and variances that are not what they were.

    >>> moved_statistics({"norm.running_mean": torch.zeros(2)}, {"norm.running_mean": torch.ones(2)})
    ['norm.running_mean']
    """
    names = [name for name in before if name in after and name.rpartition(".")[2] in (MEAN, VARIANCE)]
    return [name for name in names if not _unmoved(before[name], after[name])]


def moved_others(before: Params, after: Params) -> list[str]:
    """The names of buffers that are not what they were and no running statistics: a network's own, of any content.

    A counter is one number: what has the name of one and holds many counts nothing.

    >>> moved_others({"norm.running_mean": torch.zeros(2), "seen": torch.zeros(2)}, {"seen": torch.ones(2)})
    ['seen']
    >>> moved_others({"num_batches_tracked": torch.zeros(2)}, {"num_batches_tracked": torch.ones(2)})
    ['num_batches_tracked']
    """
    names = [name for name in before if name in after and not _running(name, after[name])]
    return [name for name in names if not _unmoved(before[name], after[name])]


def _running(name: str, tensor: Tensor) -> bool:
    kind = name.rpartition(".")[2]
    return kind in (MEAN, VARIANCE) or (kind == COUNTER and tensor.dim() == 0)


def _unmoved(before: Tensor, after: Tensor) -> bool:
    """Whether they are the same, but for having been stored in half precision or averaged over clients."""
    if torch.equal(before, after) or not before.is_floating_point():
        return torch.equal(before, after)
    rounded = (before.half().float(), before.bfloat16().float())
    return torch.allclose(after, before, rtol=1e-5, atol=1e-8) or any(torch.equal(after, each) for each in rounded)
