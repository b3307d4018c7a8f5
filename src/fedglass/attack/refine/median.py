"""Each pixel replaced by the median of its neighbourhood."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.parts import Refinement
from fedglass.core.errors import UsageError
from fedglass.core.registry import register


@register("refinements", "median", summary="each pixel replaced by the median of its neighbourhood")
@dataclass(frozen=True)
class MedianFilter:
    """The median over size x size pixels around each, channel by channel, the borders mirrored.

    FedLeak's release ends with one of size 5 [Fan et al., 2025]. Size 1 changes nothing.
    """

    size: int = 5

    def __post_init__(self) -> None:
        if self.size < 1 or self.size % 2 == 0:
            raise UsageError(f"The median filter's size must be odd and at least 1, got {self.size}.")

    def refine(self, given: Refinement) -> Tensor:
        images, pad = given.images, self.size // 2
        if pad >= min(images.shape[-2:]):
            raise UsageError(f"MedianFilter(size={self.size}) needs pictures larger than {pad} x {pad} pixels.")
        around = F.pad(images, (pad, pad, pad, pad), mode="reflect") if pad else images
        patches = around.unfold(-2, self.size, 1).unfold(-2, self.size, 1)  # (n, c, h, w, size, size)
        return patches.flatten(-2).median(-1).values
