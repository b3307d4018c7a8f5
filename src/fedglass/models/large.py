"""Larger networks: DenseNet-121 [Huang et al., 2017] and MobileNetV2 [Sandler et al., 2018]."""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from fedglass.core.registry import register
from fedglass.models.stem import GlobalMean, Shape, first_convolution, first_pool, is_small, layers

GROWTH = 32
BOTTLENECK = 4 * GROWTH
MOBILENET_GROUPS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, repetitions, stride of the first [Sandler et al., 2018, Table 2]."""

DENSENET_PAPER = (
    "Huang, Liu, van der Maaten, Weinberger: Densely Connected Convolutional Networks, CVPR 2017, "
    "https://arxiv.org/abs/1608.06993"
)
MOBILENET_PAPER = (
    "Sandler, Howard, Zhu, Zhmoginov, Chen: MobileNetV2: Inverted Residuals and Linear Bottlenecks, CVPR 2018, "
    "https://arxiv.org/abs/1801.04381"
)


class DenseLayer(nn.Module):
    """The channels that one layer adds: norm - activation - conv 1x1 - norm - activation - conv 3x3."""

    def __init__(self, entering: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(entering)
        self.conv1 = nn.Conv2d(entering, BOTTLENECK, kernel_size=1, bias=False)
        self.norm2 = nn.BatchNorm2d(BOTTLENECK)
        self.conv2 = nn.Conv2d(BOTTLENECK, GROWTH, kernel_size=3, padding=1, bias=False)
        self.act = activation()

    def forward(self, inputs: Tensor) -> Tensor:
        narrow = self.conv1(self.act(self.norm1(inputs)))
        return cast(Tensor, self.conv2(self.act(self.norm2(narrow))))


class DenseBlock(nn.Module):
    """Layers that each see the channels of all before them."""

    def __init__(self, entering: int, layers: int, activation: type[nn.Module]) -> None:
        super().__init__()
        for i in range(layers):
            self.add_module(f"denselayer{i + 1}", DenseLayer(entering + i * GROWTH, activation))

    def forward(self, inputs: Tensor) -> Tensor:
        channels = inputs
        for layer in self.children():
            channels = torch.cat([channels, layer(channels)], dim=1)
        return channels


def densenet(
    *, shape: Shape, classes: int, blocks: tuple[int, ...], activation: type[nn.Module] = nn.ReLU
) -> nn.Module:
    """Return dense blocks with transitions, which halve channels and resolution, between them; torchvision's names."""
    width = 2 * GROWTH
    parts: dict[str, nn.Module] = {
        "conv0": first_convolution(shape, width),
        "norm0": nn.BatchNorm2d(width),
        "act0": activation(),
        "pool0": first_pool(shape),
    }
    for i, count in enumerate(blocks, start=1):
        parts[f"denseblock{i}"] = DenseBlock(width, count, activation)
        width += count * GROWTH
        if i < len(blocks):
            parts[f"transition{i}"] = layers(
                norm=nn.BatchNorm2d(width),
                act=activation(),
                conv=nn.Conv2d(width, width // 2, kernel_size=1, bias=False),
                pool=nn.AvgPool2d(2),
            )
            width //= 2
    features = layers(**parts, norm5=nn.BatchNorm2d(width))
    return layers(features=features, act=activation(), mean=GlobalMean(), classifier=nn.Linear(width, classes))


@register("models", "densenet121", summary="DenseNet-121", paper=DENSENET_PAPER)
def densenet121(*, shape: Shape, classes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    """Return the DenseNet with blocks of 6, 12, 24 and 16 layers."""
    return densenet(shape=shape, classes=classes, blocks=(6, 12, 24, 16), activation=activation)


register("models", "densenet121_sigmoid", summary="the same with sigmoid", paper=DENSENET_PAPER)(
    partial(densenet121, activation=nn.Sigmoid)
)


def convolution_unit(
    entering: int, leaving: int, kernel: int, stride: int, groups: int, activation: type[nn.Module]
) -> nn.Sequential:
    """Return convolution, normalisation and activation."""
    return nn.Sequential(
        nn.Conv2d(entering, leaving, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(leaving),
        activation(),
    )


class InvertedResidual(nn.Module):
    """Expansion, a filter for each channel, projection without activation; a shortcut where the shape stays."""

    def __init__(self, entering: int, leaving: int, stride: int, expansion: int, activation: type[nn.Module]) -> None:
        super().__init__()
        inner = entering * expansion
        expand = [convolution_unit(entering, inner, 1, 1, 1, activation)] if expansion != 1 else []
        self.conv = nn.Sequential(
            *expand,
            convolution_unit(inner, inner, 3, stride, inner, activation),
            nn.Conv2d(inner, leaving, kernel_size=1, bias=False),
            nn.BatchNorm2d(leaving),
        )
        self.shortcut = stride == 1 and entering == leaving

    def forward(self, inputs: Tensor) -> Tensor:
        branch = cast(Tensor, self.conv(inputs))
        return inputs + branch if self.shortcut else branch


@register("models", "mobilenet_v2", summary="MobileNetV2 with ReLU6", paper=MOBILENET_PAPER)
def mobilenet_v2(*, shape: Shape, classes: int, activation: type[nn.Module] = nn.ReLU6) -> nn.Module:
    """Return inverted residuals, 1280 channels, global average, one dense layer, with torchvision's parameter names.

    Small images have no stride in the first two groups, as is usual at 32x32. There is no dropout, because a gradient
    would then depend on a mask that is not recorded; `classifier.0` is only a placeholder for it.
    """
    start, second = (1, 1) if is_small(shape) else (2, 2)
    width = 32
    parts: list[nn.Module] = [convolution_unit(shape[0], width, 3, start, 1, activation)]
    for i, (expansion, channels, repetitions, stride) in enumerate(MOBILENET_GROUPS):
        strides = [second if i == 1 else stride] + [1] * (repetitions - 1)
        for step in strides:
            parts.append(InvertedResidual(width, channels, step, expansion, activation))
            width = channels
    parts.append(convolution_unit(width, 1280, 1, 1, 1, activation))
    classifier = nn.Sequential(nn.Identity(), nn.Linear(1280, classes))
    return layers(features=nn.Sequential(*parts), mean=GlobalMean(), classifier=classifier)


register("models", "mobilenet_v2_sigmoid", summary="the same with sigmoid", paper=MOBILENET_PAPER)(
    partial(mobilenet_v2, activation=nn.Sigmoid)
)
