"""The classic LeNet with tanh."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from torch import Tensor, nn

from fedglass.core.papers import SME
from fedglass.core.registry import register
from fedglass.models.stem import Shape, flattened

PAPER = (
    "LeCun, Bottou, Bengio, Haffner: Gradient-Based Learning Applied to Document Recognition, Proceedings of the IEEE "
    "1998, https://doi.org/10.1109/5.726791"
)


@register("models", "lenet_tanh", summary="classic LeNet with tanh", paper=PAPER)
class LeNetTanh(nn.Module):
    """Two 5x5 convolutions with average pooling, three dense layers, tanh [LeCun et al., 1998].

    Channels 6 and 16, units 120 and 84. Average pooling is padded by one, as in the release of SME [Zhu et
    al., 2023], where the network moreover ends in a softmax in front of the cross entropy:
    `output=partial(nn.Softmax, dim=1)`.
    """

    def __init__(
        self,
        *,
        shape: Shape,
        classes: int,
        activation: type[nn.Module] = nn.Tanh,
        output: Callable[[], nn.Module] = nn.Identity,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 6, kernel_size=5)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=5)
        self.act = activation()
        self.pool = nn.AvgPool2d(kernel_size=2, stride=2, padding=1)
        body = nn.Sequential(self.conv1, self.act, self.pool, self.conv2, self.act, self.pool)
        self.fc1 = nn.Linear(flattened(body, shape), 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)
        self.output = output()

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.pool(self.act(self.conv1(inputs)))
        hidden = self.pool(self.act(self.conv2(hidden))).flatten(1)
        hidden = self.act(self.fc2(self.act(self.fc1(hidden))))
        return cast(Tensor, self.output(self.fc3(hidden)))


@register("models", "lenet_tanh_sme", summary="the same, ending in a softmax as in the release of SME", paper=SME)
def lenet_tanh_sme(*, shape: Shape, classes: int) -> LeNetTanh:
    """The softmax stands in front of the cross entropy, which takes another."""
    return LeNetTanh(shape=shape, classes=classes, output=partial(nn.Softmax, dim=1))
