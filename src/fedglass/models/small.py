"""Small networks of the papers: LeNets with sigmoid, tanh or ReLU, small convolutional networks, dense layers only."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import cast

from torch import Tensor, nn

from fedglass.core.registry import register
from fedglass.core.text import CURIOUS_CLIENT, DLFA, DLG, SME
from fedglass.models.stem import Shape, output_size

LENET_PAPER = (
    "LeCun, Bottou, Bengio, Haffner: Gradient-Based Learning Applied to Document Recognition, Proceedings of the IEEE "
    "1998, https://doi.org/10.1109/5.726791"
)


@register("models", "lenet", summary="LeNet with sigmoid of DLG and iDLG", paper=DLG)
class LeNet(nn.Module):
    """LeNet of the first gradient inversion papers [Zhu et al., 2019; Zhao et al., 2020].

    Three 5x5 convolutions of 12 channels and one dense layer. Strides 2, 2, 1 and padding 2, so that 768 numbers enter
    the dense layer at 32x32. The layers have the names of the release of DLG.
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
        self.fc = nn.Sequential(nn.Linear(output_size(self.body, shape), classes))

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.body(inputs).flatten(1)))


@register("models", "lenet_tanh", summary="classic LeNet with tanh", paper=LENET_PAPER)
class LeNetTanh(nn.Module):
    """Classic LeNet: two 5x5 convolutions with average pooling, three dense layers, tanh [LeCun et al., 1998].

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
        self.fc1 = nn.Linear(output_size(body, shape), 120)
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
    """Return the network with a softmax in front of the cross entropy, which takes another."""
    return LeNetTanh(shape=shape, classes=classes, output=partial(nn.Softmax, dim=1))


@register("models", "lenet5", summary="LeNet-5 with ReLU and max pooling", paper=LENET_PAPER)
class LeNet5(nn.Module):
    """LeNet-5 as it is written today, with ReLU and max pooling [LeCun et al., 1998].

    Two 5x5 convolutions of 6 and 16 channels, dense layers of 120 and 84 units. The original has tanh and average
    pooling, see `lenet_tanh`. Pooling comes before ReLU, which saves time and changes nothing else: both keep the order
    of numbers.
    """

    def __init__(self, *, shape: Shape, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 6, kernel_size=5)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=5)
        self.pool = nn.MaxPool2d(2)
        self.act = nn.ReLU()
        body = nn.Sequential(self.conv1, self.pool, self.act, self.conv2, self.pool, self.act)
        self.fc1 = nn.Linear(output_size(body, shape), 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.act(self.pool(self.conv1(inputs)))
        hidden = self.act(self.pool(self.conv2(hidden))).flatten(1)
        return cast(Tensor, self.fc3(self.act(self.fc2(self.act(self.fc1(hidden))))))


@register("models", "curious_lenet", summary="LeNet with ReLU, no bias in its dense layers", paper=CURIOUS_CLIENT)
class CuriousLeNet(nn.Module):
    """LeNet of the curious client's release, which the paper calls LeNet5.

    Two 5x5 convolutions of 32 and 64 channels, each with max pooling, and two dense layers without bias. At 128x128 the
    first dense layer alone has 65,536 x 512 weights.
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
        self.fc1 = nn.Linear(output_size(self.body, shape), 512, bias=False)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(512, classes, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.fc2(self.act(self.fc1(self.body(inputs).flatten(1)))))


class CNN(nn.Module):
    """Small convolutional network of the papers on inverting FedAvg [Dimitrov et al., 2022].

    Twice conv 3x3 - activation - average pool 2, then two dense layers. The release, and that of SME [Zhu et al.,
    2023], use 3x3 kernels with padding throughout; Table 5 of the paper prints a second kernel of 1.
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
        self.fc1 = nn.Linear(output_size(self.body, shape), units)
        self.act = activation()
        self.fc2 = nn.Linear(units, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.fc2(self.act(self.fc1(self.body(inputs).flatten(1)))))


@register("models", "femnist_cnn", summary="CNN 32/64/100 for FEMNIST", paper=DLFA)
def femnist_cnn(*, shape: Shape, classes: int) -> CNN:
    """Return the CNN with channels 32 and 64, 100 units."""
    return CNN(shape=shape, classes=classes, channels=(32, 64), units=100)


@register("models", "cifar_cnn", summary="CNN 64/128/200 for CIFAR-100", paper=DLFA)
def cifar_cnn(*, shape: Shape, classes: int) -> CNN:
    """Return the CNN with channels 64 and 128, 200 units."""
    return CNN(shape=shape, classes=classes, channels=(64, 128), units=200)


@register("models", "mlp", summary="dense layers of 1000 and 1000 units with ReLU", paper=SME)
class MLP(nn.Module):
    """Dense layers only: hidden layers of 1000 and 1000 units with ReLU [Zhu et al., 2023, Appendix G].

    In the release of SME the logits pass a ReLU too: `output=nn.ReLU`.
    """

    def __init__(
        self,
        *,
        shape: Shape,
        classes: int,
        hidden: tuple[int, ...] = (1000, 1000),
        activation: type[nn.Module] = nn.ReLU,
        output: Callable[[], nn.Module] = nn.Identity,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        size = math.prod(shape)
        for units in hidden:
            layers += [nn.Linear(size, units), activation()]
            size = units
        self.body = nn.Sequential(*layers)
        self.fc = nn.Linear(size, classes)
        self.output = output()

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.output(self.fc(self.body(inputs.flatten(1)))))


@register("models", "mlp_sme", summary="the same, with a ReLU on the logits as in the release of SME", paper=SME)
def mlp_sme(*, shape: Shape, classes: int) -> MLP:
    """Return the network with a ReLU on the logits."""
    return MLP(shape=shape, classes=classes, output=nn.ReLU)
