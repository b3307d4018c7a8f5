"""Networks that are trained against a critic: one draws images from codes, one sharpens reconstructed images.

Both are small and meant for 28 to 32 pixels, where a processor trains them in minutes. The papers' own are larger, and
of one of them only the weights are public. Every result with these networks is a reduced one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.core.rng import stream
from fedglass.diffusion.ddrm import Enlarged
from fedglass.diffusion.denoiser import Prediction
from fedglass.diffusion.folder import TRAIN, check_unchanged, load_network
from fedglass.diffusion.networks import Configured, UNet, check_images
from fedglass.diffusion.stored import network_and_digest, trained_on
from fedglass.diffusion.training import Batch, DenoisingTask
from fedglass.models.init import PyTorchDefault
from fedglass.models.network import Shape

T = TypeVar("T", bound="Adversarial")
SLOPE = 0.2
"""Slope of the leaky ReLU for negative inputs."""


class Adversarial(Configured):
    """A generator of images in [-1, 1], and the critic that it is trained against."""

    generator: nn.Module
    patches: bool
    """Whether the critic looks at patches."""

    def __init__(self, shape: Sequence[int], width: int) -> None:
        super().__init__()
        self.shape, self.width = _checked(shape, width)
        self.critic = Critic(self.shape, width, self.patches)

    def draw(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return as many images as there are real ones, and the part of the loss that needs no critic."""
        raise NotImplementedError


class Critic(nn.Module):
    """Tells drawn images from real ones: a higher score is more real.

    Each convolution is divided by its largest singular value [Miyato et al., 2018], as in ROG's release. The last one
    looks at patches of 26 x 26 pixels, or at the whole image.
    """

    def __init__(self, shape: Shape, width: int, patches: bool) -> None:
        super().__init__()
        channels, height, across = shape
        inner = [(channels, width, 4, 2), (width, 2 * width, 4, 2), (2 * width, 2 * width, 3, 1)]
        layers = [nn.Conv2d(a, b, side, stride, padding=1) for a, b, side, stride in inner]
        last = nn.Conv2d(2 * width, 1, 3, padding=1) if patches else nn.Conv2d(2 * width, 1, (height // 4, across // 4))
        self.layers = nn.ModuleList(spectral_norm(layer) for layer in (*layers, last))

    def forward(self, images: Tensor) -> Tensor:
        """Return the score of each patch.  # (n, c, h, w) -> (n, 1, a, b); a = b = 1 for whole images"""
        *inner, last = self.layers
        for layer in inner:
            images = F.leaky_relu(layer(images), SLOPE)
        return cast(Tensor, last(images))


@register("gans", "FedglassCodeGan", summary="draws images from codes")
class CodeGan(Adversarial):
    """x = G(z), z ~ N(0, 1) of `code` numbers: one dense layer and two doublings of the side.

    After the generator of [Zhang et al., 2020], with fewer channels and doublings.

    >>> CodeGan((1, 28, 28)).generate(torch.zeros(2, 100)).shape
    torch.Size([2, 1, 28, 28])
    """

    kind, patches = "FedglassCodeGan", False

    def __init__(self, shape: Sequence[int], code: int = 100, width: int = 32) -> None:
        super().__init__(shape, width)
        if not isinstance(code, int) or not 1 <= code <= 4096:
            raise UsageError(f"A GAN's codes have 1 to 4096 numbers, got {code!r}.")
        self.code = code
        channels, height, across = self.shape
        small = (4 * width, -(-height // 4), -(-across // 4))
        self.generator = nn.Sequential(
            nn.Linear(code, small[0] * small[1] * small[2]),
            nn.Unflatten(1, small),
            *(nn.BatchNorm2d(4 * width), nn.ReLU(), nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1)),
            *(nn.BatchNorm2d(2 * width), nn.ReLU(), nn.ConvTranspose2d(2 * width, width, 4, 2, 1)),
            *(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, channels, 3, padding=1)),
            nn.Tanh(),
        )

    def generate(self, codes: Tensor) -> Tensor:
        """(n, code) -> (n, c, h, w)"""
        padded_images: Tensor = self.generator(codes)
        return padded_images[..., : self.shape[1], : self.shape[2]]

    def draw(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        codes = torch.randn(len(images), self.code, generator=generator).to(images)
        return self.generate(codes), images.new_zeros(())


@register("gans", "FedglassEnhancer", summary="sharpens images that were reconstructed at low resolution")
class Enhancer(Adversarial):
    """A U-Net from enlarged to sharp images, after the post-processing GAN of ROG [Yue et al., 2023].

    It learns on public images that are degraded as such attacks degrade them: reduced by `factor`, with noise of up to
    `noise` (of pixels in [0, 1]) on the small image, and enlarged by bicubic weights. The loss is the critic's and
    `PRICE` times the mean absolute error, as in pix2pix [Isola et al., 2017]. REDUCED: ROG's release has a larger
    network that knows the class, averages it with a second one (a denoiser and USRNet), and publishes no training.

    >>> Enhancer((1, 28, 28), factor=4).enhance(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 1, 28, 28])
    """

    kind, patches = "FedglassEnhancer", True

    def __init__(self, shape: Sequence[int], factor: int = 4, width: int = 32, noise: float = 0.1) -> None:
        super().__init__(shape, width)
        if not isinstance(factor, int) or not isinstance(noise, int | float) or not 0 <= noise <= 1:
            raise UsageError(f"An enhancer has a whole factor and noise in [0, 1], got {factor!r} and {noise!r}.")
        for side in self.shape[1:]:
            Enlarged(factor).matrix(side)  # refuses a factor that does not divide the side
        self.factor, self.noise = factor, noise
        self.generator = UNet(self.shape, (width, 2 * width), blocks=1, patch=2)

    def enhance(self, images: Tensor) -> Tensor:
        """Sharpen enlarged images; only what a small image can show is read.  # (n, c, h, w)"""
        return self._sharpened(self._enlarged(self._reduced(images)))

    def blurred(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Degrade images as an attack at low resolution does.  # (n, c, h, w)"""
        small = self._reduced(images)
        deviation = 2 * self.noise * torch.rand(len(small), 1, 1, 1, generator=generator)
        noise = deviation * torch.randn(small.shape, generator=generator)
        return self._enlarged(small + noise.to(small))

    def draw(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        drawn = self._sharpened(self.blurred(images, generator))
        return drawn, PRICE * (drawn - images).abs().mean()

    def _reduced(self, images: Tensor) -> Tensor:
        down, across = (Enlarged(self.factor).reading(side).to(images) for side in self.shape[1:])
        return down @ images @ across.mT

    def _enlarged(self, small: Tensor) -> Tensor:
        return F.interpolate(small, self.shape[1:], mode="bicubic", align_corners=False)

    def _sharpened(self, large: Tensor) -> Tensor:
        no_step = torch.zeros(len(large), dtype=torch.int64, device=large.device)
        return large + cast(Tensor, self.generator(large, no_step))


PRICE = 100.0
"""Weight of an enhancer's mean absolute error, against the critic's score."""


def adversarial_loss(network: nn.Module, batch: Batch) -> Tensor:
    """Return the hinge loss of the critic and the loss of the generator; each moves its own weights only.

    Of a `Batch` only the target is looked at, as an autoencoder's loss does.
    """
    assert isinstance(network, Adversarial), "the loss of one kind of network"
    drawn, error = network.draw(batch.target, batch.generator)
    critic = network.critic
    judged = F.relu(1 - critic(batch.target)).mean() + F.relu(1 + critic(drawn.detach())).mean()
    critic.requires_grad_(False)
    score: Tensor = critic(drawn).mean()
    critic.requires_grad_(True)
    return judged - score + error


def adversarial_task(images: Tensor) -> DenoisingTask:
    """Images in [-1, 1], to be drawn so that a critic takes them for real ones."""
    return DenoisingTask(images, prediction=Prediction.SAMPLE, loss=adversarial_loss)


@dataclass(frozen=True)
class StoredGan:
    """The GAN of a folder as a value, without its weights but with a digest of the folder's contents."""

    name: str
    digest: str
    trained_on: str
    trained: bool = True
    """False for the control: the same network with random weights."""

    @property
    def words(self) -> str:
        """The training data as text, for the threat model."""
        return f"a GAN that was trained on {self.trained_on}"

    def code_gan(self, shape: Shape) -> CodeGan:
        """Return the network, which is shared and must not be changed; refuse images of another shape."""
        return self._load(shape, CodeGan, "sharpens images: train one with --kind codes to draw images")

    def enhancer(self, shape: Shape) -> Enhancer:
        """Return the network, which is shared and must not be changed; refuse images of another shape."""
        return self._load(shape, Enhancer, "draws images: train one with --kind enhancer to sharpen images")

    def _load(self, shape: Shape, kind: type[T], otherwise: str) -> T:
        """Return the network; `otherwise` is the end of the sentence that refuses one of another kind."""
        trained, digest = network_and_digest(self.name, "gans", "GAN")
        check_unchanged(f"GAN {self.name!r}", digest, self.digest)
        network = trained if self.trained else _untrained(self.name)
        assert isinstance(network, Adversarial), "all GANs are"
        check_images(network.shape, shape, f"The GAN {self.name!r} makes", TRAIN["GAN"])
        if not isinstance(network, kind):
            raise UsageError(f"The GAN {self.name!r} {otherwise}.")
        return network


def stored_gan(name: str) -> StoredGan:
    """Return the GAN in a folder as a value."""
    _, digest = network_and_digest(name, "gans", "GAN")
    return StoredGan(name, digest, trained_on(Path(name), "GAN"))


def located_gan(name: str, folder: Path) -> str:
    """Return `none` as it is, and any other name as a path relative to the folder."""
    return name if name == NO_GAN else str(folder / Path(name).expanduser())


NO_GAN = "none"
"""Value instead of a folder: no GAN is used."""


@functools.lru_cache(maxsize=4)
def _untrained(name: str) -> nn.Module:
    network = load_network(Path(name), "gans", "GAN")
    assert isinstance(network, Adversarial), "all GANs are"
    with torch.no_grad():
        PyTorchDefault().apply(network.generator, stream(0, "untrained"))
    return network


def _checked(shape: Sequence[int], width: int) -> tuple[Shape, int]:
    if not all(isinstance(number, int) for number in (*shape, width)):
        raise UsageError("A GAN's shape and width must be whole numbers.")
    if len(shape) != 3 or not all(1 <= side <= 512 for side in shape) or min(shape[1:]) < 8:
        raise UsageError(f"A GAN needs the images' channels and sides of 8 to 512 pixels, got {tuple(shape)}.")
    if not 4 <= width <= 512 or width % 4:
        raise UsageError(f"A GAN's width is a multiple of 4 from 4 to 512, got {width}.")
    channels, height, across = shape
    return (channels, height, across), width
