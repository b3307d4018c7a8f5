"""Parts that networks share: layers by name, the first ones (without strides for thumbnails), and the global mean."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn

Shape = tuple[int, int, int]
"""Channels, height and width of one input."""


SMALL_SIDE = 64
"""Pixels of the longer side up to which the first layers keep the resolution."""


def is_small(shape: Shape) -> bool:
    """Return whether an input is a thumbnail, whose resolution the first layers keep.

    >>> is_small((3, 32, 32)), is_small((3, 224, 160))
    (True, False)
    """
    return max(shape[1:]) <= SMALL_SIDE


def first_convolution(shape: Shape, width: int) -> nn.Conv2d:
    """Return a convolution of 3x3 with stride 1, or of 7x7 with stride 2 [He et al., 2016]."""
    if is_small(shape):
        return nn.Conv2d(shape[0], width, kernel_size=3, padding=1, bias=False)
    return nn.Conv2d(shape[0], width, kernel_size=7, stride=2, padding=3, bias=False)


def first_pool(shape: Shape) -> nn.Module:
    """Return no pooling, or the maximum over 3x3 with stride 2 [He et al., 2016]."""
    return nn.Identity() if is_small(shape) else nn.MaxPool2d(kernel_size=3, stride=2, padding=1)


def layers(**named: nn.Module) -> nn.Sequential:
    """Return the layers one after another; their parameters have their names, also in weights files."""
    return nn.Sequential(OrderedDict(named))


def network(title: str, **named: nn.Module) -> nn.Module:
    """Return a network of these layers; reports call it by its title."""
    sequence = layers(**named)
    vars(sequence)["network_title"] = title
    return sequence


def title_of(model: nn.Module) -> str:
    """Return what reports call a network: its title, or the name of its class."""
    return str(vars(model).get("network_title", type(model).__name__))


class GlobalMean(nn.Module):
    """The mean over all places of a map.  # (n, c, h, w) -> (n, c)"""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean((2, 3))


def output_size(body: Callable[[Tensor], Tensor], shape: Shape) -> int:
    """Return the number of values that the body makes of one input of that shape.

    >>> output_size(nn.AvgPool2d(2), (3, 32, 20))
    480
    """
    with torch.no_grad():
        return int(body(torch.zeros(1, *shape)).numel())
