"""The share of images that count as recovered."""

from __future__ import annotations

from collections.abc import Sequence

from fedglass.core.errors import DataError

DLFA_FEMNIST_DB, DLFA_CIFAR100_DB = 20.0, 19.0
"""PSNR above which DLFA calls an image recovered."""


def share_above(values: Sequence[float], threshold: float) -> float:
    """Share of values strictly above the threshold: PSNR or SSIM. NaN is never above.

    >>> share_above([19.0, 20.0, 25.0, 31.0], threshold=20.0)
    0.5
    """
    if not values:
        raise DataError("Expected at least one value to take the recovered share of, got none.")
    return sum(value > threshold for value in values) / len(values)
