"""The networks of DLFA's Table 5 beside those that are attacked here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from fedglass.models.catalogue import build
from fedglass.reproduce.dlfa import NETWORKS
from fedglass.reproduce.populations import KINDS
from fedglass.reproduce.tables import Table

STRUCTURE = "dlfa-table5"


@dataclass(frozen=True)
class Layer:
    """A layer as printed and as built."""

    data: str
    number: int
    published: str
    built: str

    @property
    def same(self) -> bool:
        return self.published == self.built


def compare_layers(of: Table) -> list[Layer]:
    """Every printed layer beside the one that takes its place."""
    found = []
    for data in of.methods:
        kind = KINDS[data]
        model = build(NETWORKS[data], shape=kind.shape, classes=kind.classes)
        ours = list(layers(model))
        for row in of.rows:
            printed = str(row.values[data]["layer"])
            found.append(Layer(data, row.number, printed, ours[row.number - 1]))
    return found


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
