"""A small U-Net that takes noise out of images, on torch alone.

The network of [Ho et al., 2020, Appendix B] at a size that a processor trains in minutes: residual blocks of two
convolutions with group normalisation, told the step by a sinusoidal embedding, on levels of halved resolution, with
attention at the coarsest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.errors import UsageError
from fedglass.core.registry import register

MOST_CHANNELS = 1024


@register("denoisers", "FedglassUNet", summary="a U-Net of two or three resolutions with attention at the coarsest")
class UNet(nn.Module):
    """(noisy images, steps) -> an answer of the images' shape; labels are not looked at.

    >>> net = UNet((1, 28, 28), widths=(8, 16))
    >>> net(torch.zeros(2, 1, 28, 28), torch.tensor([0, 999])).shape
    torch.Size([2, 1, 28, 28])
    """

    kind = "FedglassUNet"

    def __init__(
        self, shape: Sequence[int], widths: Sequence[int] = (32, 64, 64), blocks: int = 1, patch: int = 1
    ) -> None:
        super().__init__()
        self.shape, self.widths, self.blocks, self.patch = _checked(shape, widths, blocks, patch)
        channels, embedding_width = self.shape[0] * patch**2, 4 * self.widths[0]
        self.embed = nn.Sequential(
            nn.Linear(self.widths[0], embedding_width), nn.SiLU(), nn.Linear(embedding_width, embedding_width)
        )
        self.first = nn.Conv2d(channels, self.widths[0], 3, padding=1)
        self.last = nn.Sequential(
            _norm(self.widths[0]), nn.SiLU(), _silent(nn.Conv2d(self.widths[0], channels, 3, padding=1))
        )
        steps_down = list(pairwise(self.widths))
        self.down = nn.ModuleList(Level(width, width, embedding_width, blocks) for width in self.widths[:-1])
        self.coarser = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in steps_down)
        deepest = self.widths[-1]
        self.middle = nn.ModuleList(
            [
                Residual(deepest, deepest, embedding_width),
                Attention(deepest),
                Residual(deepest, deepest, embedding_width),
            ]
        )
        self.finer = nn.ModuleList(nn.Conv2d(b, a, 3, padding=1) for a, b in steps_down)
        self.up = nn.ModuleList(Level(2 * width, width, embedding_width, blocks) for width in self.widths[:-1])

    def options(self) -> dict[str, Any]:
        """Return the options that it was made with, for its config.json."""
        return {"shape": self.shape, "widths": self.widths, "blocks": self.blocks, "patch": self.patch}

    def forward(self, images: Tensor, steps: Tensor, labels: Tensor | None = None) -> Tensor:
        height, width = images.shape[-2:]
        unit = self.patch * 2 ** (len(self.widths) - 1)
        padded = F.pad(images, (0, -width % unit, 0, -height % unit), mode="replicate")
        embedding = self.embed(sinusoids(steps, self.widths[0]).to(images.dtype))
        x = self.first(F.pixel_unshuffle(padded, self.patch))
        skips = []
        for level, coarser in zip(self.down, self.coarser, strict=True):
            skips.append(level(x, embedding))
            x = coarser(skips[-1])
        for part in self.middle:
            x = part(x, embedding)
        for level, finer in reversed(list(zip(self.up, self.finer, strict=True))):
            larger = F.interpolate(finer(x), scale_factor=2.0, mode="nearest")
            x = level(torch.cat([larger, skips.pop()], 1), embedding)
        answer = F.pixel_shuffle(self.last(x), self.patch)
        return answer[..., :height, :width]


def sinusoids(steps: Tensor, width: int) -> Tensor:
    """The step as sines and cosines of many wave lengths [Vaswani et al., 2017, Section 3.5].  # (n, width)"""
    half = width // 2
    rates = torch.exp(-math.log(10_000) * torch.arange(half, device=steps.device) / half)
    angles = steps[:, None].float() * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


class Residual(nn.Module):
    """Two convolutions with a shortcut; the step scales and shifts the values between them."""

    def __init__(self, before: int, after: int, embedding_width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = _norm(before), _norm(after)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.conv2 = _silent(nn.Conv2d(after, after, 3, padding=1))
        self.tell = nn.Linear(embedding_width, 2 * after)
        self.skip = nn.Identity() if before == after else nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        scale, shift = self.tell(F.silu(embedding))[:, :, None, None].chunk(2, 1)
        y = self.norm2(self.conv1(F.silu(self.norm1(x)))) * (1 + scale) + shift
        result: Tensor = self.skip(x) + self.conv2(F.silu(y))
        return result


class Attention(nn.Module):
    """Every pixel looks at every other, with one head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = _norm(width)
        self.ask = nn.Conv2d(width, 3 * width, 1)
        self.answer = _silent(nn.Conv2d(width, width, 1))

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        n, _, height, width = x.shape
        q, k, v = self.ask(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, -1)  # (n, pixels, channels) each
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, -1, height, width)
        result: Tensor = x + self.answer(attended)
        return result


class Level(nn.Module):
    """Residual blocks of one resolution."""

    def __init__(self, before: int, width: int, embedding_width: int, blocks: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Residual(before if i == 0 else width, width, embedding_width) for i in range(blocks))

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x, embedding)
        return x


def _norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(width, 8), width)


def _silent(layer: nn.Conv2d) -> nn.Conv2d:
    """Zero weights, so that a block begins as the identity."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def _checked(
    shape: Sequence[int], widths: Sequence[int], blocks: int, patch: int
) -> tuple[tuple[int, int, int], tuple[int, ...], int, int]:
    if not all(isinstance(number, int) for number in (*shape, *widths, blocks, patch)):
        raise UsageError("A U-Net's shape, widths, blocks and patch must be whole numbers.")
    if len(shape) != 3 or not all(1 <= side <= 4096 for side in shape):
        raise UsageError(f"A U-Net needs the images' channels, height and width, got {tuple(shape)}.")
    if not 1 <= len(widths) <= 6 or not all(4 <= width <= MOST_CHANNELS and width % 2 == 0 for width in widths):
        raise UsageError(f"A U-Net needs 1 to 6 even widths from 4 to {MOST_CHANNELS}, got {tuple(widths)}.")
    if not (1 <= blocks <= 8 and 1 <= patch <= 8):
        raise UsageError(f"A U-Net needs 1 to 8 blocks a level and patches of 1 to 8, got {blocks} and {patch}.")
    channels, height, width = shape
    return (channels, height, width), tuple(widths), blocks, patch
