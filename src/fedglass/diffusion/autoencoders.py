"""Autoencoders: codes that are brought to mean 0 and variance 1, how they are trained, and two networks.

Codes are trained as those of a variational autoencoder with a fixed spread: noise is added to them and their size is
held down, so that neighbours among the codes decode to similar pictures. Once trained, they are brought to mean 0 and
variance 1, channel by channel, as the noise schedule of a diffusion model expects, and so does a search that starts
from a random code.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.diffusion.denoiser import Prediction
from fedglass.diffusion.networks import Configured, checked_shape
from fedglass.diffusion.training import Batch, DenoisingTask, ImageModelTraining

AT_ONCE = 256
"""Images that are encoded together."""
CODE_NOISE, CODE_PRICE = 0.1, 1e-4
"""Deviation of the noise that is added to codes in training, and the price of their mean square."""


class LatentSpace(Configured):
    """Images in [-1, 1] to codes and back. Sides that are not divisible are continued by their last pixels."""

    centre: Tensor
    spread: Tensor
    encoder: nn.Module
    decoder: nn.Module

    def __init__(self, shape: Sequence[int], halvings: int, latent: int, width: int) -> None:
        """Both sides are halved so often; codes have `latent` channels."""
        super().__init__()
        self.shape = checked_shape("An autoencoder", shape, halvings, latent, width)
        if not (1 <= halvings <= 5 and 1 <= latent <= 64 and 1 <= width <= 1024):
            raise UsageError(
                "An autoencoder has 1 to 5 halvings, 1 to 64 latent channels and a width of 1 to 1024, got "
                f"{halvings}, {latent} and {width}."
            )
        self.halvings, self.latent, self.width = halvings, latent, width
        unit = 2**halvings
        self.padding = (0, -self.shape[2] % unit, 0, -self.shape[1] % unit)
        self.latent_shape = (latent, -(-self.shape[1] // unit), -(-self.shape[2] // unit))
        self.register_buffer("centre", torch.zeros(latent, 1, 1))
        self.register_buffer("spread", torch.ones(latent, 1, 1))

    def encode(self, images: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, *latent_shape)"""
        latents = self.encoder(F.pad(images, self.padding, mode="replicate"))
        return cast(Tensor, (latents - self.centre) / self.spread)

    def decode(self, latents: Tensor) -> Tensor:
        """(n, *latent_shape) -> (n, c, h, w)"""
        padded_images: Tensor = self.decoder(latents * self.spread + self.centre)
        return padded_images[..., : self.shape[1], : self.shape[2]]

    def forward(self, images: Tensor) -> Tensor:
        return self.decode(self.encode(images))

    @torch.no_grad()
    def latents_of(self, images: Tensor) -> Tensor:
        """`encode`, a few images at a time and without a gradient."""
        return torch.cat([self.encode(batch) for batch in torch.split(images, AT_ONCE)])

    @torch.no_grad()
    def settle(self, images: Tensor) -> None:
        """Bring the codes of these images to mean 0 and variance 1."""
        self.centre.zero_()
        self.spread.fill_(1)
        latents = self.latents_of(images)
        self.centre.copy_(latents.mean((0, 2, 3)).view(-1, 1, 1))
        self.spread.copy_(latents.std((0, 2, 3)).clamp(min=1e-6).view(-1, 1, 1))


def reconstruction_loss(network: nn.Module, batch: Batch) -> Tensor:
    """Return the squared error of images that went through codes with noise, plus a price on the codes' size.

    Of a `Batch` only the target is looked at: with `Prediction.SAMPLE` it is the image itself, so that the loop that
    trains denoisers trains autoencoders too.
    """
    assert isinstance(network, LatentSpace), "the loss of one kind of network"
    images = batch.target
    latents = network.encode(images)
    noise = torch.randn(latents.shape, generator=batch.generator).to(latents)
    rebuilt = network.decode(latents + CODE_NOISE * noise)
    return (rebuilt - images).square().mean() + CODE_PRICE * latents.square().mean()


def lesson_of(images: Tensor) -> DenoisingTask:
    """Images in [-1, 1], to be drawn again after their codes."""
    return DenoisingTask(images, prediction=Prediction.SAMPLE, loss=reconstruction_loss)


def settled(network: LatentSpace, training: ImageModelTraining, images: Tensor) -> LatentSpace:
    """The network with the averaged weights of its training, and codes of mean 0 and variance 1."""
    network.load_state_dict(training.averaged)
    network.settle(images)
    return network


# A small convolutional autoencoder, in whose latent space a diffusion model may work [Rombach et al., 2022].


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
            *(nn.Sequential(nn.SiLU(), _conv(a, b, 2), Shortcut(b)) for a, b in pairwise(narrow)),
            nn.SiLU(),
            _conv(narrow[-1], latent),
        )
        wide = narrow[::-1]
        self.decoder = nn.Sequential(
            _conv(latent, wide[0]),
            *(nn.Sequential(Shortcut(a), nn.Upsample(scale_factor=2.0), _conv(a, b)) for a, b in pairwise(wide)),
            Shortcut(wide[-1]),
            nn.SiLU(),
            _conv(wide[-1], shape[0]),
        )


class Shortcut(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.SiLU(), _conv(width, width), nn.SiLU(), _conv(width, width))

    def forward(self, images: Tensor) -> Tensor:
        return images + cast(Tensor, self.body(images))


def _conv(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1)


# An autoencoder of three convolutional layers, in whose codes an attack may look for images.


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
