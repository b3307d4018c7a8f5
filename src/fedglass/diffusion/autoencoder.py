"""A small convolutional autoencoder, in whose latent space a diffusion model may work [Rombach et al., 2022]."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

from torch import Tensor, nn

from fedglass.core.registry import register
from fedglass.diffusion.latent_space import LatentSpace


@register("autoencoders", "FedglassAutoencoder", summary="a convolutional autoencoder")
class Autoencoder(LatentSpace):
    """Images in [-1, 1] to latents and back. Sides that are not divisible are continued by their last pixels.

    >>> import torch
    >>> net = Autoencoder((1, 28, 28))
    >>> net.latent_shape, net.decode(net.encode(torch.zeros(2, 1, 28, 28))).shape
    ((4, 7, 7), torch.Size([2, 1, 28, 28]))
    """

    kind = "FedglassAutoencoder"

    def __init__(self, shape: Sequence[int], halvings: int = 2, latent: int = 4, width: int = 24) -> None:
        """Both sides are halved so often; `width` channels, doubled at the first halving, and `latent` in between."""
        super().__init__(shape, halvings, latent, width)
        narrow = [width * min(2**i, 2) for i in range(halvings + 1)]  # channels at each side
        self.encoder = nn.Sequential(
            _conv(shape[0], narrow[0]),
            *(nn.Sequential(nn.SiLU(), _conv(a, b, 2), Residual(b)) for a, b in pairwise(narrow)),
            nn.SiLU(),
            _conv(narrow[-1], latent),
        )
        wide = narrow[::-1]
        self.decoder = nn.Sequential(
            _conv(latent, wide[0]),
            *(nn.Sequential(Residual(a), nn.Upsample(scale_factor=2.0), _conv(a, b)) for a, b in pairwise(wide)),
            Residual(wide[-1]),
            nn.SiLU(),
            _conv(wide[-1], shape[0]),
        )

    def options(self) -> dict[str, Any]:
        """What it was made with, for its config.json."""
        return {"shape": self.shape, "halvings": self.halvings, "latent": self.latent, "width": self.width}


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.SiLU(), _conv(width, width), nn.SiLU(), _conv(width, width))

    def forward(self, images: Tensor) -> Tensor:
        return images + cast(Tensor, self.body(images))


def _conv(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1)
