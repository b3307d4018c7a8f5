"""The network that the clients train. The plan names it as `network:make`."""

from torch import nn


def make(classes: int = 4) -> nn.Module:
    """A small convolutional network for colour images of 16 x 16 pixels."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 5, padding=2, stride=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(24 * 8 * 8, classes),
    )
