"""Root mean squared error of pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from fedglass.core.registry import register
from fedglass.core.scale import Scale
from fedglass.metrics.images import farthest, pair
from fedglass.metrics.metric import Metric


def mse(reconstructed: Tensor, original: Tensor, peak: float = 1.0) -> Tensor:
    """Mean squared pixel difference of each image.  # (n, c, h, w) twice -> (n,)

    >>> mse(torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 0.5)).item()
    0.25
    """
    guess, truth = pair(reconstructed, original, peak)
    return (farthest(guess, truth, peak) - truth).square().flatten(1).mean(1)


def rmse(reconstructed: Tensor, original: Tensor) -> Tensor:
    """Root mean squared pixel difference of each image, in units of the pixel range.  # -> (n,)

    >>> rmse(torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 0.5)).item()
    0.5
    """
    return torch.sqrt(mse(reconstructed, original))


register("metrics", "rmse", summary="root mean squared error")(
    Metric(rmse, Scale("RMSE", higher_leaks=False, range=(0.0, 1.0)))
)
