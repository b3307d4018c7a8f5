"""The layers of a network in a paper's words."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def layers(model: nn.Module) -> Iterator[str]:
    """The layers of a network in the paper's words, flattening left out.

    >>> list(layers(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))))[0]
    'Conv2d(in_channels=1, out_channels=2, kernel_size=3, stride=1, padding=1)'
    """
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            size, stride, padding = layer.kernel_size[0], layer.stride[0], layer.padding
            yield (
                f"Conv2d(in_channels={layer.in_channels}, out_channels={layer.out_channels}, kernel_size={size}, "
                f"stride={stride}, padding={padding if isinstance(padding, str) else padding[0]})"
            )
        elif isinstance(layer, nn.Linear):
            yield f"Linear(in_features={layer.in_features}, out_features={layer.out_features})"
        elif isinstance(layer, nn.AvgPool2d):
            yield f"AvgPool2d(kernel_size={layer.kernel_size}, stride={layer.stride})"
        elif isinstance(layer, nn.ReLU):
            yield "ReLU()"
