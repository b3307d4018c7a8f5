"""Flat clipping of an update."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.params import Update
from fedglass.core.registry import register
from fedglass.defend import checks
from fedglass.fl.release import Outgoing

PAPER = (
    "Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: Deep Learning with Differential Privacy, CCS 2016, "
    "https://arxiv.org/abs/1607.00133"
)


@register("defences", "clip", summary="the update scaled down to a maximal L2 norm", paper=PAPER)
@dataclass(frozen=True)
class Clip:
    """u / max(1, ||u|| / norm), with the L2 norm over all parameters together [Abadi et al., 2016, Section 3.1].

    >>> Clip(norm=1.0).release(Outgoing({"w": torch.tensor([3.0, 4.0])}, torch.Generator()))
    {'w': tensor([0.6000, 0.8000])}
    """

    norm: float

    def __post_init__(self) -> None:
        checks.positive(self, "norm")

    def release(self, leaving: Outgoing) -> Update:
        length = norm_of(leaving.update)
        if length <= self.norm:
            return leaving.update
        return {name: tensor * (self.norm / length) for name, tensor in leaving.update.items()}


def norm_of(update: Update) -> Tensor:
    """The L2 norm over all parameters together."""
    length: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t) for t in update.values()]))
    return length
