"""The two small convolutional networks of the papers on inverting FedAvg."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from fedglass.core.papers import DLFA
from fedglass.core.registry import register
from fedglass.models.stem import Shape, flattened


class CNN(nn.Module):
    """Twice conv 3x3 - activation - average pool 2, then two dense layers [Dimitrov et al., 2022].

    The release, and that of SME [Zhu et al., 2023], use 3x3 kernels with padding throughout; Table 5 of the
    paper prints a second kernel of 1.
    """

    def __init__(
        self,
        *,
        shape: Shape,
        classes: int,
        channels: tuple[int, int],
        units: int,
        activation: type[nn.Module] = nn.ReLU,
    ) -> None:
        super().__init__()
        first, second = channels
        self.body = nn.Sequential(
            nn.Conv2d(shape[0], first, kernel_size=3, padding=1),
            activation(),
            nn.AvgPool2d(2),
            nn.Conv2d(first, second, kernel_size=3, padding=1),
            activation(),
            nn.AvgPool2d(2),
        )
        self.fc1 = nn.Linear(flattened(self.body, shape), units)
        self.act = activation()
        self.fc2 = nn.Linear(units, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.fc2(self.act(self.fc1(self.body(inputs).flatten(1)))))


@register("models", "femnist_cnn", summary="CNN 32/64/100 for FEMNIST", paper=DLFA)
def femnist_cnn(*, shape: Shape, classes: int) -> CNN:
    """Channels 32 and 64, 100 units."""
    return CNN(shape=shape, classes=classes, channels=(32, 64), units=100)


@register("models", "cifar_cnn", summary="CNN 64/128/200 for CIFAR-100", paper=DLFA)
def cifar_cnn(*, shape: Shape, classes: int) -> CNN:
    """Channels 64 and 128, 200 units."""
    return CNN(shape=shape, classes=classes, channels=(64, 128), units=200)
