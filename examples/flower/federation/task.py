"""Model, data and training: nothing here knows of Flower or is recorded by its own doing."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from fedglass import load

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
CLASSES = 10
RECORDINGS = Path.home() / "recordings"
"""Absolute: Flower's processes have working directories of their own."""


class Net(nn.Module):
    """Two convolutions with batch normalisation and a dense layer, for images of 32 x 32."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 12, 5, padding=2, stride=2),
            nn.BatchNorm2d(12),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, padding=2, stride=2),
            nn.BatchNorm2d(12),
            nn.Sigmoid(),
        )
        self.classifier = nn.Linear(768, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.classifier(self.features(images).flatten(1))
        return found


def first_model() -> Net:
    torch.manual_seed(0)
    return Net()


def data_of(partition: int, source: str, examples: int, batch_size: int) -> DataLoader[tuple[Tensor, ...]]:
    """A client's own images, normalised as the model wants them."""
    data = load(source, size=32)
    rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[partition * examples :][:examples]
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    own = TensorDataset((data.images[rows] - mean) / std, data.labels[rows])
    return DataLoader(own, batch_size=batch_size, shuffle=True)


def train(model: Net, batches: DataLoader[tuple[Tensor, ...]], epochs: int, lr: float, momentum: float) -> float:
    """Local training as everybody writes it; gives the last loss."""
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    model.train()
    for _ in range(epochs):
        for images, labels in batches:
            optimiser.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()  # type: ignore[no-untyped-call] # of torch
            optimiser.step()
    return loss.item()
