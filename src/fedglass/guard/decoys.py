"""Decoys: pictures of the adversary's own, with which it tries out what it does, or made-up ones."""

from __future__ import annotations

import torch
from torch import Tensor

from fedglass.core.rng import stream
from fedglass.core.types import Knowledge

LEAVES = 60
"""Discs in a made-up picture."""
SMALLEST, LARGEST = 0.06, 0.6
"""Their radii, as shares of the picture's longer side."""
TINT = 0.4
"""How far the channels of a disc's colour differ, beside how far the discs' brightness does."""


def decoy_images(knows: Knowledge, pictures: Tensor | None, seed: int) -> Tensor:
    """As many as stand behind the message: drawn from the given ones, mirrored where these are too few, or made up.

    # (n, c, h, w), pixels
    """
    count, draws = knows.examples, stream(seed, "decoys", "images")
    given = torch.zeros(0, *knows.shape) if pictures is None else pictures.detach().cpu()
    chosen = given[torch.randperm(len(given), generator=draws)]
    several = torch.cat([chosen, chosen.flip(-1), chosen.flip(-2), chosen.flip(-2, -1)])[:count]
    return torch.cat([several, dead_leaves(knows, count - len(several), draws)])


def dead_leaves(knows: Knowledge, count: int, generator: torch.Generator) -> Tensor:
    """Discs that hide each other, their radii r drawn from a density that falls as r^-3.

    Such pictures have edges and the power spectrum of photographs, and none of their objects
    [Lee, Mumford and Huang, 2001].  # (count, c, h, w), pixels
    """
    channels, height, width = knows.shape
    rows, columns = torch.arange(height).view(-1, 1), torch.arange(width).view(1, -1)
    side = max(height, width)
    images = torch.zeros(count, *knows.shape)
    for leaf in range(LEAVES):
        across, down = (torch.rand(count, 1, 1, 1, generator=generator) for _ in range(2))
        share = torch.rand(count, 1, 1, 1, generator=generator)
        radius = side * (SMALLEST**-2 + share * (LARGEST**-2 - SMALLEST**-2)) ** -0.5
        inside = (rows - down * height).square() + (columns - across * width).square() < radius.square()
        grey, tint = (torch.randn(count, n, 1, 1, generator=generator) for n in (1, channels))
        colour = knows.whitening.unwhiten(grey + TINT * tint)
        images = torch.where(inside | (leaf == 0), colour, images)
    return images.clamp(knows.low, knows.high)
