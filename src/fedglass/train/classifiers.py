"""The training of classifiers to given test accuracies, with a checkpoint at each.

It starts from a plan's federation or from options, which are made into data and an untrained model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd

from fedglass.audit.public_data import accuracy, sample_examples
from fedglass.core import optimisers
from fedglass.core.errors import AuditError, DataError, UsageError
from fedglass.core.files import make_folder, write_atomic
from fedglass.core.identity import digest, of_model, of_tensor
from fedglass.core.resumable import TrainingProgress, finite_loss, resume, run_training, write_state, writing_into
from fedglass.core.rng import stream
from fedglass.data.catalogue import load, located
from fedglass.data.dataset import Dataset
from fedglass.models.catalogue import build
from fedglass.models.init import by_name
from fedglass.models.init import located as initialisation_at
from fedglass.plan.schema import read_plan

HELD_OUT = 0.2
"""Of data without a test split: 4 to 1, as the coarse-to-fine paper splits CelebA-HQ."""


@dataclass(frozen=True, eq=False)
class ClassifierStart:
    """Examples to train on, examples to test on, and the untrained network."""

    train: Dataset
    test: Dataset
    model: nn.Module
    title: str


def _from_plan(path: Path) -> dict[str, Any]:
    """Return the data and model of a plan's first federation; its paths are relative to the plan's folder."""
    plan, _ = read_plan(path)
    if not plan.federation:
        raise UsageError(f"{path}: a plan without [federation] has nothing to train: give --data and --model.")
    table, folder = plan.federation[0], path.resolve().parent
    if table.relabel_classes is not None or table.classes is not None or table.whitening is not None:
        raise UsageError(
            f"{path}: relabel_classes, classes and whitening of [federation] cannot be trained with here: leave them "
            "out, or train with the data's own labels by --data and --model."
        )
    init = initialisation_at(table.init, folder)
    return {"data": located(table.data, folder), "model": table.model, "init": init, "size": table.size}


def choose_start(plan: Path | None, seed: int, **options: str | int | None) -> ClassifierStart:
    """Start with data, model, init and size of the plan's federation and of the command line, which wins.

    Data without a test split are split here.
    """
    chosen = {} if plan is None else _from_plan(plan)
    chosen |= {name: value for name, value in options.items() if value is not None}
    missing = [f"--{name}" for name in ("data", "model") if name not in chosen]
    if missing:
        raise UsageError(f"What is to be trained? Give a plan, or {' and '.join(missing)}.")
    data, model, init, size = chosen["data"], chosen["model"], chosen.get("init", "default"), chosen.get("size")
    examples = load(data, size=size)
    test_split = _test_split(data, size, examples)
    if test_split is None:
        train, test = _held_out(examples, seed)
        how = f"{len(test)} of {len(examples)} held out for the test"
    else:
        train, test = examples, test_split
        how = f"its test split of {len(test)}"
    network = build(model, shape=train.shape, classes=train.classes, init=by_name(init), seed=seed)
    title = f"{model} ({init}) on {len(train)} images of {train.name}, judged by {how}"
    return ClassifierStart(train, test, network, title)


def _test_split(data: str, size: int | None, train: Dataset) -> Dataset | None:
    """Return the test split of the source, None if it has none or repeats the training images."""
    try:
        test = load(data, split="test", size=size, whitening=train.whitening)
    except UsageError:
        return None
    if test.shape != train.shape or test.classes > train.classes:
        raise DataError(
            f"{train.name}: the test images have shape {test.shape} and {test.classes} classes, the training images "
            f"{train.shape} and {train.classes}: bring both to one."
        )
    same = len(test) == len(train) and torch.equal(test.images, train.images)
    return None if same else test


def _held_out(data: Dataset, seed: int) -> tuple[Dataset, Dataset]:
    count = round(HELD_OUT * len(data))
    if count < 1 or len(data) - count < 2:
        raise DataError(f"{data.name}: {len(data)} images are too few to train and to test: bring more.")
    order = torch.randperm(len(data), generator=stream(seed, "held out"))
    return data.subset(order[count:]), data.subset(order[:count])


BEST = "best.safetensors"


@dataclass(frozen=True)
class ClassifierOptions:
    """The options of a training."""

    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    batch_size: int = 64
    mirror: bool = False
    """Whether every image is mirrored with probability one half."""
    every: int = 20
    """Steps between evaluations."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise UsageError(f"lr must be a positive number, got {self.lr}.")
        if self.batch_size < 2 or self.every < 1:
            raise UsageError(
                f"batch must be at least 2 and every at least 1, got batch {self.batch_size} and every {self.every}."
            )
        _ = self.optimiser  # which refuses what it cannot step with

    @property
    def optimiser(self) -> optimisers.SGD:
        return optimisers.SGD(momentum=self.momentum, weight_decay=self.weight_decay)


@dataclass(eq=False)
class ClassifierTraining:
    """Plain SGD with momentum at a constant rate, so that a longer training passes through the shorter one.

    The folder receives `acc25.safetensors` for a target of 25, `best.safetensors`, and the state to resume from.
    """

    start: ClassifierStart
    options: ClassifierOptions
    targets: Sequence[float]
    """Test accuracies in percent; the training ends when all are reached, or the epochs are over."""
    epochs: int
    folder: Path
    judged: Callable[[int, float, Sequence[Path]], None]
    """Called with the step, the test accuracy and the checkpoints that were saved at it."""
    step: int = 0
    seconds: float = 0.0
    best: float = -1.0
    reached: dict[str, float] = field(default_factory=dict)
    """Target -> accuracy at which it was first reached, in percent."""
    optimiser_state: optimisers.State = field(init=False)
    _order: tuple[int, Tensor] | None = None
    """The last epoch, and the order of its examples."""

    def __post_init__(self) -> None:
        self.optimiser_state = self.options.optimiser.init(list(self.model.parameters()))

    @property
    def model(self) -> nn.Module:
        return self.start.model

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        """Full batches only: batch normalisation cannot do with a last one of a single example."""
        return max(1, len(self.start.train) // self.options.batch_size)

    def share(self) -> float:
        if all(name_of(target) in self.reached for target in self.targets):
            return 1.0
        return min(1.0, self.step / self.steps)

    def advance(self) -> float:
        """Take one step, in which normalisation layers gather their statistics."""
        inputs, labels = self._batch()
        self.model.train()
        for layer in self.model.modules():
            if isinstance(layer, _DropoutNd):
                layer.eval()  # it would draw from the global generator
        weights = list(self.model.parameters())
        device = weights[0].device
        loss = F.cross_entropy(self.model(inputs.to(device)), labels.to(device))
        value = finite_loss(loss, self.step)
        gradient = torch.autograd.grad(loss, weights, materialize_grads=True)
        move = optimisers.Move(weights, gradient, self.optimiser_state, self.options.lr)
        moved, self.optimiser_state = self.options.optimiser.step(move)
        with torch.no_grad():
            for weight, new in zip(weights, moved, strict=True):
                weight.copy_(new)
        return value

    def _batch(self) -> tuple[Tensor, Tensor]:
        """Return the batch of this step; the order of an epoch depends on the seed and the epoch alone."""
        data, options = self.start.train, self.options
        epoch, place = divmod(self.step, self.steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, torch.randperm(len(data), generator=stream(options.seed, "epoch", epoch))
        rows = self._order[1][place * options.batch_size : (place + 1) * options.batch_size]
        images = data.images[rows]
        if options.mirror:
            turned = torch.rand(len(rows), generator=stream(options.seed, "mirror", self.step)) < 0.5
            images = torch.where(turned.view(-1, 1, 1, 1), images.flip(-1), images)
        return data.whitening.whiten(images), data.labels[rows]

    def is_due(self, unsaved: float) -> bool:
        return self.step % self.options.every == 0 or self.step == self.steps

    def save(self) -> None:
        """Test the model, and write checkpoints first and the state last: an interrupted save is simply repeated."""
        accuracy = percentage(self.model, self.start.test, self.options.seed)
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.model.state_dict().items()}
        if not all(bool(torch.isfinite(tensor).all()) for tensor in weights.values()):
            raise AuditError(
                f"The training diverged before step {self.step} (weights not finite): lower --lr, and choose another "
                "directory."
            )
        new = [t for t in sorted(set(self.targets)) if accuracy >= t and name_of(t) not in self.reached]
        paths = [self.folder / f"{name_of(target)}.safetensors" for target in new]
        self.reached |= {name_of(target): accuracy for target in new}
        if accuracy > self.best:
            self.best = accuracy
            paths.append(self.folder / BEST)
        with writing_into(self.folder):
            make_folder(self.folder)
            for path in paths:
                write_atomic(path, save(weights, {"accuracy": f"{accuracy:g}", "step": str(self.step)}))
            facts = {"step": self.step, "best": self.best, "reached": self.reached}
            slots = (slot for group in self.optimiser_state.slots for slot in group)
            momentum = dict(zip(self._momentum_names(), slots, strict=False))
            write_state(self.folder, {**weights, **momentum}, self.identity, facts)
        self.judged(self.step, accuracy, paths)

    @cached_property
    def identity(self) -> str:
        """A digest of all that decides the weights of every step, taken before the first changes the model."""
        train, test = self.start.train, self.start.test
        parts = (train.images, train.labels, test.images, test.labels)
        whitening = repr((train.whitening, test.whitening))
        return digest(repr(self.options), whitening, of_model(self.model), *map(of_tensor, parts))

    def _momentum_names(self) -> list[str]:
        return [f"momentum {name}" for name, _ in self.model.named_parameters()]

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        device = next(self.model.parameters()).device
        has_momentum = bool(self.optimiser_state.slots)
        slots = ([tensors[name].to(device) for name in self._momentum_names()],) if has_momentum else ()
        self.model.load_state_dict({name: tensors[name] for name in self.model.state_dict()})
        self.reached = {str(name): float(value) for name, value in dict(facts["reached"]).items()}
        self.step, self.best = int(facts["step"]), float(facts["best"])
        self.optimiser_state = optimisers.State(slots, self.step)


def train_to(
    targets: Sequence[float],
    start: ClassifierStart,
    options: ClassifierOptions,
    epochs: int,
    folder: Path,
    progress: TrainingProgress,
    judged: Callable[[int, float, Sequence[Path]], None],
) -> ClassifierTraining:
    """Train the start's model until every target (a test accuracy in percent) is reached, or the epochs are over.

    A folder that holds another training is refused.
    """
    if not targets or not all(0 < target <= 100 for target in targets):
        raise UsageError(f"Targets must be test accuracies in percent, above 0 and at most 100, got {list(targets)}.")
    if epochs < 1:
        raise UsageError(f"epochs must be at least 1, got {epochs}.")
    training = ClassifierTraining(start, options, targets, epochs, folder, judged)
    resume(folder, training.identity, training.restore)
    passed = [t for t in targets if t <= training.best and name_of(t) not in training.reached]
    if passed:
        raise UsageError(
            f"The training in {folder} has already reached {training.best:g} %, so {passed[0]:g} % cannot be saved any "
            "more: choose another directory with -o to start over."
        )
    run_training(training, progress)
    return training


def name_of(target: float) -> str:
    """The name of a target's checkpoint.

    >>> name_of(25.0), name_of(95.3)
    ('acc25', 'acc95.3')
    """
    return f"acc{target:g}"


def percentage(model: nn.Module, test: Dataset, seed: int) -> float:
    """The accuracy in percent, rounded so that 29 of 100 images reach a target of 29."""
    return round(100 * accuracy(model, test.whitening, sample_examples(test, seed)), 9)
