"""The network that the clients train. The audit names it as `network:Net`."""

from torch import Tensor, nn


class Net(nn.Module):
    """A small convolutional network for colour images of 16 x 16 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 12, 5, padding=2, stride=2), nn.Sigmoid())
        self.classifier = nn.Linear(12 * 8 * 8, 4)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.classifier(self.features(images).flatten(1))
        return found
