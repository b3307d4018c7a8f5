"""The model and a client's data: nothing here knows of NVFlare."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedglass import load

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
CLASSES, EXAMPLES = 10, 2


class Net(nn.Module):
    """Two convolutions and a dense layer, for images of 32 x 32."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 12, 5, padding=2, stride=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, padding=2, stride=2),
            nn.Sigmoid(),
        )
        self.classifier = nn.Linear(768, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.classifier(self.features(images).flatten(1))
        return found


def data_of(site: str) -> DataLoader[tuple[Tensor, ...]]:
    """A site's own photographs, normalised as the model wants them."""
    data = load("photos", size=32)
    first = (int(site.rpartition("-")[2]) - 1) * EXAMPLES
    rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[first : first + EXAMPLES]
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return DataLoader(TensorDataset((data.images[rows] - mean) / std, data.labels[rows]), batch_size=EXAMPLES)
