"""The training of any denoising network, with a moving average of its weights.

The loop knows nothing of the network but that it answers (noisy images, steps, labels or None). What a step draws
depends on the seed and the step alone, so that a training that was stopped continues as if it had not been.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fedglass.core.errors import AuditError, DataError, UsageError
from fedglass.core.files import write_atomic
from fedglass.core.rng import stream
from fedglass.diffusion.denoiser import Prediction, Schedule, drawn_steps
from fedglass.diffusion.transformer import MaskedDiffusionTransformer, some_tokens

WARM_UP = 50
"""Steps over which the rate grows to its full size."""
AT_RISK = 20.0
"""Seconds of training after which the state is saved in any case: so much is lost at most where it is stopped."""
LAST_RATE = 0.05
"""The share of the rate that is left at the end."""


@dataclass(frozen=True)
class Course:
    """How a network is trained: Adam at a rate that falls as a cosine to its twentieth."""

    steps: int | None = None
    """How many steps; None trains until the minutes are over."""
    minutes: float | None = None
    """How long; what ends first ends the training."""
    lr: float = 2e-3
    batch_size: int = 32
    average: float = 0.999
    """Decay of the moving average of the weights, which is what is kept in the end."""
    clip: float = 1.0
    mirror: bool = False
    seed: int = 0
    every: int = 100
    """Steps between two savings, at most."""

    def __post_init__(self) -> None:
        if self.steps is None and self.minutes is None:
            raise UsageError("A training needs an end: give steps or minutes.")
        if self.steps is not None and self.steps < 1:
            raise UsageError(f"steps must be at least 1, got {self.steps}.")
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise UsageError(f"minutes must be a positive number, got {self.minutes}.")
        if not 0 < self.lr < math.inf:
            raise UsageError(f"lr must be a positive number, got {self.lr}.")
        if self.batch_size < 1 or self.every < 1:
            raise UsageError(f"batch and every must be at least 1, got {self.batch_size} and {self.every}.")
        if not 0 <= self.average < 1:
            raise UsageError(f"average must be at least 0 and below 1, got {self.average}.")

    def share(self, step: int, seconds: float) -> float:
        """How much of the way is done, in [0, 1]."""
        by_steps = 0.0 if self.steps is None else step / self.steps
        by_time = 0.0 if self.minutes is None else seconds / (60 * self.minutes)
        return min(1.0, max(by_steps, by_time))

    def rate(self, step: int, share: float) -> float:
        """The learning rate of a step."""
        falling = LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * share)) / 2
        return self.lr * falling * min(1.0, (step + 1) / WARM_UP)


@dataclass(frozen=True, eq=False)
class Batch:
    """What the loss of one step is told."""

    noisy: Tensor  # (n, c, h, w)
    steps: Tensor  # (n,)
    labels: Tensor | None  # (n,)
    target: Tensor  # (n, c, h, w): what the network is to answer
    generator: torch.Generator
    """For what the loss itself draws, such as masks."""


Loss = Callable[[nn.Module, Batch], Tensor]


def squared_error(network: nn.Module, batch: Batch) -> Tensor:
    """The mean squared error of the answer [Ho et al., 2020, Eq. 14]."""
    answer: Tensor = network(batch.noisy, batch.steps, batch.labels)
    return (answer - batch.target).square().mean()


@dataclass(frozen=True, eq=False)
class Lesson:
    """What is taught: images in [-1, 1], with labels where the network is told the class."""

    images: Tensor  # (n, c, h, w)
    labels: Tensor | None = None  # (n,)
    schedule: Schedule = field(default_factory=Schedule)
    prediction: Prediction = Prediction.V
    loss: Loss = squared_error


@dataclass(eq=False)
class State:
    """Where a training stands."""

    network: nn.Module
    averaged: dict[str, Tensor]
    """The moving average of the network's weights and buffers, by name."""
    optimiser: torch.optim.Adam
    step: int = 0
    seconds: float = 0.0


class Progress(Protocol):
    """Hears of a training's way."""

    def moved(self, step: int, share: float, loss: float) -> None: ...

    def saved(self, state: State) -> None:
        """Called every so many steps and at the end, whoever listens may write files."""
        ...


class Silence:
    """Listens to nothing."""

    def moved(self, step: int, share: float, loss: float) -> None:
        return None

    def saved(self, state: State) -> None:
        return None


def beginning(network: nn.Module, course: Course) -> State:
    """The state before the first step."""
    averaged = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}
    return State(network, averaged, torch.optim.Adam(network.parameters(), lr=course.lr, betas=(0.9, 0.99)))


def train(state: State, lesson: Lesson, course: Course, progress: Progress | None = None) -> State:
    """Train on from a state until the course is over."""
    listener = progress or Silence()
    state.network.train()
    begun, kept = time.monotonic() - state.seconds, state.seconds
    while (share := course.share(state.step, state.seconds)) < 1:
        loss = _one_step(state, lesson, course, share)
        state.step += 1
        state.seconds = time.monotonic() - begun
        listener.moved(state.step, course.share(state.step, state.seconds), loss)
        if state.step % course.every == 0 or state.seconds - kept > AT_RISK:
            listener.saved(state)
            kept = state.seconds
    state.network.eval()
    listener.saved(state)
    return state


def batch_of(lesson: Lesson, course: Course, step: int) -> Batch:
    """What a step trains on: images drawn from an order of each epoch's own, with steps and noise of its own."""
    rows = _rows(len(lesson.images), course, step)
    images = lesson.images[rows]
    generator = stream(course.seed, "diffusion", step)
    if course.mirror:
        turned = torch.rand(len(rows), generator=generator) < 0.5
        images = torch.where(turned.view(-1, 1, 1, 1), images.flip(-1), images)
    steps = drawn_steps(lesson.schedule, len(rows), generator)
    noise = torch.randn(images.shape, generator=generator)
    target = lesson.prediction.target(images, noise, lesson.schedule.kept(steps, images))
    labels = None if lesson.labels is None else lesson.labels[rows]
    return Batch(lesson.schedule.noised(images, steps, noise), steps, labels, target, generator)


def _rows(count: int, course: Course, step: int) -> Tensor:
    """The positions of a step's images; an epoch passes over all of them, and a batch may reach into the next."""
    first = step * course.batch_size
    places = range(first, first + course.batch_size)
    orders = {epoch: _order(count, course.seed, epoch) for epoch in {place // count for place in places}}
    return torch.stack([orders[place // count][place % count] for place in places])


def _order(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=stream(seed, "epoch", epoch))


def _one_step(state: State, lesson: Lesson, course: Course, share: float) -> float:
    for group in state.optimiser.param_groups:
        group["lr"] = course.rate(state.step, share)
    loss = lesson.loss(state.network, batch_of(lesson, course, state.step))
    if not math.isfinite(value := float(loss.detach())):
        raise AuditError(
            f"The training diverged at step {state.step} (loss {value}): lower --lr, and choose another directory."
        )
    state.optimiser.zero_grad()
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(state.network.parameters(), course.clip)
    state.optimiser.step()
    _average(state, course.average)
    return value


@torch.no_grad()
def _average(state: State, decay: float) -> None:
    """The average follows fast in the beginning, when there is little worth remembering."""
    weight = 1 - min(decay, (1 + state.step) / (10 + state.step))
    for mean, value in _pairs(state):
        if mean.is_floating_point():
            mean.lerp_(value, weight)
        else:
            mean.copy_(value)


def _pairs(state: State) -> Iterator[tuple[Tensor, Tensor]]:
    for name, value in state.network.state_dict().items():
        yield state.averaged[name], value


# A training on disk: where it stands, so that it continues, and the model it has come to.


STATE = "training.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def write_state(folder: Path, state: State, identity: str) -> None:
    """All that the next step depends on, in one file that is whole or not there."""
    tensors = {f"weights {name}": tensor for name, tensor in state.network.state_dict().items()}
    tensors |= {f"average {name}": tensor for name, tensor in state.averaged.items()}
    for name, parameter in state.network.named_parameters():
        for moment in _MOMENTS if parameter in state.optimiser.state else ():
            tensors[f"{moment} {name}"] = state.optimiser.state[parameter][moment]
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    way = json.dumps({"step": state.step, "seconds": state.seconds})
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / STATE, save(whole, {"identity": identity, "way": way}))


def resume(folder: Path, state: State, identity: str) -> State:
    """The state that the folder holds; the one that is given where it holds none. Another training's is refused."""
    path = folder / STATE
    if not path.is_file():
        return state
    try:
        with safe_open(str(path), framework="pt") as file:
            facts = file.metadata() or {}
            if facts.get("identity") != identity:
                raise UsageError(
                    f"{folder} holds another training (other data, size or options): choose another folder with -o, "
                    "or repeat the options it was begun with."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        _restore(state, tensors, json.loads(facts["way"]))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise DataError(f"{path} can not be read ({error}): it is damaged, delete it to begin anew.") from error
    return state


def _restore(state: State, tensors: Mapping[str, Tensor], way: Mapping[str, float]) -> None:
    state.network.load_state_dict({name: tensors[f"weights {name}"] for name in state.network.state_dict()})
    state.averaged = {name: tensors[f"average {name}"] for name in state.averaged}
    state.step, state.seconds = int(way["step"]), float(way["seconds"])
    for name, parameter in state.network.named_parameters():
        if f"{_MOMENTS[0]} {name}" in tensors:
            moments = {moment: tensors[f"{moment} {name}"] for moment in _MOMENTS}
            state.optimiser.state[parameter] = {"step": torch.tensor(float(state.step)), **moments}


# What the masked diffusion transformer is taught: to denoise with all patches seen, and with some of them hidden.


@dataclass(frozen=True)
class MaskedLoss:
    """The sum of the squared errors with nothing hidden and with a share of the patches hidden [Gao et al., 2023].

    Some examples are shown without their class, so that the network can be guided by the difference of its answers
    with and without one [Ho and Salimans, 2022].
    """

    hidden: float = 0.3
    unlabelled: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.hidden < 1 or not 0 <= self.unlabelled <= 1:
            raise UsageError(
                f"The hidden share must be in [0, 1) and the unlabelled one in [0, 1], got {self.hidden} and "
                f"{self.unlabelled}."
            )

    def __call__(self, network: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(network, MaskedDiffusionTransformer), "the loss of one kind of network"
        labels = None if batch.labels is None else self._shown(batch.labels, network.classes, batch.generator)
        kept = some_tokens(len(batch.noisy), network.tokens, self.hidden, batch.generator).to(batch.noisy.device)
        whole: Tensor = network(batch.noisy, batch.steps, labels)
        masked: Tensor = network(batch.noisy, batch.steps, labels, kept)
        return (whole - batch.target).square().mean() + (masked - batch.target).square().mean()

    def _shown(self, labels: Tensor, none: int, generator: torch.Generator) -> Tensor:
        hidden = torch.rand(len(labels), generator=generator) < self.unlabelled
        return labels.masked_fill(hidden.to(labels.device), none)
