"""The LeNet of the first gradient inversion papers."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from fedglass.core.papers import DLG
from fedglass.core.registry import register
from fedglass.models.stem import Shape, flattened


@register("models", "lenet", summary="LeNet with sigmoid of DLG and iDLG", paper=DLG)
class LeNet(nn.Module):
    """Three 5x5 convolutions of 12 channels and one dense layer [Zhu et al., 2019; Zhao et al., 2020].

    Strides 2, 2, 1 and padding 2, so that 768 numbers enter the dense layer at 32x32. The layers carry the
    names of the release of DLG.
    """

    def __init__(self, *, shape: Shape, classes: int, activation: type[nn.Module] = nn.Sigmoid) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(shape[0], 12, kernel_size=5, padding=2, stride=2),
            activation(),
            nn.Conv2d(12, 12, kernel_size=5, padding=2, stride=2),
            activation(),
            nn.Conv2d(12, 12, kernel_size=5, padding=2, stride=1),
            activation(),
        )
        self.fc = nn.Sequential(nn.Linear(flattened(self.body, shape), classes))

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.body(inputs).flatten(1)))
