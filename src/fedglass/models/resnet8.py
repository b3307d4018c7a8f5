"""The small residual network of the surrogate model extension."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from fedglass.core.papers import SME
from fedglass.core.registry import register
from fedglass.models.resnet import stage
from fedglass.models.stem import Shape, Stem, Stemmed, first_convolution, first_pool, flattened


class ResNet8(nn.Module):
    """Three basic blocks of widths 32, 64 and 128 and two dense layers [Zhu et al., 2023, Appendix G].

    As in the release of SME: average pooling over 2x2 padded by one, so that 2048 numbers remain at 28x28,
    then 1000 units with no activation in front of the last layer.
    """

    def __init__(self, *, shape: Shape, classes: int, stem: Stem, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.conv1 = first_convolution(stem, shape[0], 32)
        self.bn1 = nn.BatchNorm2d(32)
        self.act = activation()
        self.maxpool = first_pool(stem)
        self.layer1 = stage(32, 32, 1, 1, activation)
        self.layer2 = stage(32, 64, 1, 2, activation)
        self.layer3 = stage(64, 128, 1, 2, activation)
        self.avgpool = nn.AvgPool2d(kernel_size=2, stride=2, padding=1)
        strided = [self.conv1, self.maxpool, self.layer1, self.layer2, self.layer3, self.avgpool]
        self.fc1 = nn.Linear(flattened(nn.Sequential(*strided).eval(), shape), 1000)
        self.fc2 = nn.Linear(1000, classes)
        self.train()

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.maxpool(self.act(self.bn1(self.conv1(inputs))))
        hidden = self.avgpool(self.layer3(self.layer2(self.layer1(hidden))))
        return cast(Tensor, self.fc2(self.fc1(hidden.flatten(1))))


register("models", "resnet8", summary="three residual blocks of 32, 64, 128 channels", paper=SME)(Stemmed(ResNet8))
register("models", "resnet8_sigmoid", summary="the same with sigmoid", paper=SME)(Stemmed(ResNet8, nn.Sigmoid))
