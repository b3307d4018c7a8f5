"""The two feature stacks of LPIPS, under torchvision's parameter names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, relu


@dataclass(frozen=True)
class Conv:
    """A convolution followed by ReLU; `index` is its place in torchvision's `features`."""

    index: int
    inputs: int
    outputs: int
    kernel: int = 3
    stride: int = 1
    padding: int = 1

    def __call__(self, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        name = f"features.{self.index}"
        kernel, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return relu(conv2d(x, kernel, bias, stride=self.stride, padding=self.padding))


@dataclass(frozen=True)
class Block:
    """An optional max pooling of stride 2, then convolutions; its output is what LPIPS compares."""

    convs: tuple[Conv, ...]
    pool: int | None = None

    def __call__(self, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        x = x if self.pool is None else max_pool2d(x, self.pool, stride=2)
        for conv in self.convs:
            x = conv(x, weights)
        return x


@dataclass(frozen=True)
class Trunk:
    """A feature stack, read out after each block."""

    name: str
    blocks: tuple[Block, ...]

    def features(self, x: Tensor, weights: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """The activations after each block, one at a time.  # (n, 3, h, w) -> (n, c_i, h_i, w_i)"""
        for block in self.blocks:
            x = block(x, weights)
            yield x

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor that a weights file must hold.

        >>> ALEX.shapes()["lin0.weight"]
        (1, 64, 1, 1)
        """
        shapes: dict[str, tuple[int, ...]] = {}
        for i, block in enumerate(self.blocks):
            for c in block.convs:
                shapes[f"features.{c.index}.weight"] = (c.outputs, c.inputs, c.kernel, c.kernel)
                shapes[f"features.{c.index}.bias"] = (c.outputs,)
            shapes[f"lin{i}.weight"] = (1, block.convs[-1].outputs, 1, 1)
        return shapes


ALEX = Trunk(
    "alex",
    (
        Block((Conv(0, 3, 64, kernel=11, stride=4, padding=2),)),
        Block((Conv(3, 64, 192, kernel=5, padding=2),), pool=3),
        Block((Conv(6, 192, 384),), pool=3),
        Block((Conv(8, 384, 256),)),
        Block((Conv(10, 256, 256),)),
    ),
)
VGG = Trunk(
    "vgg",
    (
        Block((Conv(0, 3, 64), Conv(2, 64, 64))),
        Block((Conv(5, 64, 128), Conv(7, 128, 128)), pool=2),
        Block((Conv(10, 128, 256), Conv(12, 256, 256), Conv(14, 256, 256)), pool=2),
        Block((Conv(17, 256, 512), Conv(19, 512, 512), Conv(21, 512, 512)), pool=2),
        Block((Conv(24, 512, 512), Conv(26, 512, 512), Conv(28, 512, 512)), pool=2),
    ),
)
TRUNKS = (ALEX, VGG)
