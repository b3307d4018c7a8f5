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

    def __init__(self, *, shape: Shape, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(shape[0], 12, kernel_size=5, padding=2, stride=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, kernel_size=5, padding=2, stride=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, kernel_size=5, padding=2, stride=1),
            nn.Sigmoid(),
        )
        self.fc = nn.Sequential(nn.Linear(output_size(self.body, shape), classes))

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.body(inputs).flatten(1)))


class ClassicLeNet(nn.Module):
    """Classic LeNet: two 5x5 convolutions with pooling, three dense layers [LeCun et al., 1998].

    Channels 6 and 16, units 120 and 84. Of max pooling and ReLU either may come first, since both keep the order of
    numbers: `pool_first` saves time.
    """

    def __init__(
        self,
        *,
        shape: Shape,
        classes: int,
        activation: nn.Module,
        pool: nn.Module,
        pool_first: bool = False,
        output: Callable[[], nn.Module] = nn.Identity,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 6, kernel_size=5)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=5)
        self.act, self.pool, self.pool_first = activation, pool, pool_first
        self.fc1 = nn.Linear(output_size(self._body, shape), 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)
        self.output = output()

    def _body(self, inputs: Tensor) -> Tensor:
        hidden = inputs
        for convolution in (self.conv1, self.conv2):
            hidden = convolution(hidden)
            hidden = self.act(self.pool(hidden)) if self.pool_first else self.pool(self.act(hidden))
        return hidden

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.act(self.fc2(self.act(self.fc1(self._body(inputs).flatten(1)))))
        return cast(Tensor, self.output(self.fc3(hidden)))


@register("models", "lenet_tanh", summary="classic LeNet with tanh", paper=LENET_PAPER)
def lenet_tanh(*, shape: Shape, classes: int, output: Callable[[], nn.Module] = nn.Identity) -> ClassicLeNet:
    """Return the network with tanh and average pooling, which is padded by one, as in the release of SME."""
    pool = nn.AvgPool2d(kernel_size=2, stride=2, padding=1)
    return ClassicLeNet(shape=shape, classes=classes, activation=nn.Tanh(), pool=pool, output=output)


@register("models", "lenet_tanh_sme", summary="the same, ending in a softmax as in the release of SME", paper=SME)
def lenet_tanh_sme(*, shape: Shape, classes: int) -> ClassicLeNet:
    """Return the network with a softmax in front of the cross entropy, which takes another [Zhu et al., 2023]."""
    return lenet_tanh(shape=shape, classes=classes, output=partial(nn.Softmax, dim=1))


@register("models", "lenet5", summary="LeNet-5 with ReLU and max pooling", paper=LENET_PAPER)
def lenet5(*, shape: Shape, classes: int) -> ClassicLeNet:
    """Return LeNet-5 as it is written today; the original has tanh and average pooling, see `lenet_tanh`."""
    return ClassicLeNet(shape=shape, classes=classes, activation=nn.ReLU(), pool=nn.MaxPool2d(2), pool_first=True)


class CNN(nn.Module):
    """Small convolutional network: twice convolution - activation - pool 2, then two dense layers."""

    def __init__(
        self,
        *,
        shape: Shape,
        classes: int,
        channels: tuple[int, int],
        units: int,
        kernel: int = 3,
        pool: type[nn.Module] = nn.AvgPool2d,
        bias: bool = True,
    ) -> None:
        """Dense layers have a bias only with `bias`; convolutions always have one."""
        super().__init__()
        first, second = channels
        self.body = nn.Sequential(
            nn.Conv2d(shape[0], first, kernel_size=kernel, padding=kernel // 2),
            nn.ReLU(),
            pool(2),
            nn.Conv2d(first, second, kernel_size=kernel, padding=kernel // 2),
            nn.ReLU(),
            pool(2),
        )
        self.fc1 = nn.Linear(output_size(self.body, shape), units, bias=bias)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(units, classes, bias=bias)

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.fc2(self.act(self.fc1(self.body(inputs).flatten(1)))))


@register("models", "curious_lenet", summary="LeNet with ReLU, no bias in its dense layers", paper=CURIOUS_CLIENT)
def curious_lenet(*, shape: Shape, classes: int) -> CNN:
    """Return the LeNet of the curious client's release, which the paper calls LeNet5.

    At 128x128 the first dense layer alone has 65,536 x 512 weights.
    """
    return CNN(shape=shape, classes=classes, channels=(32, 64), units=512, kernel=5, pool=nn.MaxPool2d, bias=False)


@register("models", "femnist_cnn", summary="CNN 32/64/100 for FEMNIST", paper=DLFA)
def femnist_cnn(*, shape: Shape, classes: int) -> CNN:
    """Return the CNN of the papers on inverting FedAvg with channels 32 and 64, 100 units [Dimitrov et al., 2022].

    The release, and that of SME [Zhu et al., 2023], use 3x3 kernels with padding throughout; Table 5 of the paper
    prints a second kernel of 1.
    """
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

    def __init__(self, *, shape: Shape, classes: int, output: Callable[[], nn.Module] = nn.Identity) -> None:
        super().__init__()
        first = nn.Linear(math.prod(shape), 1000)
        self.body = nn.Sequential(first, nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU())
        self.fc = nn.Linear(1000, classes)
        self.output = output()

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.output(self.fc(self.body(inputs.flatten(1)))))


@register("models", "mlp_sme", summary="the same, with a ReLU on the logits as in the release of SME", paper=SME)
def mlp_sme(*, shape: Shape, classes: int) -> MLP:
    """Return the network with a ReLU on the logits."""
    return MLP(shape=shape, classes=classes, output=nn.ReLU)
