"""What the trainings of image models have in common: their material, their folder and the pictures in it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import torch
from PIL import Image
from torch import Tensor, nn

from fedglass.core.errors import AuditError, DataError, UsageError, unknown_name
from fedglass.core.files import write_atomic
from fedglass.core.identity import digest, of_tensor
from fedglass.core.rng import derive, stream
from fedglass.data.dataset import Dataset
from fedglass.diffusion.autoencoders import Autoencoder, LatentSpace, ThreeLayers, lesson_of, settled
from fedglass.diffusion.denoiser import Denoiser, Sampler
from fedglass.diffusion.folder import AUTOENCODER, WEIGHTS, load_autoencoder, save_folder, save_network
from fedglass.diffusion.stored import TrainedOn
from fedglass.diffusion.training import Course, Lesson, MaskedLoss, State, beginning, resume, train, write_state
from fedglass.diffusion.transformer import MaskedDiffusionTransformer
from fedglass.diffusion.unet import UNet

PICTURE = "samples.png"
_SCALE = 2
"""Each pixel of a sample is drawn as a square of this side."""


def check_material(data: Dataset, folder: Path) -> None:
    """Refuse too few images, and a file in place of a folder."""
    if len(data) < 2:
        raise DataError(f"{data.name}: {len(data)} images are too few to learn from: bring more.")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: name a folder with -o.")


def pace(course: Course) -> tuple[object, ...]:
    """What a training that is continued must share with its beginning; it may be given more time."""
    return course.lr, course.batch_size, course.average, course.clip, course.mirror, course.seed


@contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """What can not be written is said in a sentence."""
    try:
        yield
    except OSError as error:
        raise AuditError(
            f"Cannot write into {folder}: {error.strerror}; make room or fix permissions, then run the same "
            "command again: it continues where it stopped."
        ) from error


def contact_sheet(images: Tensor, columns: int = 8) -> Image.Image:
    """Images in [0, 1] side by side.  # (n, c, h, w), grey or colour; of other channels the first is drawn"""
    shown = images if images.shape[1] in (1, 3) else images[:, :1]
    tiles = torch.nn.functional.pad(shown.clamp(0, 1), (1, 1, 1, 1), value=1.0)
    blank = torch.ones(-len(tiles) % columns, *tiles.shape[1:])
    rows = torch.cat([tiles, blank]).view(-1, columns, *tiles.shape[1:])  # (rows, columns, c, h, w)
    sheet = rows.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)  # (rows h, columns w, c)
    pixels = (sheet * 255).round().to(torch.uint8).numpy()
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    return picture.resize((picture.width * _SCALE, picture.height * _SCALE), Image.Resampling.NEAREST)


def _write_picture(folder: Path, picture: Image.Image) -> None:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    write_atomic(folder / PICTURE, buffer.getvalue())


# The training of autoencoders: by themselves, or before a diffusion model that works in their latent space.


SHARE = 0.25
"""Of the time or the steps of the diffusion model that is trained after it."""
SHOWN = 16
"""Images in each part of the picture."""
JUDGED = 1000
"""Images of which it is measured how well they come back."""


class Listener(Protocol):
    """Hears of a training's way."""

    def moved(self, step: int, share: float, loss: float) -> None: ...


@dataclass(frozen=True)
class AutoencoderKeeper:
    """Writes the state to continue from."""

    folder: Path
    identity: str
    listener: Listener

    def moved(self, step: int, share: float, loss: float) -> None:
        self.listener.moved(step, share, loss)

    def saved(self, state: State) -> None:
        with writing_into(self.folder):
            write_state(self.folder, state, self.identity)


@dataclass(frozen=True, eq=False)
class Trained:
    """An autoencoder as it is on disk, and where its training stands."""

    network: LatentSpace
    state: State
    error: float
    """The root of the mean squared error of what comes back, of pixels in [0, 1]."""


def train_autoencoder(data: Dataset, course: Course, folder: Path, listener: Listener) -> Trained:
    """Train three convolutional layers, or continue the training that the folder holds.

    The folder receives the network, what it was trained on, and a picture: originals, what comes back of them, and what
    random codes decode to.
    """
    check_material(data, folder)
    images = 2 * data.images - 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(course.seed, "autoencoder", "weights"))
        network = ThreeLayers(tuple(images.shape[1:]))
    identity = digest("three layers", repr(pace(course)), of_tensor(data.images))
    state = resume(folder, beginning(network, course), identity)
    state = train(state, lesson_of(images), course, AutoencoderKeeper(folder, identity, listener))
    with writing_into(folder):
        TrainedOn(data.name, len(data)).write(folder)
        _save(folder, network, state, images)
        found = load_autoencoder(folder)
        _write_picture(folder, _picture(found, images, course.seed))
    return Trained(found, state, _error(found, images))


def learned_autoencoder(images: Tensor, course: Course, folder: Path, listener: Listener) -> LatentSpace:
    """The autoencoder in the folder, which is trained on the images first, or on from where that was stopped.

    Once it is trained it stays as it is, however long the diffusion model is trained: its latents are what that has
    learned. The network is drawn from the global generator, which the caller seeds.
    """
    network = Autoencoder(tuple(images.shape[1:]))
    shorter = _shorter(course)
    identity = digest("autoencoder", repr((course.lr, course.batch_size, course.seed)), of_tensor(images))
    state = resume(folder, beginning(network, shorter), identity)
    if not (folder / WEIGHTS).is_file():
        state = train(state, lesson_of(images), shorter, AutoencoderKeeper(folder, identity, listener))
        _save(folder, network, state, images)
    return load_autoencoder(folder)


def _save(folder: Path, network: LatentSpace, state: State, images: Tensor) -> None:
    """In half precision; whoever works with it takes it as it is on disk, so that all see the same codes."""
    save_network(folder, network, settled(network, state, images).state_dict())


def _shorter(course: Course) -> Course:
    steps = None if course.steps is None else max(1, round(SHARE * course.steps))
    return replace(course, steps=steps, minutes=None if course.minutes is None else SHARE * course.minutes)


@torch.no_grad()
def _picture(network: LatentSpace, images: Tensor, seed: int) -> Image.Image:
    """Originals, what comes back of them, and what random codes decode to."""
    shown = images[:SHOWN]
    codes = torch.randn(len(shown), *network.latent_shape, generator=stream(seed, "samples"))
    return contact_sheet((torch.cat([shown, network(shown), network.decode(codes)]) + 1) / 2)


@torch.no_grad()
def _error(network: LatentSpace, images: Tensor) -> float:
    some = images[:JUDGED]
    return float((network(some) - some).square().mean().sqrt() / 2)


# The training of a diffusion model on a set of images, into a folder that a plan can name.


SAMPLES = 64


@dataclass(frozen=True)
class Size:
    """A U-Net's widths, the smallest first."""

    widths: tuple[int, ...]
    blocks: int
    patch: int


SIZES: Mapping[str, Size] = MappingProxyType(
    {
        "small": Size((64, 72), blocks=1, patch=2),
        "medium": Size((64, 96, 128), blocks=1, patch=2),
        "large": Size((64, 128, 192), blocks=2, patch=1),
    }
)
"""0.7, 2 and 9 million weights; the small one is at its best after some ten minutes on one core."""


@dataclass(frozen=True)
class TransformerSize:
    """A transformer's patches along the longer side, its width, its blocks and its heads."""

    patches: int
    width: int
    depth: int
    heads: int


TRANSFORMERS: Mapping[str, TransformerSize] = MappingProxyType(
    {
        "small": TransformerSize(4, 72, 6, 4),
        "medium": TransformerSize(8, 192, 8, 6),
        "large": TransformerSize(16, 384, 12, 6),
    }
)
"""0.7, 6 and 35 million weights; the large one is the paper's S and wants a graphics card."""


@dataclass(frozen=True)
class Teaching:
    """What is trained and how; `kind` and `size` are names of `KINDS` and `SIZES`."""

    course: Course
    kind: str = "ddpm"
    size: str = "small"
    autoencoder: bool = False
    """Whether the network works in the latent space of an autoencoder, which is trained first."""


@dataclass(frozen=True, eq=False)
class Material:
    """What is learned from: images in [-1, 1], or their latents."""

    images: Tensor  # (n, c, h, w)
    labels: Tensor  # (n,)
    classes: int

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.images.shape[1:]
        return channels, height, width


Maker = Callable[[Material, str], tuple[nn.Module, Lesson]]
"""An untrained network of that size for the material, and what it is to learn."""


def _ddpm(material: Material, name: str) -> tuple[nn.Module, Lesson]:
    size = SIZES[name]
    return UNet(material.shape, size.widths, size.blocks, size.patch), Lesson(material.images)


def _transformer(material: Material, name: str) -> tuple[nn.Module, Lesson]:
    size = TRANSFORMERS[name]
    patch = -(-max(material.shape[1:]) // size.patches)
    network = MaskedDiffusionTransformer(
        material.shape, material.classes, patch, size.width, size.depth, heads=size.heads
    )
    return network, Lesson(material.images, material.labels, loss=MaskedLoss())


KINDS: Mapping[str, Maker] = MappingProxyType({"ddpm": _ddpm, "transformer": _transformer})
"""What can be trained, by the name that the command line has for it."""


def train_diffusion(data: Dataset, teaching: Teaching, folder: Path, listener: Listener) -> State:
    """Train, or continue the training that the folder holds; it receives the model and a picture of its samples."""
    for what, name, known in (("kind", teaching.kind, KINDS), ("size", teaching.size, SIZES)):
        if name not in known:
            raise unknown_name(f"{what} of diffusion model", name, known)
    if teaching.autoencoder and teaching.kind != "transformer":
        raise UsageError("An autoencoder goes with --kind transformer: ddrm restores pixels, not latents.")
    check_material(data, folder)
    course = teaching.course
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(course.seed, "diffusion", "weights"))
        images, decode = 2 * data.images - 1, None
        identity = digest(
            teaching.kind, teaching.size, repr(pace(course)), of_tensor(data.images), of_tensor(data.labels)
        )
        if teaching.autoencoder:
            autoencoder = learned_autoencoder(images, course, folder / AUTOENCODER, listener)
            images, decode = autoencoder.latents_of(images), autoencoder.decode
            identity = digest(identity, of_tensor(images))
        network, lesson = KINDS[teaching.kind](Material(images, data.labels, data.classes), teaching.size)
    state = resume(folder, beginning(network, course), identity)
    keeper = DiffusionKeeper(folder, identity, lesson, course.seed, listener, decode)
    return train(state, lesson, course, keeper)


@dataclass(eq=False)
class DiffusionKeeper:
    """Writes what is trained: the model first, the state to continue from last."""

    folder: Path
    identity: str
    lesson: Lesson
    seed: int
    listener: Listener
    decode: Callable[[Tensor], Tensor] | None = None
    """Latents to images; None where images themselves are denoised."""
    pictured: float = 0.0
    """How much of the way was done when the picture was drawn."""
    share: float = 0.0

    def moved(self, step: int, share: float, loss: float) -> None:
        self.share = share
        self.listener.moved(step, share, loss)

    def saved(self, state: State) -> None:
        # Latents have no bounds.
        denoiser = Denoiser(state.network, self.lesson.schedule, self.lesson.prediction, clamp=self.decode is None)
        with writing_into(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            save_folder(self.folder, state.network, state.averaged, denoiser)
            write_state(self.folder, state, self.identity)
            if self.share >= 1 or self.share - self.pictured >= 0.25:
                self.pictured = self.share
                self._picture(state, denoiser)

    def _picture(self, state: State, denoiser: Denoiser) -> None:
        """Samples of the averaged network, which for that time takes the place of the one that is trained."""
        trained = {name: tensor.clone() for name, tensor in state.network.state_dict().items()}
        state.network.load_state_dict(state.averaged)
        state.network.eval()
        labels = None if self.lesson.labels is None else self.lesson.labels[:SAMPLES]
        count = SAMPLES if labels is None else len(labels)
        shape = (count, *self.lesson.images.shape[1:])
        samples = Sampler(steps=30).sample(denoiser, shape, stream(self.seed, "samples"), labels)
        images = samples if self.decode is None else self.decode(samples).detach()
        _write_picture(self.folder, contact_sheet((images + 1) / 2))
        state.network.load_state_dict(trained)
        state.network.train()
