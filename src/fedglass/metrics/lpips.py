"""Learned perceptual image patch similarity, version 0.1 [Zhang et al., 2018, Eq. 1]."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import conv2d, interpolate

from fedglass.core.errors import DataError
from fedglass.core.registry import register
from fedglass.core.scale import Scale
from fedglass.metrics.images import demoted, greyed, pair
from fedglass.metrics.lpips_trunks import Trunk
from fedglass.metrics.lpips_weights import HOW_TO_PROVIDE, find_weights, read_weights
from fedglass.metrics.metric import Metric

__all__ = ["HOW_TO_PROVIDE", "Lpips", "find_weights", "why_not"]

SMALLEST = 64
"""Shorter side that smaller images are enlarged to: AlexNet's fifth block sees nothing of 28 x 28 pixels."""
WORST = 1.0
"""For an image that is missing or all broken: no bound, but above plain grey and noise."""
AT_ONCE = 16
"""Images per pass, so that memory does not grow with the batch."""
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)


@dataclass(frozen=True, eq=False)
class Lpips:
    """sum_i mean_hw w_i . (f_i(a) - f_i(b))^2 with f_i the unit-length activations of block i.

    Images have pixels in [0, 1] and are brought to [-1, 1] here. Grey images are repeated to three channels.
    Images whose shorter side is below 64 pixels are enlarged bilinearly until it is 64, so their figures
    compare with each other but not with those of work that enlarges otherwise.
    """

    trunk: Trunk
    weights: Mapping[str, Tensor]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Lpips:
        """The metric with the weights of a safetensors file; AlexNet or VGG16 is told by the names inside."""
        return cls(*read_weights(Path(path)))

    @torch.no_grad()
    def __call__(self, reconstructed: Tensor, original: Tensor) -> Tensor:
        """The distance of each pair, 0 for equal images.  # (n, c, h, w) twice -> (n,)"""
        guess, truth = pair(reconstructed, original)
        reason = why_not(tuple(truth.shape[1:]))
        if reason:
            raise DataError(reason)
        parts = zip(torch.split(greyed(guess), AT_ONCE), torch.split(truth, AT_ONCE), strict=True)
        distances = torch.cat([self._distance(_prepare(a), _prepare(b)) for a, b in parts]).double()
        return demoted(distances, guess, WORST)

    def _distance(self, a: Tensor, b: Tensor) -> Tensor:
        total = torch.zeros(len(a))
        layers = zip(self.trunk.features(a, self.weights), self.trunk.features(b, self.weights), strict=True)
        for i, (fa, fb) in enumerate(layers):
            apart = (_unit(fa) - _unit(fb)).square()
            total += conv2d(apart, self.weights[f"lin{i}.weight"]).mean((1, 2, 3))
        return total


def why_not(shape: tuple[int, ...]) -> str | None:
    """Why images (c, h, w) have no LPIPS, or None where they do."""
    if shape[0] in (1, 3):
        return None
    return f"Expected images of 1 or 3 channels for LPIPS, got {shape[0]}: use PSNR, SSIM or RMSE for them."


def _prepare(images: Tensor) -> Tensor:
    """Pixels in [0, 1] -> what the networks were trained on.  # (n, 1 or 3, h, w) -> (n, 3, >= 64, >= 64)"""
    images = images.float().expand(-1, 3, -1, -1)
    shorter = min(images.shape[2:])
    if shorter < SMALLEST:
        size = [round(side * SMALLEST / shorter) for side in images.shape[2:]]
        images = interpolate(images, size=size, mode="bilinear", align_corners=False)
    shift, scale = (torch.tensor(v).view(3, 1, 1) for v in (SHIFT, SCALE))
    return (2 * images - 1 - shift) / scale


def _unit(features: Tensor) -> Tensor:
    """Activations scaled to length 1 over the channels; where nothing is active they stay 0."""
    return features / (features.square().sum(1, keepdim=True).sqrt() + 1e-10)


def _compute(reconstructed: Tensor, original: Tensor) -> Tensor:
    path = find_weights()
    if path is None:
        raise DataError(HOW_TO_PROVIDE)
    return _loaded(path, path.stat().st_mtime_ns)(reconstructed, original)


def _why_not(shape: tuple[int, ...]) -> str | None:
    return why_not(shape) if find_weights() else HOW_TO_PROVIDE


@functools.lru_cache(maxsize=1)
def _loaded(path: Path, changed: int) -> Lpips:
    """Weights are read once; `changed` makes a replaced file be read again."""
    return Lpips.load(path)


register(
    "metrics",
    "lpips",
    summary="learned perceptual distance",
    paper=(
        "Zhang, Isola, Efros, Shechtman, Wang: The Unreasonable Effectiveness of Deep Features as a Perceptual Metric, "
        "CVPR 2018, https://arxiv.org/abs/1801.03924"
    ),
)(Metric(_compute, Scale("LPIPS", higher_leaks=False, range=(0.0, 2.0), sure=(0.5, 0.15)), _why_not))
