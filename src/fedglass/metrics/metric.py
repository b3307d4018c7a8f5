"""What a metric is: a figure for each image, and how to read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from fedglass.core.scale import Scale

Shape = tuple[int, ...]
"""Of one image, (c, h, w)."""


def always(shape: Shape) -> str | None:
    """The reason of a metric that all images have: none."""
    return None


@dataclass(frozen=True)
class Metric:
    """A per-image figure, how to read it, and when it can not be had."""

    compute: Callable[[Tensor, Tensor], Tensor]
    """Reconstructed and original images, matched, (n, c, h, w) each, pixels in [0, 1] -> (n,)"""
    scale: Scale
    why_not: Callable[[Shape], str | None] = always
    """From the shape of one image: why there is no such figure, or None."""
