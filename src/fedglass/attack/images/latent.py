"""Images that a decoder draws from codes, which are the unknowns.

The decoder is that of a trained autoencoder in a folder, or of one that the adversary trains on its own examples.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedglass.attack.images.pixels import like, whitened_bounds
from fedglass.attack.parts import Bound
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact, refusal
from fedglass.core.identity import of_tensor
from fedglass.core.rng import derive, stream
from fedglass.core.types import Knowledge, Observation, Unknown
from fedglass.diffusion.autoencoders import LatentSpace, ThreeLayers, lesson_of, settled
from fedglass.diffusion.folder import (
    CONFIG,
    WEIGHTS,
    Shape,
    Wanted,
    check_unchanged,
    digest_of_files,
    load_autoencoder,
    network_folder,
)
from fedglass.diffusion.stored import TRAINED_ON, TrainedOn
from fedglass.diffusion.training import ImageModelTraining, TrainingOptions

OWN, NONE = "own", "none"
"""Values instead of a folder: the adversary trains an autoencoder itself, or uses none."""
OWN_COURSE = TrainingOptions(steps=1, lr=5e-3, batch_size=16, average=0.98)
"""The training of the adversary's own autoencoder, with higher rates than one of thousands of steps has."""
ENOUGH_IMAGES = 500
"""Number of images to learn from; fewer are augmented up to it."""
MOST_PIXELS = 2**25
"""Number of pixels of all images together up to which they are augmented."""
AUTOENCODER = Wanted("autoencoder", "train one with `fedglass train autoencoder DATA -o DIR`")


class Decoder(Protocol):
    """An autoencoder as a value, without its weights."""

    @property
    def words(self) -> str:
        """The training data as text, for the threat model."""
        ...

    def latent_shape(self, knows: Knowledge) -> Shape:
        """Return the shape of one code, without the work of `network`; refuse images of another shape."""
        ...

    def network(self, observation: Observation) -> LatentSpace:
        """Return the network, which is shared and must not be changed."""
        ...


@dataclass(frozen=True)
class StoredDecoder:
    """The autoencoder of a folder, with a digest of the folder's contents."""

    name: str
    digest: str
    trained_on: str

    @property
    def words(self) -> str:
        return f"an autoencoder that was trained on {self.trained_on}"

    def latent_shape(self, knows: Knowledge) -> Shape:
        network = self._load()
        if network.shape != knows.shape:
            drawn, expected = (" x ".join(map(str, shape)) for shape in (network.shape, knows.shape))
            raise UsageError(
                f"The autoencoder {self.name!r} draws images of {drawn} (channels, height, width), these are "
                f"{expected}: {AUTOENCODER.train}."
            )
        return network.latent_shape

    def network(self, observation: Observation) -> LatentSpace:
        return self._load()

    def _load(self) -> LatentSpace:
        network, digest = _loaded(self.name)
        check_unchanged(f"autoencoder {self.name!r}", digest, self.digest)
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
            if getattr(self, name) < 1:
                raise UsageError(f"decoder.{name} must be at least 1, got {getattr(self, name)}.")

    @property
    def words(self) -> str:
        return "an autoencoder that the adversary has trained on its own examples"

    def latent_shape(self, knows: Knowledge) -> Shape:
        with torch.device("meta"):
            return ThreeLayers(knows.shape, self.latent, self.width).latent_shape

    def network(self, observation: Observation) -> LatentSpace:
        if observation.own is None:
            raise refusal("OwnDecoder", self.needs)
        knows, pixels = observation.knows, observation.own.images.detach().cpu().float()
        images = 2 * (pixels - knows.low) / (knows.high - knows.low) - 1
        return _taught(self, _Examples(images))


def decoder_named(name: str) -> Decoder:
    """Return the decoder `own`, or that of the autoencoder in a folder."""
    if name == OWN:
        return OwnDecoder()
    _, digest = _loaded(name)
    return StoredDecoder(name, digest, TrainedOn.read(Path(name)).words)


def located_decoder(name: str, folder: Path) -> str:
    """Return `own` and `none` as they are, and any other name as a path relative to the folder."""
    return name if name in (OWN, NONE) else str(folder / Path(name).expanduser())


class _Examples:
    """Images that are equal if their pixels are, so that no network is trained twice on the same ones."""

    def __init__(self, images: Tensor) -> None:
        self.images, self.name = images, of_tensor(images)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Examples) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


@functools.lru_cache(maxsize=4)
def _loaded(name: str) -> tuple[LatentSpace, str]:
    where, trained_on = network_folder(Path(name), AUTOENCODER), Path(name) / TRAINED_ON
    if not trained_on.is_file():
        raise UsageError(
            f"The folder {name!r} does not say what its network was trained on ({TRAINED_ON} is missing). The report "
            f"must name it: {AUTOENCODER.train}."
        )
    digest = digest_of_files([where / CONFIG, where / WEIGHTS, trained_on])
    return load_autoencoder(Path(name), AUTOENCODER), digest


@functools.lru_cache(maxsize=4)
def _taught(spec: OwnDecoder, examples: _Examples) -> LatentSpace:
    """Train a network on the examples alone; nothing else goes in but the seed."""
    course = replace(OWN_COURSE, steps=spec.steps, seed=spec.seed)
    channels, height, width = examples.images.shape[1:]
    images = augmented(examples.images, stream(spec.seed, "copies"))
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

    decoder: Decoder

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        knows, kind = observation.knows, like(observation)
        shape = self.decoder.latent_shape(knows)
        # The adversary's own network is trained when the first image is drawn, so that a check need not wait for it.
        network = functools.cache(lambda: self._network(observation))
        if start is None:
            codes = torch.randn(knows.examples, *shape, generator=generator).to(kind)
        else:
            codes = network().encode(_signed(knows.whitening.unwhiten(start[0]), knows)).detach()

        def decode(tensors: Sequence[Tensor]) -> Tensor:
            return knows.whitening.whiten(_pixels(network().decode(tensors[0]), knows))[None]  # (1, n, c, h, w)

        low, high = whitened_bounds(observation)
        return Bound((Unknown(codes),), decode, lambda images: images.clamp(low, high))

    @property
    def learned_from(self) -> str:
        return self.decoder.words

    @torch.no_grad()
    def imagined(self, observation: Observation, count: int, generator: torch.Generator) -> Tensor:
        """Decode random codes; the message is not used.  # (count, c, h, w), pixels"""
        codes = torch.randn(count, *self.decoder.latent_shape(observation.knows), generator=generator)
        return _pixels(self._network(observation).decode(codes.to(like(observation))), observation.knows)

    def _network(self, observation: Observation) -> LatentSpace:
        """Return a copy of the network, on the message's device and of its type."""
        return copy.deepcopy(self.decoder.network(observation)).to(like(observation))


def _pixels(signed: Tensor, knows: Knowledge) -> Tensor:
    """Map the network's [-1, 1] to the bounds of the pixels."""
    return knows.low + (knows.high - knows.low) * (signed + 1) / 2


def _signed(pixels: Tensor, knows: Knowledge) -> Tensor:
    return 2 * (pixels - knows.low) / (knows.high - knows.low) - 1
