"""Order statistics of large tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def kth_smallest(values: Tensor, k: int) -> Tensor:
    """The k-th smallest of a flat tensor, counted from 1, as a tensor without dimensions and without gradient.

    On a CPU by numpy, whose selection is vectorised: several times faster than torch's, which also tracks places.

    >>> kth_smallest(torch.tensor([5.0, 1.0, 3.0]), 2)
    tensor(3.)
    """
    values = values.detach()
    if values.device.type != "cpu":
        return torch.kthvalue(values, k).values
    return torch.as_tensor(np.partition(values.numpy(), k - 1)[k - 1], dtype=values.dtype)
