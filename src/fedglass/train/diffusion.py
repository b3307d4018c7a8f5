"""The training of a diffusion model on a set of images, into a folder that a plan can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn

from fedglass.core.errors import UsageError, unknown_name
from fedglass.core.identity import digest, of_tensor
from fedglass.core.rng import derive, stream
from fedglass.data.dataset import Dataset
from fedglass.diffusion.checkpoint import resume, write_state
from fedglass.diffusion.denoiser import Denoiser
from fedglass.diffusion.folder import AUTOENCODER, save_folder
from fedglass.diffusion.masked_loss import MaskedLoss
from fedglass.diffusion.sampling import Sampler
from fedglass.diffusion.training import Course, Lesson, State, beginning, train
from fedglass.diffusion.transformer import MaskedDiffusionTransformer
from fedglass.diffusion.unet import UNet
from fedglass.train.autoencoder import Listener, learned_autoencoder
from fedglass.train.places import PICTURE, check_material, contact_sheet, pace, writing_into

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
    keeper = Keeper(folder, identity, lesson, course.seed, listener, decode)
    return train(state, lesson, course, keeper)


@dataclass(eq=False)
class Keeper:
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
        contact_sheet((images + 1) / 2).save(self.folder / PICTURE)
        state.network.load_state_dict(trained)
        state.network.train()
