"""The mean absolute error of pixels."""

from __future__ import annotations

from torch import Tensor

from fedglass import Metric, Scale, register


def mae(reconstructed: Tensor, original: Tensor) -> Tensor:
    """Mean absolute pixel difference of each image; a broken pixel counts as one of the other colour.  # -> (n,)"""
    return (reconstructed - original).abs().nan_to_num(1.0).clamp(max=1.0).flatten(1).mean(1)


MAE = register("metrics", "mae", summary="mean absolute error of the pixels")(
    Metric(mae, Scale("MAE", digits=4, higher_leaks=False, range=(0.0, 1.0), sure=(0.3, 0.02)))
)
