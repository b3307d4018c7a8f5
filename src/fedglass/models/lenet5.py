"""LeNet-5 as it is written today: ReLU and max pooling."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from fedglass.core.registry import register
from fedglass.models.lenet_tanh import PAPER
from fedglass.models.stem import Shape, flattened


@register("models", "lenet5", summary="LeNet-5 with ReLU and max pooling", paper=PAPER)
class LeNet5(nn.Module):
    """Two 5x5 convolutions of 6 and 16 channels, dense layers of 120 and 84 units [LeCun et al., 1998].

    The original has tanh and average pooling, see `lenet_tanh`. Pooling stands in front of ReLU, which changes nothing
    but the time: both keep the order of numbers.
    """

    def __init__(self, *, shape: Shape, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 6, kernel_size=5)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=5)
        self.pool = nn.MaxPool2d(2)
        self.act = nn.ReLU()
        body = nn.Sequential(self.conv1, self.pool, self.act, self.conv2, self.pool, self.act)
        self.fc1 = nn.Linear(flattened(body, shape), 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.act(self.pool(self.conv1(inputs)))
        hidden = self.act(self.pool(self.conv2(hidden))).flatten(1)
        return cast(Tensor, self.fc3(self.act(self.fc2(self.act(self.fc1(hidden))))))
