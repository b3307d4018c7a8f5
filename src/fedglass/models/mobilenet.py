"""MobileNetV2 [Sandler et al., 2018]."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from fedglass.core.registry import register
from fedglass.models.stem import Shape, Stem, Stemmed

# Expansion, channels, repetitions, stride of the first [Sandler et al., 2018, Table 2].
GROUPS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


PAPER = (
    "Sandler, Howard, Zhu, Zhmoginov, Chen: MobileNetV2: Inverted Residuals and Linear Bottlenecks, CVPR 2018, "
    "https://arxiv.org/abs/1801.04381"
)


def unit(
    entering: int, leaving: int, kernel: int, stride: int, groups: int, activation: type[nn.Module]
) -> nn.Sequential:
    """Convolution, normalisation, activation."""
    return nn.Sequential(
        nn.Conv2d(entering, leaving, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(leaving),
        activation(),
    )


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project back without activation; a shortcut where the shape stays."""

    def __init__(self, entering: int, leaving: int, stride: int, expansion: int, activation: type[nn.Module]) -> None:
        super().__init__()
        inner = entering * expansion
        expand = [unit(entering, inner, 1, 1, 1, activation)] if expansion != 1 else []
        self.conv = nn.Sequential(
            *expand,
            unit(inner, inner, 3, stride, inner, activation),
            nn.Conv2d(inner, leaving, kernel_size=1, bias=False),
            nn.BatchNorm2d(leaving),
        )
        self.shortcut = stride == 1 and entering == leaving

    def forward(self, inputs: Tensor) -> Tensor:
        branch = cast(Tensor, self.conv(inputs))
        return inputs + branch if self.shortcut else branch


class MobileNetV2(nn.Module):
    """Inverted residuals, 1280 channels, global average, one dense layer, with torchvision's parameter names.

    The SMALL stem drops the first two strides, as is usual at 32x32. There is no dropout, because a gradient
    would then depend on a mask that nobody records; `classifier.0` only keeps its place.
    """

    def __init__(self, *, shape: Shape, classes: int, stem: Stem, activation: type[nn.Module] = nn.ReLU6) -> None:
        super().__init__()
        start, second = (1, 1) if stem is Stem.SMALL else (2, 2)
        width = 32
        layers: list[nn.Module] = [unit(shape[0], width, 3, start, 1, activation)]
        for i, (expansion, channels, repetitions, stride) in enumerate(GROUPS):
            strides = [second if i == 1 else stride] + [1] * (repetitions - 1)
            for step in strides:
                layers.append(InvertedResidual(width, channels, step, expansion, activation))
                width = channels
        layers.append(unit(width, 1280, 1, 1, 1, activation))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Identity(), nn.Linear(1280, classes))

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.classifier(self.features(inputs).mean((2, 3))))


register("models", "mobilenet_v2", summary="MobileNetV2 with ReLU6", paper=PAPER)(Stemmed(MobileNetV2))
register("models", "mobilenet_v2_sigmoid", summary="the same with sigmoid", paper=PAPER)(
    Stemmed(MobileNetV2, nn.Sigmoid)
)
