"""A small convolutional autoencoder, in whose latent space a diffusion model may work [Rombach et al., 2022].

Latents are trained as those of a variational autoencoder with a fixed spread: noise is added to them and their size is
held down, so that neighbours in latent space decode to similar pictures. Once trained, they are brought to mean 0 and
variance 1, channel by channel, as the noise schedule of a diffusion model expects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.errors import UsageError
from fedglass.diffusion.training import Batch


@dataclass(frozen=True)
class AutoencoderSize:
    """How large the network is; the defaults bring 28 x 28 grey pixels to 7 x 7 x 4 numbers."""

    halvings: int = 2
    """How often both sides are halved."""
    latent: int = 4
    """Channels of the latents."""
    width: int = 24
    """Channels of the widest picture; doubled at the first halving."""

    def __post_init__(self) -> None:
        if not 1 <= self.halvings <= 5 or min(self.latent, self.width) < 1:
            raise UsageError(
                f"An autoencoder halves 1 to 5 times and has at least 1 channel everywhere, got {self}."
            )


class Autoencoder(nn.Module):
    """Images in [-1, 1] to latents and back. Sides that are not divisible are continued by their last pixels.

    >>> net = Autoencoder(shape=(1, 28, 28))
    >>> net.latent_shape, net.decode(net.encode(torch.zeros(2, 1, 28, 28))).shape
    ((4, 7, 7), torch.Size([2, 1, 28, 28]))
    """

    centre: Tensor
    spread: Tensor

    def __init__(self, *, shape: tuple[int, int, int], size: AutoencoderSize | None = None) -> None:
        super().__init__()
        size = AutoencoderSize() if size is None else size
        self.shape, self.size = shape, size
        unit = 2**size.halvings
        self.padding = (0, -shape[2] % unit, 0, -shape[1] % unit)
        self.latent_shape = (size.latent, -(-shape[1] // unit), -(-shape[2] // unit))
        narrow = [size.width * min(2**i, 2) for i in range(size.halvings + 1)]  # channels at each side
        self.encoder = nn.Sequential(
            _conv(shape[0], narrow[0]),
            *(nn.Sequential(nn.SiLU(), _conv(a, b, 2), Residual(b)) for a, b in zip(narrow, narrow[1:], strict=False)),
            nn.SiLU(),
            _conv(narrow[-1], size.latent),
        )
        wide = narrow[::-1]
        self.decoder = nn.Sequential(
            _conv(size.latent, wide[0]),
            *(
                nn.Sequential(Residual(a), nn.Upsample(scale_factor=2.0), _conv(a, b))
                for a, b in zip(wide, wide[1:], strict=False)
            ),
            Residual(wide[-1]),
            nn.SiLU(),
            _conv(wide[-1], shape[0]),
        )
        self.register_buffer("centre", torch.zeros(size.latent, 1, 1))
        self.register_buffer("spread", torch.ones(size.latent, 1, 1))

    def encode(self, images: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, *latent_shape)"""
        latents = self.encoder(F.pad(images, self.padding, mode="replicate"))
        return cast(Tensor, (latents - self.centre) / self.spread)

    def decode(self, latents: Tensor) -> Tensor:
        """(n, *latent_shape) -> (n, c, h, w)"""
        whole: Tensor = self.decoder(latents * self.spread + self.centre)
        return whole[..., : self.shape[1], : self.shape[2]]

    def forward(self, images: Tensor) -> Tensor:
        return self.decode(self.encode(images))

    @torch.no_grad()
    def settle(self, images: Tensor, batch_size: int = 256) -> Tensor:
        """Bring the latents of these images to mean 0 and variance 1, and return them.  # (n, *latent_shape)"""
        self.centre.zero_()
        self.spread.fill_(1)
        latents = torch.cat([self.encode(batch) for batch in images.split(batch_size)])
        self.centre.copy_(latents.mean((0, 2, 3)).view(-1, 1, 1))
        self.spread.copy_(latents.std((0, 2, 3)).clamp(min=1e-6).view(-1, 1, 1))
        return (latents - self.centre) / self.spread


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.SiLU(), _conv(width, width), nn.SiLU(), _conv(width, width))

    def forward(self, images: Tensor) -> Tensor:
        return images + cast(Tensor, self.body(images))


@dataclass(frozen=True)
class ReconstructionLoss:
    """The squared error of images that went through latents with noise, and a price on the latents' size.

    Of a `Batch` only the target is looked at: with `Prediction.SAMPLE` it is the image itself, so that the loop that
    trains denoisers trains autoencoders too.
    """

    noise: float = 0.1
    price: float = 1e-4

    def __call__(self, network: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(network, Autoencoder), "the loss of one kind of network"
        images = batch.target
        latents = network.encode(images)
        noise = torch.randn(latents.shape, generator=batch.generator).to(latents)
        rebuilt = network.decode(latents + self.noise * noise)
        return (rebuilt - images).square().mean() + self.price * latents.square().mean()


def _conv(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1)
