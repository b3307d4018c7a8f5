"""The training of an autoencoder, in whose latent space a diffusion model is then trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from torch import Tensor

from fedglass.core.errors import AuditError
from fedglass.core.identity import digest, of_tensor
from fedglass.diffusion.autoencoder import Autoencoder, ReconstructionLoss
from fedglass.diffusion.checkpoint import resume, write_state
from fedglass.diffusion.folder import WEIGHTS, load_network, save_network
from fedglass.diffusion.noise import Prediction
from fedglass.diffusion.training import Course, Lesson, State, beginning, train

SHARE = 0.25
"""Of the time or the steps of the diffusion model that is trained after it."""


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
        try:
            write_state(self.folder, state, self.identity)
        except OSError as error:
            raise AuditError(
                f"Cannot write into {self.folder}: {error.strerror}; make room or fix permissions, then run the same "
                "command again: it continues where it stopped."
            ) from error


def learned_autoencoder(images: Tensor, course: Course, folder: Path, listener: Listener) -> Autoencoder:
    """The autoencoder in the folder, which is trained on the images first, or on from where that was stopped.

    Once it is trained it stays as it is, however long the diffusion model is trained: its latents are what that has
    learned. The network is drawn from the global generator, which the caller seeds.
    """
    network = Autoencoder(tuple(images.shape[1:]))
    shorter = _shorter(course)
    identity = digest("autoencoder", repr((course.lr, course.batch_size, course.seed)), of_tensor(images))
    state = resume(folder, beginning(network, shorter), identity)
    if not (folder / WEIGHTS).is_file():
        lesson = Lesson(images, prediction=Prediction.SAMPLE, loss=ReconstructionLoss())
        state = train(state, lesson, shorter, Keeper(folder, identity, listener))
        network.load_state_dict(state.averaged)
        network.settle(images)
        save_network(folder, network, network.state_dict())
    # As it is on disk, in half precision: what is learned of its latents holds for those that it will give.
    found = load_network(folder, "autoencoders")
    assert isinstance(found, Autoencoder), "the one kind of autoencoder"
    return found


def _shorter(course: Course) -> Course:
    steps = None if course.steps is None else max(1, round(SHARE * course.steps))
    return replace(course, steps=steps, minutes=None if course.minutes is None else SHARE * course.minutes)
