"""Images as what a decoder draws of codes, which are the unknowns."""

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

# Where the decoder of a latent code comes from: a folder that somebody trained, or the adversary's own examples.


OWN, NONE = "own", "none"
"""In place of a folder: the adversary trains one itself, or does without."""
QUICK = TrainingOptions(steps=1, lr=5e-3, batch_size=16, average=0.98)
"""How the adversary trains its own: everything is faster than where there are thousands of steps."""
ENOUGH = 500
"""Images to learn from, of which fewer are multiplied."""
MOST_NUMBERS = 2**25
"""Pixels of all of them together, beyond which they are not."""
AUTOENCODER = Wanted("autoencoder", "train one with `fedglass train autoencoder DATA -o DIR`")


class Decoder(Protocol):
    """An autoencoder as a value, without its weights."""

    @property
    def words(self) -> str:
        """What it has learned from, for the threat model."""
        ...

    def latent_shape(self, knows: Knowledge) -> Shape:
        """Of one code, without the work of `network`; images that it does not draw are refused."""
        ...

    def network(self, observation: Observation) -> LatentSpace:
        """Shared with others: not to be changed."""
        ...


@dataclass(frozen=True)
class StoredDecoder:
    """The autoencoder of a folder, with a digest of what it held when it was named."""

    name: str
    digest: str
    trained_on: str

    @property
    def words(self) -> str:
        return f"an autoencoder that was trained on {self.trained_on}"

    def latent_shape(self, knows: Knowledge) -> Shape:
        network = self._load()
        if network.shape != knows.shape:
            drawn, here = (" x ".join(map(str, each)) for each in (network.shape, knows.shape))
            raise UsageError(
                f"The autoencoder {self.name!r} draws images of {drawn} (channels, height, width), these are {here}: "
                f"{AUTOENCODER.train}."
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

    [Yue et al., 2025] does not say what its autoencoder has seen: its attacker is given nothing but its own data. Of
    few examples moved and mirrored copies are learned from too: of two digits alone a network learns to draw these two,
    of their copies what strokes look like. Small and quick, since every attack begins with it; the same examples and
    seed give the same network.
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
    """`own`, or the autoencoder in that folder."""
    if name == OWN:
        return OwnDecoder()
    _, digest = _loaded(name)
    return StoredDecoder(name, digest, TrainedOn.read(Path(name)).words)


def located_decoder(name: str, folder: Path) -> str:
    """`own` and `none` as they are; a path relative to the folder."""
    return name if name in (OWN, NONE) else str(folder / Path(name).expanduser())


class _Examples:
    """Images that go by what they show, so that nothing is learned from the same ones twice."""

    def __init__(self, images: Tensor) -> None:
        self.images, self.name = images, of_tensor(images)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Examples) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


@functools.lru_cache(maxsize=4)
def _loaded(name: str) -> tuple[LatentSpace, str]:
    where, told = network_folder(Path(name), AUTOENCODER), Path(name) / TRAINED_ON
    if not told.is_file():
        raise UsageError(
            f"The folder {name!r} does not say what its network was trained on ({TRAINED_ON} is missing), which the "
            f"report has to: {AUTOENCODER.train}."
        )
    digest = digest_of_files([where / CONFIG, where / WEIGHTS, told])
    return load_autoencoder(Path(name), AUTOENCODER), digest


@functools.lru_cache(maxsize=4)
def _taught(spec: OwnDecoder, examples: _Examples) -> LatentSpace:
    """Trained on the examples alone: nothing else goes in but the seed."""
    course = replace(QUICK, steps=spec.steps, seed=spec.seed)
    channels, height, width = examples.images.shape[1:]
    images = copies(examples.images, stream(spec.seed, "copies"))
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(derive(spec.seed, "own decoder"))
        network = ThreeLayers((channels, height, width), spec.latent, spec.width)
        training = ImageModelTraining(network, lesson_of(images), course).run()
    return settled(network, training, images).eval().requires_grad_(False)


def copies(images: Tensor, generator: torch.Generator) -> Tensor:
    """The images, and so many copies that there are enough: moved by up to a seventh of their sides, and mirrored.

    >>> [len(copies(torch.zeros(n, 1, 8, 8), stream(0, "copies"))) for n in (3, 600)]
    [500, 600]
    """
    count = min(ENOUGH, MOST_NUMBERS // images[0].numel()) - len(images)
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

    Codes start from N(0, 1), which is how the codes of images are spread. `nearest` gives the images themselves, also
    where no code decodes to them: that a decoder can not draw the private images must not pass for their protection.
    """

    decoder: Decoder

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        knows, kind = observation.knows, like(observation)
        shape = self.decoder.latent_shape(knows)
        # Own examples are learned from when the first image is drawn: whoever only asks need not wait for it.
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
        """What random codes decode to; the message is not looked at.  # (count, c, h, w), pixels"""
        codes = torch.randn(count, *self.decoder.latent_shape(observation.knows), generator=generator)
        return _pixels(self._network(observation).decode(codes.to(like(observation))), observation.knows)

    def _network(self, observation: Observation) -> LatentSpace:
        """A copy of its own, on the message's device and of its type."""
        return copy.deepcopy(self.decoder.network(observation)).to(like(observation))


def _pixels(signed: Tensor, knows: Knowledge) -> Tensor:
    """From the network's [-1, 1] to the bounds of the pixels."""
    return knows.low + (knows.high - knows.low) * (signed + 1) / 2


def _signed(pixels: Tensor, knows: Knowledge) -> Tensor:
    return 2 * (pixels - knows.low) / (knows.high - knows.low) - 1
