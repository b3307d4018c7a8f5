"""One image for each example out of one for each example and epoch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.assignment import assign, squared_distances


@dataclass(frozen=True)
class MatchAndAverage:
    """Match every epoch's images to those of the first epoch, then average [Dimitrov et al., 2022, Sec. 4.4].

    The matching minimises the mean log of the squared distances, i.e. maximises the mean PSNR, as in the
    paper's release. With a single epoch this changes nothing.
    """

    def merge(self, images: Tensor) -> Tensor:
        first = images[0]
        matched = [first]
        for later in images[1:]:
            partner = assign(torch.log(squared_distances(first, later) + 1e-12))
            matched.append(later[partner.to(later.device)])
        return torch.stack(matched).mean(0)


@dataclass(frozen=True)
class FirstEpoch:
    """The images of the first epoch."""

    def merge(self, images: Tensor) -> Tensor:
        return images[0]
