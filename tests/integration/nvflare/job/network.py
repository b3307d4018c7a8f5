"""A small network with batch normalisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Sigmoid(), nn.AvgPool2d(2), nn.Flatten()
        )
        self.head = nn.Linear(64, 5)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(images))
        return found


def examples(site: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(int(site.rpartition("-")[2]))
    return torch.rand(6, 1, 8, 8, generator=generator), torch.randint(5, (6,), generator=generator)
