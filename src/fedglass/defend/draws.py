"""Random tensors from a generator, in the type and on the device of another tensor.

They are drawn where the generator lives, so that one seed gives one result on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Independent standard normal entries."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=generator.device).to(like.device)


def uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    """Independent entries, uniform in [0, 1)."""
    return torch.rand(like.shape, generator=generator, dtype=like.dtype, device=generator.device).to(like.device)


def laplace(like: Tensor, generator: torch.Generator) -> Tensor:
    """Independent Laplace entries of scale 1: the difference of two exponential ones, which is never infinite."""
    pair = torch.empty((2, *like.shape), dtype=like.dtype, device=generator.device).exponential_(generator=generator)
    return (pair[0] - pair[1]).to(like.device)
