"""Small networks of the papers: LeNets with sigmoid, tanh or ReLU, small convolutional networks, dense layers only."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from fedglass.core.registry import register
from fedglass.core.text import CURIOUS_CLIENT, DLFA, DLG, SME
from fedglass.models.network import Shape, layers, network, output_size

LENET_PAPER = (
    "LeCun, Bottou, Bengio, Haffner: Gradient-Based Learning Applied to Document Recognition, Proceedings of the IEEE "
    "1998, https://doi.org/10.1109/5.726791"
)


@register("models", "lenet", summary="LeNet with sigmoid of DLG and iDLG", paper=DLG)
def lenet(*, shape: Shape, classes: int) -> nn.Module:
    """Return the LeNet of the first gradient inversion papers [Zhu et al., 2019; Zhao et al., 2020].

    Three 5x5 convolutions of 12 channels and one dense layer. Strides 2, 2, 1 and padding 2, so that 768 numbers enter
    the dense layer at 32x32. The layers have the names of the release of DLG.
    """
    body = nn.Sequential(
        nn.Conv2d(shape[0], 12, kernel_size=5, padding=2, stride=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, kernel_size=5, padding=2, stride=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, kernel_size=5, padding=2, stride=1),
        nn.Sigmoid(),
    )
    last = nn.Sequential(nn.Linear(output_size(body, shape), classes))
    return network("LeNet", body=body, flat=nn.Flatten(), fc=last)


def classic_lenet(
    title: str,
    shape: Shape,
    classes: int,
    stage: Callable[[], nn.Module],
    activation: type[nn.Module],
    output: nn.Module | None = None,
) -> nn.Module:
    """Return a LeNet with two 5x5 convolutions, a stage of pooling after each, and three dense layers.

    Channels 6 and 16, units 120 and 84 [LeCun et al., 1998].
    """
    body = {"conv1": nn.Conv2d(shape[0], 6, 5), "stage1": stage(), "conv2": nn.Conv2d(6, 16, 5), "stage2": stage()}
    return network(
        title,
        **body,
        flat=nn.Flatten(),
        fc1=nn.Linear(output_size(layers(**body), shape), 120),
        act1=activation(),
        fc2=nn.Linear(120, 84),
        act2=activation(),
        fc3=nn.Linear(84, classes),
        output=output or nn.Identity(),
    )


@register("models", "lenet_tanh", summary="classic LeNet with tanh", paper=LENET_PAPER)
def lenet_tanh(*, shape: Shape, classes: int, output: nn.Module | None = None) -> nn.Module:
    """Return the network with tanh and average pooling, which is padded by one, as in the release of SME."""

    def stage() -> nn.Module:
        return nn.Sequential(nn.Tanh(), nn.AvgPool2d(kernel_size=2, stride=2, padding=1))

    return classic_lenet("LeNetTanh", shape, classes, stage, nn.Tanh, output)


@register("models", "lenet_tanh_sme", summary="the same, ending in a softmax as in the release of SME", paper=SME)
def lenet_tanh_sme(*, shape: Shape, classes: int) -> nn.Module:
    """Return the network with a softmax in front of the cross entropy, which takes another [Zhu et al., 2023]."""
    return lenet_tanh(shape=shape, classes=classes, output=nn.Softmax(dim=1))


@register("models", "lenet5", summary="LeNet-5 with ReLU and max pooling", paper=LENET_PAPER)
def lenet5(*, shape: Shape, classes: int) -> nn.Module:
    """Return LeNet-5 as it is written today; the original has tanh and average pooling, see `lenet_tanh`.

    Pooling comes before ReLU, which saves time and changes nothing else: both keep the order of numbers.
    """
    return classic_lenet("LeNet5", shape, classes, lambda: nn.Sequential(nn.MaxPool2d(2), nn.ReLU()), nn.ReLU)


def cnn(
    shape: Shape,
    classes: int,
    channels: tuple[int, int],
    units: int,
    kernel: int = 3,
    pool: type[nn.Module] = nn.AvgPool2d,
    bias: bool = True,
    title: str = "CNN",
) -> nn.Module:
    """Return twice convolution - ReLU - pool 2, then two dense layers, which have a bias only with `bias`."""
    body = nn.Sequential(
        nn.Conv2d(shape[0], channels[0], kernel_size=kernel, padding=kernel // 2),
        nn.ReLU(),
        pool(2),
        nn.Conv2d(*channels, kernel_size=kernel, padding=kernel // 2),
        nn.ReLU(),
        pool(2),
    )
    first = nn.Linear(output_size(body, shape), units, bias=bias)
    last = nn.Linear(units, classes, bias=bias)
    return network(title, body=body, flat=nn.Flatten(), fc1=first, act=nn.ReLU(), fc2=last)


@register("models", "curious_lenet", summary="LeNet with ReLU, no bias in its dense layers", paper=CURIOUS_CLIENT)
def curious_lenet(*, shape: Shape, classes: int) -> nn.Module:
    """Return the LeNet of the curious client's release, which the paper calls LeNet5.

    At 128x128 the first dense layer alone has 65,536 x 512 weights.
    """
    return cnn(shape, classes, (32, 64), 512, kernel=5, pool=nn.MaxPool2d, bias=False, title="CuriousLeNet")


@register("models", "femnist_cnn", summary="CNN 32/64/100 for FEMNIST", paper=DLFA)
def femnist_cnn(*, shape: Shape, classes: int) -> nn.Module:
    """Return the CNN of the papers on inverting FedAvg with channels 32 and 64, 100 units [Dimitrov et al., 2022].

    The release, and that of SME [Zhu et al., 2023], use 3x3 kernels with padding throughout; Table 5 of the paper
    prints a second kernel of 1.
    """
    return cnn(shape, classes, (32, 64), 100)


@register("models", "cifar_cnn", summary="CNN 64/128/200 for CIFAR-100", paper=DLFA)
def cifar_cnn(*, shape: Shape, classes: int) -> nn.Module:
    """Return the CNN with channels 64 and 128, 200 units."""
    return cnn(shape, classes, (64, 128), 200)


@register("models", "mlp", summary="dense layers of 1000 and 1000 units with ReLU", paper=SME)
def mlp(*, shape: Shape, classes: int, output: nn.Module | None = None) -> nn.Module:
    """Return dense layers only: hidden layers of 1000 and 1000 units with ReLU [Zhu et al., 2023, Appendix G]."""
    body = nn.Sequential(nn.Linear(math.prod(shape), 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU())
    last = nn.Linear(1000, classes)
    return network("MLP", flat=nn.Flatten(), body=body, fc=last, output=output or nn.Identity())


@register("models", "mlp_sme", summary="the same, with a ReLU on the logits as in the release of SME", paper=SME)
def mlp_sme(*, shape: Shape, classes: int) -> nn.Module:
    """Return the network with a ReLU on the logits."""
    return mlp(shape=shape, classes=classes, output=nn.ReLU())
