"""The training of autoencoders: by themselves, or before a diffusion model that works in their latent space."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from PIL import Image
from torch import Tensor

from fedglass.core.identity import digest, of_tensor
from fedglass.core.rng import derive, stream
from fedglass.data.dataset import Dataset
from fedglass.diffusion.autoencoder import Autoencoder
from fedglass.diffusion.checkpoint import resume, write_state
from fedglass.diffusion.folder import WEIGHTS, load_autoencoder, save_network
from fedglass.diffusion.latent_space import LatentSpace, lesson_of, settled
from fedglass.diffusion.provenance import TrainedOn
from fedglass.diffusion.three_layers import ThreeLayers
from fedglass.diffusion.training import Course, State, beginning, train
from fedglass.train.places import PICTURE, check_material, contact_sheet, pace, writing_into

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
class Keeper:
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
    state = train(state, lesson_of(images), course, Keeper(folder, identity, listener))
    with writing_into(folder):
        TrainedOn(data.name, len(data)).write(folder)
        _save(folder, network, state, images)
        found = load_autoencoder(folder)
        _picture(found, images, course.seed).save(folder / PICTURE)
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
        state = train(state, lesson_of(images), shorter, Keeper(folder, identity, listener))
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
