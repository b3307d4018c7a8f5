"""Images that a network draws from codes: the unknowns are the network's weights, or the codes.

`GeneratorWeights` is an untrained convolutional generator. `Latent` has the decoder of a trained autoencoder in a
folder, or of one that the adversary trains on its own examples. `GanCodes` has a trained GAN.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.forward.target import like
from fedglass.attack.images.pixels import whitened_bounds
from fedglass.attack.parts import Bound
from fedglass.core.errors import UsageError, check_at_least
from fedglass.core.facts import Fact, refusal
from fedglass.core.identity import LATER
from fedglass.core.rng import derive, stream
from fedglass.core.types import Knowledge, Observation, Unknown
from fedglass.diffusion.autoencoders import LatentSpace, ThreeLayers, lesson_of, settled
from fedglass.diffusion.folder import TRAIN, check_unchanged
from fedglass.diffusion.gan import CodeGan, StoredGan
from fedglass.diffusion.networks import check_images
from fedglass.diffusion.stored import network_and_digest, trained_on
from fedglass.diffusion.training import ImageModelTraining, TrainingOptions
from fedglass.models.network import Shape

OWN, NONE = "own", "none"
"""Values instead of a folder: the adversary trains an autoencoder itself, or uses none."""
OWN_COURSE = TrainingOptions(steps=1, lr=5e-3, batch_size=16, average=0.98)
"""The training of the adversary's own autoencoder, with higher rates than one of thousands of steps has."""
ENOUGH_IMAGES = 500
"""Number of images to learn from; fewer are augmented up to it."""
MOST_PIXELS = 2**25
"""Number of pixels of all images together up to which they are augmented."""
SLOPE = 0.1
"""Slope of the leaky ReLU for negative inputs."""
FULL_WIDTH_SIDE = 32
"""Up to this side all blocks are equally wide; each further doubling halves the width, down to a quarter."""


@dataclass(frozen=True)
class GeneratorWeights:
    """x = G(z; theta), theta the unknowns and z ~ N(0, 1) fixed [Fan et al., 2025, FedLeak].

    After the release: a code for each image becomes 4 x 4, and blocks of two 3 x 3 convolutions with batch
    normalisation and leaky ReLU follow, doubling the side in between; a 1 x 1 convolution and a sigmoid give pixels
    inside the bounds. Other sides are reached by resizing, or with `crop` by a crop of the centre: the coarse-to-fine
    paper compares both. The release's spectral normalisation is left out: batch normalisation undoes a convolution's
    scale.
    """

    evaluations: ClassVar[float] = 2.0
    """Cost of an iteration, in iterations on pixels."""

    width: int = 256
    code: int = 128
    crop: bool = field(default=False, metadata=LATER)
    """Whether other sides are reached by a crop of the centre."""

    def __post_init__(self) -> None:
        for name in ("width", "code"):
            check_at_least(f"generator.{name}", getattr(self, name), 1)

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        if start is not None:
            raise UsageError(
                "GeneratorWeights cannot start from the images of a previous stage: make its stage the first."
            )
        knows, kind = observation.knows, like(observation)
        code = torch.randn(knows.examples, self.code, 1, 1, generator=generator).to(kind)
        starts = [t.to(kind) for t in self.weights(knows.shape, generator)]

        def decode(tensors: Sequence[Tensor]) -> Tensor:
            pictures, (height, width) = generate(code, tensors), knows.shape[1:]
            if self.crop:
                top, left = (pictures.shape[-2] - height) // 2, (pictures.shape[-1] - width) // 2
                shares = pictures[..., top : top + height, left : left + width]
            else:
                shares = F.interpolate(pictures, (height, width), mode="bilinear", antialias=True)
            pixels = knows.low + (knows.high - knows.low) * shares
            return knows.whitening.whiten(pixels)[None]  # (1, n, c, h, w)

        low, high = whitened_bounds(observation)
        # There are enough weights for every pixel: only the sigmoid at the end limits the pictures.
        return Bound(tuple(Unknown(t) for t in starts), decode, lambda images: images.clamp(low, high))

    def weights(self, shape: tuple[int, int, int], generator: torch.Generator) -> list[Tensor]:
        """Draw the start: Kaiming normal for convolutions, one and zero for normalisations.

        In the order in which `generate` takes them: each convolution is followed by a scale and a shift.
        """
        widths = block_widths(self.width, max(shape[1:]))
        kernels = [(self.code, self.width, 4, 4)]
        for before, after in zip([self.width, *widths[:-1]], widths, strict=True):
            kernels += [(after, before, 3, 3), (after, after, 3, 3)]
        tensors: list[Tensor] = []
        for i, (a, b, h, w) in enumerate(kernels):
            fan, out = (a, b) if i == 0 else (b * h * w, a)  # the first is transposed: one code reaches each pixel
            tensors.append(torch.randn(a, b, h, w, generator=generator) * (2 / fan) ** 0.5)
            tensors += [torch.ones(out), torch.zeros(out)]
        last = torch.randn(shape[0], widths[-1], 1, 1, generator=generator) / widths[-1] ** 0.5
        return [*tensors, last, torch.zeros(shape[0])]


def block_widths(width: int, side: int) -> list[int]:
    """Return the channels of the blocks at the sides 4, 8, 16, ... up to the first that covers `side`.

    >>> block_widths(256, 32), block_widths(256, 224)
    ([256, 256, 256, 256], [256, 256, 256, 256, 128, 64, 64])
    """
    widths, reached = [width], 4
    while reached < side:
        reached *= 2
        halvings = min(2, max(0, (reached // FULL_WIDTH_SIDE).bit_length() - 1))
        widths.append(max(1, width >> halvings))
    return widths


def generate(code: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Run the generator with the given weights; its values are in (0, 1).  # (n, code, 1, 1) -> (n, c, side, side)"""
    layers = [tensors[i : i + 3] for i in range(0, len(tensors) - 2, 3)]
    kernel, scale, shift = layers[0]
    x = _activated(F.conv_transpose2d(code, kernel), scale, shift)
    for i, (kernel, scale, shift) in enumerate(layers[1:]):
        if i % 2 == 0 and i > 0:
            x = F.interpolate(x, scale_factor=2.0)
        x = _activated(F.conv2d(x, kernel, padding=1), scale, shift)
    return torch.sigmoid(F.conv2d(x, tensors[-2], tensors[-1]))


def _activated(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Apply batch normalisation by the batch's own statistics, then leaky ReLU."""
    return F.leaky_relu(F.batch_norm(x, None, None, scale, shift, training=True), SLOPE)


@dataclass(frozen=True)
class StoredDecoder:
    """The autoencoder of a folder as a value, without its weights but with a digest of the folder's contents."""

    name: str
    digest: str
    trained_on: str

    @property
    def words(self) -> str:
        """The training data as text, for the threat model."""
        return f"an autoencoder that was trained on {self.trained_on}"

    def latent_shape(self, knows: Knowledge) -> Shape:
        """Return the shape of one code, without the work of `network`; refuse images of another shape."""
        network = self.network()
        check_images(network.shape, knows.shape, f"The autoencoder {self.name!r} draws", TRAIN["autoencoder"])
        return network.latent_shape

    def network(self, observation: Observation | None = None) -> LatentSpace:
        """Return the network, which is shared and must not be changed; it does not depend on an observation."""
        network, digest = network_and_digest(self.name, "autoencoders", "autoencoder")
        check_unchanged(f"autoencoder {self.name!r}", digest, self.digest)
        assert isinstance(network, LatentSpace), "all autoencoders are"
        return network


@dataclass(frozen=True)
class OwnDecoder:
    """An autoencoder that the adversary trains on its own examples, which a participant has.

    [Yue et al., 2025] does not say what its autoencoder was trained on: its attacker has nothing but its own data. Few
    examples are augmented by moved and mirrored copies: from two digits alone a network learns to draw these two, from
    their copies it learns what strokes look like. Small and quick, since every attack begins with it; the same examples
    and seed give the same network.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.OWN_EXAMPLES})

    steps: int = 300
    latent: int = 8
    width: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "latent", "width"):
            check_at_least(f"decoder.{name}", getattr(self, name), 1)

    @property
    def words(self) -> str:
        return "an autoencoder that the adversary has trained on its own examples"

    def latent_shape(self, knows: Knowledge) -> Shape:
        with torch.device("meta"):
            return ThreeLayers(knows.shape, self.latent, self.width).latent_shape

    def network(self, observation: Observation) -> LatentSpace:
        if observation.own is None:
            raise refusal("OwnDecoder", self.needs)
        images = signed(observation.own.images.detach().cpu().float(), observation.knows)
        return _taught(self, images.numpy().tobytes(), tuple(images.shape))


def decoder_named(name: str) -> StoredDecoder | OwnDecoder:
    """Return the decoder `own`, or that of the autoencoder in a folder."""
    if name == OWN:
        return OwnDecoder()
    _, digest = network_and_digest(name, "autoencoders", "autoencoder")
    return StoredDecoder(name, digest, trained_on(Path(name), "autoencoder"))


def located_decoder(name: str, folder: Path) -> str:
    """Return `own` and `none` as they are, and any other name as a path relative to the folder."""
    return name if name in (OWN, NONE) else str(folder / Path(name).expanduser())


@functools.lru_cache(maxsize=4)
def _taught(spec: OwnDecoder, pixels: bytes, shape: tuple[int, ...]) -> LatentSpace:
    """Train a network on the examples alone; nothing else goes in but the seed. None is trained twice on the same."""
    course = replace(OWN_COURSE, steps=spec.steps, seed=spec.seed)
    _, channels, height, width = shape
    examples = torch.frombuffer(bytearray(pixels), dtype=torch.float32).view(shape)
    images = augmented(examples, stream(spec.seed, "copies"))
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(derive(spec.seed, "own decoder"))
        network = ThreeLayers((channels, height, width), spec.latent, spec.width)
        training = ImageModelTraining(network, lesson_of(images), course).run()
    return settled(network, training, images).eval().requires_grad_(False)


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return the images and enough copies of them, moved by up to a seventh of their sides and mirrored.

    >>> [len(augmented(torch.zeros(n, 1, 8, 8), stream(0, "copies"))) for n in (3, 600)]
    [500, 600]
    """
    count = min(ENOUGH_IMAGES, MOST_PIXELS // images[0].numel()) - len(images)
    sides = torch.tensor(images.shape[-2:])
    moved = []
    for i in range(count):
        steps = ((sides / 7).ceil() * (2 * torch.rand(2, generator=generator) - 1)).round().int().tolist()
        mirrored = [axis for axis in (-2, -1) if torch.rand((), generator=generator) < 0.5]
        moved.append(images[i % len(images)].roll(steps, (-2, -1)).flip(mirrored))
    return torch.cat([images, torch.stack(moved)]) if moved else images


@dataclass(frozen=True)
class Latent:
    """x = D(z), D the decoder of an autoencoder and z the unknowns [Yue et al., 2025, Section 4.3].

    Codes start from N(0, 1), the distribution of the codes of images. `nearest` gives the images themselves, also where
    no code decodes to them: a decoder that cannot draw the private images does not protect them.
    """

    decoder: StoredDecoder | OwnDecoder

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        knows, kind = observation.knows, like(observation)
        shape = self.decoder.latent_shape(knows)
        # The adversary's own network is trained when the first image is drawn, so that a check need not wait for it.
        network = functools.cache(lambda: self._network(observation))
        if start is None:
            codes = torch.randn(knows.examples, *shape, generator=generator).to(kind)
        else:
            codes = network().encode(signed(knows.whitening.unwhiten(start[0]), knows)).detach()

        return _drawn_images(Unknown(codes), lambda drawn: network().decode(drawn), observation)

    @property
    def learned_from(self) -> str:
        return self.decoder.words

    @torch.no_grad()
    def imagined(self, observation: Observation, count: int, generator: torch.Generator) -> Tensor:
        """Decode random codes; the message is not used.  # (count, c, h, w), pixels"""
        codes = torch.randn(count, *self.decoder.latent_shape(observation.knows), generator=generator)
        return pixels_of(self._network(observation).decode(codes.to(like(observation))), observation.knows)

    def _network(self, observation: Observation) -> LatentSpace:
        """Return a copy of the network, on the message's device and of its type."""
        return copy.deepcopy(self.decoder.network(observation)).to(like(observation))


def _drawn_images(codes: Unknown, draw: Callable[[Tensor], Tensor], observation: Observation) -> Bound:
    """Return the images that a network draws of codes; the nearest images are those within the bounds of pixels."""
    knows, (low, high) = observation.knows, whitened_bounds(observation)

    def decode(tensors: Sequence[Tensor]) -> Tensor:
        return knows.whitening.whiten(pixels_of(draw(tensors[0]), knows))[None]  # (1, n, c, h, w)

    return Bound((codes,), decode, lambda images: images.clamp(low, high))


def pixels_of(drawn: Tensor, knows: Knowledge) -> Tensor:
    """Map the network's [-1, 1] to the bounds of the pixels."""
    return knows.low + (knows.high - knows.low) * (drawn + 1) / 2


def signed(pixels: Tensor, knows: Knowledge) -> Tensor:
    """Map the bounds of the pixels to the network's [-1, 1]."""
    return 2 * (pixels - knows.low) / (knows.high - knows.low) - 1


CLIP = 1.0
"""Bound on every number of a code, as in the release of [Zhang et al., 2020]."""


@dataclass(frozen=True)
class GanCodes:
    """x = G(z), G the generator of a GAN and z the unknowns, in [-1, 1] [Zhang et al., 2020].

    Codes start from N(0, 1), clipped. `nearest` gives the images themselves, also where no code draws them: a GAN that
    cannot draw the private images does not protect them.
    """

    gan: StoredGan

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        if start is not None:
            raise UsageError("GanCodes cannot start from the images of a previous stage: make its stage the first.")
        network, bound = self._network(observation), torch.tensor(CLIP).to(like(observation))
        codes = torch.randn(observation.knows.examples, network.code, generator=generator)
        codes = codes.to(bound).clamp(-bound, bound)

        return _drawn_images(Unknown(codes, -bound, bound), network.generate, observation)

    @property
    def learned_from(self) -> str:
        return self.gan.words

    @torch.no_grad()
    def imagined(self, observation: Observation, count: int, generator: torch.Generator) -> Tensor:
        """Draw images of random codes; the message is not used.  # (count, c, h, w), pixels"""
        network = self._network(observation)
        codes = torch.randn(count, network.code, generator=generator).to(like(observation))
        return pixels_of(network.generate(codes), observation.knows)

    def _network(self, observation: Observation) -> CodeGan:
        """Return a copy of the network, on the message's device and of its type."""
        return copy.deepcopy(self.gan.code_gan(observation.knows.shape)).to(like(observation))
