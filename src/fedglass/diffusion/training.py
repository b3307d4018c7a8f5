"""The training of denoising networks and autoencoders, with a moving average of the weights.

All that is known of the network is that it takes (noisy images, steps, labels or None). What a step draws depends on
the seed and the step alone, so that a training that was stopped continues as if it had not been.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from fedglass.core.errors import UsageError
from fedglass.core.resumable import TrainingProgress, finite_loss, resume, run_training, write_state
from fedglass.core.rng import stream
from fedglass.diffusion.denoiser import Prediction, Schedule, drawn_steps
from fedglass.diffusion.networks import MaskedDiffusionTransformer, some_tokens

WARM_UP = 50
"""Steps over which the rate grows to its full size."""
_MOMENTS = ("exp_avg", "exp_avg_sq")
MOST_SECONDS_UNSAVED = 20.0
"""Seconds of training after which the state is saved in any case: so much is lost at most where it is stopped."""
LAST_RATE = 0.05
"""The share of the rate that is left at the end."""


@dataclass(frozen=True)
class TrainingOptions:
    """The options of a training: Adam at a rate that falls as a cosine to its twentieth."""

    steps: int | None = None
    """How many steps; None trains until the minutes are over."""
    minutes: float | None = None
    """How long; what ends first ends the training."""
    lr: float = 2e-3
    batch_size: int = 32
    average: float = 0.999
    """Decay of the moving average of the weights, which is what is kept in the end."""
    clip: float = 1.0
    betas: tuple[float, float] = (0.9, 0.99)
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
        """Return the share of the training that is done, in [0, 1]."""
        by_steps = 0.0 if self.steps is None else step / self.steps
        by_time = 0.0 if self.minutes is None else seconds / (60 * self.minutes)
        return min(1.0, max(by_steps, by_time))

    def rate(self, step: int, share: float) -> float:
        """The learning rate of a step."""
        falling = LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * share)) / 2
        return self.lr * falling * min(1.0, (step + 1) / WARM_UP)


@dataclass(frozen=True, eq=False)
class Batch:
    """The input of the loss in one step."""

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
class DenoisingTask:
    """The task of a network: images in [-1, 1], with labels where the network takes the class, and the loss."""

    images: Tensor  # (n, c, h, w)
    labels: Tensor | None = None  # (n,)
    schedule: Schedule = field(default_factory=Schedule)
    prediction: Prediction = Prediction.V
    loss: Loss = squared_error


@dataclass(eq=False)
class ImageModelTraining:
    """The training of one network: where it stands, and how it goes on."""

    network: nn.Module
    task: DenoisingTask
    options: TrainingOptions
    on_save: Callable[[ImageModelTraining], None] | None = None
    """Called every so many steps and at the end; it may write files."""
    step: int = 0
    seconds: float = 0.0
    averaged: dict[str, Tensor] = field(init=False)
    """The moving average of the network's weights and buffers, by name."""
    optimiser: torch.optim.Adam = field(init=False)

    def __post_init__(self) -> None:
        self.averaged = {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=self.options.lr, betas=self.options.betas)

    def run(self, progress: TrainingProgress | None = None) -> ImageModelTraining:
        """Train on until the steps or the minutes are over."""
        self.network.train()
        run_training(self, progress)
        self.network.eval()
        self.save()
        return self

    def share(self) -> float:
        return self.options.share(self.step, self.seconds)

    def advance(self) -> float:
        for group in self.optimiser.param_groups:
            group["lr"] = self.options.rate(self.step, self.share())
        loss = self.task.loss(self.network, batch_of(self.task, self.options, self.step))
        value = finite_loss(loss, self.step)
        self.optimiser.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.network.parameters(), self.options.clip)
        self.optimiser.step()
        self._average()
        return value

    def is_due(self, unsaved: float) -> bool:
        return self.step % self.options.every == 0 or unsaved > MOST_SECONDS_UNSAVED

    def save(self) -> None:
        if self.on_save is not None:
            self.on_save(self)

    def write_state(self, folder: Path, identity: str) -> None:
        """Write the state to resume from."""
        tensors = {f"weights {name}": tensor for name, tensor in self.network.state_dict().items()}
        tensors |= {f"average {name}": tensor for name, tensor in self.averaged.items()}
        for name, parameter in self.network.named_parameters():
            for moment in _MOMENTS if parameter in self.optimiser.state else ():
                tensors[f"{moment} {name}"] = self.optimiser.state[parameter][moment]
        write_state(folder, tensors, identity, {"step": self.step, "seconds": self.seconds})

    def resume(self, folder: Path, identity: str) -> None:
        """Continue from the state that the folder holds, where it holds one."""
        resume(folder, identity, self._restore)

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, float]) -> None:
        self.network.load_state_dict({name: tensors[f"weights {name}"] for name in self.network.state_dict()})
        self.averaged = {name: tensors[f"average {name}"] for name in self.averaged}
        self.step, self.seconds = int(facts["step"]), float(facts["seconds"])
        for name, parameter in self.network.named_parameters():
            if f"{_MOMENTS[0]} {name}" in tensors:
                moments = {moment: tensors[f"{moment} {name}"] for moment in _MOMENTS}
                self.optimiser.state[parameter] = {"step": torch.tensor(float(self.step)), **moments}

    @torch.no_grad()
    def _average(self) -> None:
        """Move the average; it follows fast in the beginning, when there is little worth remembering."""
        weight = 1 - min(self.options.average, (1 + self.step) / (10 + self.step))
        for name, value in self.network.state_dict().items():
            mean = self.averaged[name]
            if mean.is_floating_point():
                mean.lerp_(value, weight)
            else:
                mean.copy_(value)


def batch_of(task: DenoisingTask, options: TrainingOptions, step: int) -> Batch:
    """Return the batch of a step: images drawn from an order of each epoch's own, with steps and noise of its own."""
    rows = _rows(len(task.images), options, step)
    images = task.images[rows]
    generator = stream(options.seed, "diffusion", step)
    if options.mirror:
        turned = torch.rand(len(rows), generator=generator) < 0.5
        images = torch.where(turned.view(-1, 1, 1, 1), images.flip(-1), images)
    steps = drawn_steps(task.schedule, len(rows), generator)
    noise = torch.randn(images.shape, generator=generator)
    target = task.prediction.target(images, noise, task.schedule.abar_of(steps, images))
    labels = None if task.labels is None else task.labels[rows]
    return Batch(task.schedule.noised(images, steps, noise), steps, labels, target, generator)


def _rows(count: int, options: TrainingOptions, step: int) -> Tensor:
    """The positions of a step's images; an epoch passes over all of them, and a batch may reach into the next."""
    first = step * options.batch_size
    places = range(first, first + options.batch_size)
    epochs = {place // count for place in places}
    orders = {e: torch.randperm(count, generator=stream(options.seed, "epoch", e)) for e in epochs}
    return torch.stack([orders[place // count][place % count] for place in places])


# What the masked diffusion transformer is taught: to denoise with all patches seen, and with some of them hidden.


def masked_loss(hidden: float = 0.3, unlabelled: float = 0.1) -> Loss:
    """Return the sum of the squared errors with nothing hidden and with a share of the patches hidden.

    Some examples are shown without their class [Gao et al., 2023], so that the network can be guided by the difference
    of its answers with and without one [Ho and Salimans, 2022].
    """
    if not 0 <= hidden < 1 or not 0 <= unlabelled <= 1:
        raise UsageError(
            f"The hidden share must be in [0, 1) and the unlabelled one in [0, 1], got {hidden} and {unlabelled}."
        )

    def loss(network: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(network, MaskedDiffusionTransformer), "the loss of one kind of network"
        labels = batch.labels
        if labels is not None:
            nameless = torch.rand(len(labels), generator=batch.generator) < unlabelled
            labels = labels.masked_fill(nameless.to(labels.device), network.classes)
        visible = some_tokens(len(batch.noisy), network.tokens, hidden, batch.generator).to(batch.noisy.device)
        unmasked: Tensor = network(batch.noisy, batch.steps, labels)
        masked: Tensor = network(batch.noisy, batch.steps, labels, visible)
        return (unmasked - batch.target).square().mean() + (masked - batch.target).square().mean()

    return loss
