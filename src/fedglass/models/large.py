"""Larger networks: DenseNet-121 [Huang et al., 2017], MobileNetV2 [Sandler et al., 2018], residual networks.

Residual networks [He et al., 2016] are ResNet-18 and -34, the small one of SME, and those of the curious client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from fedglass.core.registry import register
from fedglass.core.text import CURIOUS_CLIENT, SME
from fedglass.models.network import (
    GlobalMean,
    Shape,
    first_convolution,
    first_pool,
    is_small,
    layers,
    network,
    output_size,
)

POOLED = 8
"""Side of the maps that enter the dense layer of the curious client's networks."""
WIDTHS = (64, 128, 256, 512)
"""Channels of the four stages of a residual network."""
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
RESNET_PAPER = (
    "He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, CVPR 2016, https://arxiv.org/abs/1512.03385"
)
MOBILENET_PAPER = (
    "Sandler, Howard, Zhu, Zhmoginov, Chen: MobileNetV2: Inverted Residuals and Linear Bottlenecks, CVPR 2018, "
    "https://arxiv.org/abs/1801.04381"
)


def register_sigmoid(name: str, model: Callable[..., nn.Module], paper: str, whose: str = "") -> None:
    """Register a model a second time, with sigmoid as its activation."""
    with_sigmoid = partial(model, activation=nn.Sigmoid)
    register("models", f"{name}_sigmoid", summary=f"the same with sigmoid{whose}", paper=paper)(with_sigmoid)


def dense_layer(entering: int, activation: type[nn.Module]) -> nn.Module:
    """Return the layer that adds channels: norm - activation - conv 1x1 - norm - activation - conv 3x3."""
    return layers(
        norm1=nn.BatchNorm2d(entering),
        act1=activation(),
        conv1=nn.Conv2d(entering, BOTTLENECK, kernel_size=1, bias=False),
        norm2=nn.BatchNorm2d(BOTTLENECK),
        act2=activation(),
        conv2=nn.Conv2d(BOTTLENECK, GROWTH, kernel_size=3, padding=1, bias=False),
    )


class DenseBlock(nn.Module):
    """Layers that each see the channels of all before them."""

    def __init__(self, entering: int, layers: int, activation: type[nn.Module]) -> None:
        super().__init__()
        for i in range(layers):
            self.add_module(f"denselayer{i + 1}", dense_layer(entering + i * GROWTH, activation))

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
    last = nn.Linear(width, classes)
    return network("DenseNet", features=features, act=activation(), mean=GlobalMean(), classifier=last)


@register("models", "densenet121", summary="DenseNet-121", paper=DENSENET_PAPER)
def densenet121(*, shape: Shape, classes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    """Return the DenseNet with blocks of 6, 12, 24 and 16 layers."""
    return densenet(shape=shape, classes=classes, blocks=(6, 12, 24, 16), activation=activation)


register_sigmoid("densenet121", densenet121, DENSENET_PAPER)


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
    return network("MobileNetV2", features=nn.Sequential(*parts), mean=GlobalMean(), classifier=classifier)


register_sigmoid("mobilenet_v2", mobilenet_v2, MOBILENET_PAPER)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut, which is projected where the shape changes."""

    def __init__(
        self, entering: int, width: int, stride: int, activation: type[nn.Module] = nn.ReLU, normalised: bool = True
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(entering, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width) if normalised else nn.Identity()
        self.act = activation()
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width) if normalised else nn.Identity()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or entering != width:
            projection = nn.Conv2d(entering, width, kernel_size=1, stride=stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(width)) if normalised else projection

    def forward(self, inputs: Tensor) -> Tensor:
        branch = self.bn2(self.conv2(self.act(self.bn1(self.conv1(inputs)))))
        return cast(Tensor, self.act(branch + self.downsample(inputs)))


def stages(
    block: Callable[[int, int, int], nn.Module], widths: Sequence[int], blocks: Sequence[int]
) -> dict[str, nn.Module]:
    """Return blocks of each width; from the second width on the first block has stride 2."""
    named: dict[str, nn.Module] = {}
    entering, stride = widths[0], 1
    for i, (width, count) in enumerate(zip(widths, blocks, strict=True), start=1):
        later = [block(width, width, 1) for _ in range(count - 1)]
        named[f"layer{i}"] = nn.Sequential(block(entering, width, stride), *later)
        entering, stride = width, 2
    return named


def resnet(shape: Shape, classes: int, blocks: Sequence[int], activation: type[nn.Module]) -> nn.Module:
    """Return four stages of widths 64 to 512, global average, one dense layer; torchvision's names."""
    return network(
        "ResNet",
        conv1=first_convolution(shape, 64),
        bn1=nn.BatchNorm2d(64),
        act=activation(),
        maxpool=first_pool(shape),
        **stages(partial(BasicBlock, activation=activation), WIDTHS, blocks),
        mean=GlobalMean(),
        fc=nn.Linear(512, classes),
    )


@register("models", "resnet18", summary="ResNet-18", paper=RESNET_PAPER)
def resnet18(*, shape: Shape, classes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    """Return the ResNet with two blocks in each stage."""
    return resnet(shape, classes, (2, 2, 2, 2), activation)


register_sigmoid("resnet18", resnet18, RESNET_PAPER, ", as FedLeak uses it [Fan et al., 2025]")


@register("models", "resnet34", summary="ResNet-34", paper=RESNET_PAPER)
def resnet34(*, shape: Shape, classes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    """Return the ResNet with stages of 3, 4, 6 and 3 blocks."""
    return resnet(shape, classes, (3, 4, 6, 3), activation)


register_sigmoid("resnet34", resnet34, RESNET_PAPER)


@register("models", "resnet8", summary="three residual blocks of 32, 64, 128 channels", paper=SME)
def resnet8(*, shape: Shape, classes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    """Return the small residual network of the surrogate model extension (SME) [Zhu et al., 2023, Appendix G].

    Three basic blocks of widths 32, 64 and 128 and two dense layers. As in the release of SME, average pooling over 2x2
    is padded by one, so that 2048 numbers remain at 28x28, then come 1000 units with no activation in front of the last
    layer.
    """
    body = layers(
        conv1=first_convolution(shape, 32),
        bn1=nn.BatchNorm2d(32),
        act=activation(),
        maxpool=first_pool(shape),
        **stages(partial(BasicBlock, activation=activation), (32, 64, 128), (1, 1, 1)),
        avgpool=nn.AvgPool2d(kernel_size=2, stride=2, padding=1),
    )
    first = nn.Linear(output_size(body.eval(), shape), 1000)
    parts = dict(body.named_children())
    return network("ResNet8", **parts, flat=nn.Flatten(), fc1=first, fc2=nn.Linear(1000, classes)).train()


register_sigmoid("resnet8", resnet8, SME)


def curious_resnet(shape: Shape, classes: int, blocks: Sequence[int]) -> nn.Module:
    """Return the residual network of the curious client's release, without batch normalisation.

    Stem 7x7 with stride 2, four stages of widths 64 to 512, average pooling to 8 x 8, 32,768 numbers into the last
    layer, which has no bias. At 128x128 the maps are 8 x 8 by themselves; smaller ones are enlarged by the pooling, so
    that images of any size fit.
    """
    return network(
        "CuriousResNet",
        conv1=nn.Conv2d(shape[0], 64, kernel_size=7, stride=2, padding=3, bias=False),
        act=nn.ReLU(),
        **stages(partial(BasicBlock, normalised=False), WIDTHS, blocks),
        pool=nn.AdaptiveAvgPool2d(POOLED),
        flat=nn.Flatten(),
        fc=nn.Linear(512 * POOLED**2, classes, bias=False),
    )


@register(
    "models", "curious_resnet9", summary="four residual blocks, not normalised, no last bias", paper=CURIOUS_CLIENT
)
def curious_resnet9(*, shape: Shape, classes: int) -> nn.Module:
    """Return the network with one block in each stage."""
    return curious_resnet(shape, classes, (1, 1, 1, 1))


@register(
    "models", "curious_resnet18", summary="eight residual blocks, not normalised, no last bias", paper=CURIOUS_CLIENT
)
def curious_resnet18(*, shape: Shape, classes: int) -> nn.Module:
    """Return the network with two blocks in each stage."""
    return curious_resnet(shape, classes, (2, 2, 2, 2))
