"""Residual networks of basic blocks [He et al., 2016]."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from fedglass.core.registry import register
from fedglass.models.stem import Shape, Stem, Stemmed, first_convolution, first_pool

PAPER = "He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, CVPR 2016, https://arxiv.org/abs/1512.03385"


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is projected where the shape changes."""

    def __init__(self, entering: int, width: int, stride: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(entering, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act = activation()
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or entering != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(entering, width, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, inputs: Tensor) -> Tensor:
        branch = self.bn2(self.conv2(self.act(self.bn1(self.conv1(inputs)))))
        return cast(Tensor, self.act(branch + self.downsample(inputs)))


def stage(entering: int, width: int, blocks: int, stride: int, activation: type[nn.Module]) -> nn.Sequential:
    """Blocks of one width; the first one carries the stride."""
    rest = [BasicBlock(width, width, 1, activation) for _ in range(blocks - 1)]
    return nn.Sequential(BasicBlock(entering, width, stride, activation), *rest)


class ResNet(nn.Module):
    """Four stages of widths 64 to 512, global average, one dense layer; torchvision's names."""

    def __init__(
        self,
        *,
        shape: Shape,
        classes: int,
        blocks: tuple[int, int, int, int],
        stem: Stem,
        activation: type[nn.Module] = nn.ReLU,
    ) -> None:
        super().__init__()
        self.conv1 = first_convolution(stem, shape[0], 64)
        self.bn1 = nn.BatchNorm2d(64)
        self.act = activation()
        self.maxpool = first_pool(stem)
        self.layer1 = stage(64, 64, blocks[0], 1, activation)
        self.layer2 = stage(64, 128, blocks[1], 2, activation)
        self.layer3 = stage(128, 256, blocks[2], 2, activation)
        self.layer4 = stage(256, 512, blocks[3], 2, activation)
        self.fc = nn.Linear(512, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.maxpool(self.act(self.bn1(self.conv1(inputs))))
        hidden = self.layer4(self.layer3(self.layer2(self.layer1(hidden))))
        return cast(Tensor, self.fc(hidden.mean((2, 3))))


def resnet18(*, shape: Shape, classes: int, stem: Stem, activation: type[nn.Module] = nn.ReLU) -> ResNet:
    """Two blocks a stage."""
    return ResNet(shape=shape, classes=classes, blocks=(2, 2, 2, 2), stem=stem, activation=activation)


def resnet34(*, shape: Shape, classes: int, stem: Stem, activation: type[nn.Module] = nn.ReLU) -> ResNet:
    """3, 4, 6 and 3 blocks."""
    return ResNet(shape=shape, classes=classes, blocks=(3, 4, 6, 3), stem=stem, activation=activation)


register("models", "resnet18", summary="ResNet-18", paper=PAPER)(Stemmed(resnet18))
register(
    "models", "resnet18_sigmoid", summary="the same with sigmoid, as FedLeak uses it [Fan et al., 2025]", paper=PAPER
)(Stemmed(resnet18, nn.Sigmoid))
register("models", "resnet34", summary="ResNet-34", paper=PAPER)(Stemmed(resnet34))
register("models", "resnet34_sigmoid", summary="the same with sigmoid", paper=PAPER)(Stemmed(resnet34, nn.Sigmoid))
