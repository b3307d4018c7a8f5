"""The LeNet of the curious client."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from fedglass.core.papers import CURIOUS_CLIENT
from fedglass.core.registry import register
from fedglass.models.stem import Shape, flattened


@register("models", "curious_lenet", summary="LeNet with ReLU, no bias in its dense layers", paper=CURIOUS_CLIENT)
class CuriousLeNet(nn.Module):
    """Two 5x5 convolutions of 32 and 64 channels, each with max pooling, and two dense layers without bias.

    As in the release of the curious client, where the paper says LeNet5. At 128x128 the first dense layer alone
    has 65,536 x 512 weights.
    """

    def __init__(self, *, shape: Shape, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(shape[0], 32, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.fc1 = nn.Linear(flattened(self.body, shape), 512, bias=False)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(512, classes, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.fc2(self.act(self.fc1(self.body(inputs).flatten(1)))))
