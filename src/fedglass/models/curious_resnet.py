"""The residual networks of the curious client."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.papers import CURIOUS_CLIENT
from fedglass.core.registry import register
from fedglass.models.stem import Shape

POOLED = 8
"""Side of what enters the dense layer."""


class PlainBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is projected where the shape changes; nothing is normalised."""

    def __init__(self, entering: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(entering, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.act = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, padding=1, bias=False)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or entering != width:
            self.downsample = nn.Conv2d(entering, width, kernel_size=1, stride=stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.act(self.conv2(self.act(self.conv1(inputs))) + self.downsample(inputs)))


class CuriousResNet(nn.Module):
    """Stem 7x7 with stride 2, four stages of widths 64 to 512, average pooling to 8 x 8, 32,768 numbers into the
    last layer, which has no bias; no batch normalisation.

    As in the release of the curious client. At 128x128 the maps are 8 x 8 by themselves; smaller ones are enlarged by
    the pooling, so that images of any size will do.
    """

    def __init__(self, *, shape: Shape, classes: int, blocks: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.act = nn.ReLU()
        self.layer1 = _stage(64, 64, blocks[0], 1)
        self.layer2 = _stage(64, 128, blocks[1], 2)
        self.layer3 = _stage(128, 256, blocks[2], 2)
        self.layer4 = _stage(256, 512, blocks[3], 2)
        self.fc = nn.Linear(512 * POOLED**2, classes, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.act(self.conv1(inputs))
        hidden = self.layer4(self.layer3(self.layer2(self.layer1(hidden))))
        return cast(Tensor, self.fc(F.adaptive_avg_pool2d(hidden, POOLED).flatten(1)))


def _stage(entering: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    """Blocks of one width; the first one carries the stride."""
    rest = [PlainBlock(width, width, 1) for _ in range(blocks - 1)]
    return nn.Sequential(PlainBlock(entering, width, stride), *rest)


@register(
    "models", "curious_resnet9", summary="four residual blocks, not normalised, no last bias", paper=CURIOUS_CLIENT
)
def curious_resnet9(*, shape: Shape, classes: int) -> CuriousResNet:
    """One block a stage."""
    return CuriousResNet(shape=shape, classes=classes, blocks=(1, 1, 1, 1))


@register(
    "models", "curious_resnet18", summary="eight residual blocks, not normalised, no last bias", paper=CURIOUS_CLIENT
)
def curious_resnet18(*, shape: Shape, classes: int) -> CuriousResNet:
    """Two blocks a stage."""
    return CuriousResNet(shape=shape, classes=classes, blocks=(2, 2, 2, 2))
