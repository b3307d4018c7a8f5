"""An autoencoder of three convolutional layers, in whose codes an attack may look for images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from fedglass.core.registry import register
from fedglass.diffusion.latent_space import LatentSpace

HALVINGS = 3
"""One a layer."""


@register("autoencoders", "FedglassThreeLayers", summary="three convolutional layers to codes, and three back")
class ThreeLayers(LatentSpace):
    """Three convolutions of stride 2 and their mirror image; pixels end in (-1, 1) by a hyperbolic tangent.

    [Yue et al., 2025, Appendix C] has an autoencoder of three convolutional layers and says no more of it: kernels of
    4 x 4, SiLU in between, `width` and twice as many channels and `latent` channels of codes are chosen here.

    >>> import torch
    >>> net = ThreeLayers((1, 28, 28))
    >>> net.latent_shape, net.decode(net.encode(torch.zeros(2, 1, 28, 28))).shape
    ((8, 4, 4), torch.Size([2, 1, 28, 28]))
    """

    kind = "FedglassThreeLayers"

    def __init__(self, shape: Sequence[int], latent: int = 8, width: int = 16) -> None:
        super().__init__(shape, HALVINGS, latent, width)
        channels = self.shape[0]
        self.encoder = nn.Sequential(
            nn.Conv2d(channels, width, 4, 2, 1),
            nn.SiLU(),
            nn.Conv2d(width, 2 * width, 4, 2, 1),
            nn.SiLU(),
            nn.Conv2d(2 * width, latent, 4, 2, 1),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(latent, 2 * width, 4, 2, 1),
            nn.SiLU(),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.SiLU(),
            nn.ConvTranspose2d(width, channels, 4, 2, 1),
            nn.Tanh(),
        )

    def options(self) -> dict[str, Any]:
        return {"shape": self.shape, "latent": self.latent, "width": self.width}
