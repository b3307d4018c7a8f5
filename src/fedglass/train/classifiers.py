"""Where `fedglass train` starts: a plan's federation or options, made into data and an untrained model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd

from fedglass.audit.public import accuracy, sample_examples
from fedglass.core import optimisers
from fedglass.core.errors import AuditError, DataError, UsageError
from fedglass.core.identity import digest, of_model, of_tensor
from fedglass.core.rng import stream
from fedglass.data.catalogue import load, located
from fedglass.data.dataset import Dataset
from fedglass.models.catalogue import build
from fedglass.models.init import by_name
from fedglass.models.init import located as initialisation_at
from fedglass.plan.schema import read_plan
from fedglass.verdict.directory import write_bytes

HELD_OUT = 0.2
"""Of data without a test split: 4 to 1, as the coarse-to-fine paper splits CelebA-HQ."""


@dataclass(frozen=True)
class Choice:
    """What to train; a plan's federation has the same fields."""

    data: str
    model: str
    init: str = "default"
    size: int | None = None


@dataclass(frozen=True, eq=False)
class Start:
    """Examples to learn from, examples to be judged by, and the untrained network."""

    train: Dataset
    test: Dataset
    model: nn.Module
    words: str

    def identity(self, course: str) -> str:
        """Names all that decides the weights of every step of a course."""
        parts = (self.train.images, self.train.labels, self.test.images, self.test.labels)
        whitening = repr((self.train.whitening, self.test.whitening))
        return digest(course, whitening, of_model(self.model), *map(of_tensor, parts))


def from_plan(path: Path) -> Choice:
    """The first federation of a plan; its paths are relative to the plan's folder."""
    plan, _ = read_plan(path)
    if not plan.federation:
        raise UsageError(f"{path}: a plan without [federation] has nothing to train: give --data and --model.")
    table, folder = plan.federation[0], path.resolve().parent
    if table.relabel_classes is not None or table.classes is not None or table.whitening is not None:
        raise UsageError(
            f"{path}: relabel_classes, classes and whitening of [federation] can not be trained with here: leave them "
            "out, or train with the data's own labels by --data and --model."
        )
    init = initialisation_at(table.init, folder)
    return Choice(located(table.data, folder), table.model, init, table.size)


def overridden(choice: Choice | None, options: Mapping[str, object]) -> Choice:
    """The plan's choices with those of the command line in their place."""
    given = {name: value for name, value in options.items() if value is not None}
    if choice is not None:
        return replace(choice, **given)  # type: ignore[arg-type] # the options have the fields' names and types
    missing = [f"--{name}" for name in ("data", "model") if name not in given]
    if missing:
        raise UsageError(f"What is to be trained? Give a plan, or {' and '.join(missing)}.")
    return Choice(**given)  # type: ignore[arg-type]


def start(choice: Choice, seed: int) -> Start:
    """Load the data, split them where they have no test split, and build the model."""
    whole = load(choice.data, size=choice.size)
    found = _test_split(choice, whole)
    if found is None:
        train, test = _held_out(whole, seed)
        how = f"{len(test)} of {len(whole)} held out for the test"
    else:
        train, test = whole, found
        how = f"its test split of {len(test)}"
    model = build(choice.model, shape=train.shape, classes=train.classes, init=by_name(choice.init), seed=seed)
    words = f"{choice.model} ({choice.init}) on {len(train)} images of {train.name}, judged by {how}"
    return Start(train, test, model, words)


def _test_split(choice: Choice, train: Dataset) -> Dataset | None:
    """The source's own, where it has one that is not the training images again."""
    try:
        found = load(choice.data, split="test", size=choice.size, whitening=train.whitening)
    except UsageError:
        return None
    if found.shape != train.shape or found.classes > train.classes:
        raise DataError(
            f"{train.name}: the test images have shape {found.shape} and {found.classes} classes, the training images "
            f"{train.shape} and {train.classes}: bring both to one."
        )
    same = len(found) == len(train) and torch.equal(found.images, train.images)
    return None if same else found


def _held_out(data: Dataset, seed: int) -> tuple[Dataset, Dataset]:
    count = round(HELD_OUT * len(data))
    if count < 1 or len(data) - count < 2:
        raise DataError(f"{data.name}: {len(data)} images are too few to train and to test: bring more.")
    order = torch.randperm(len(data), generator=stream(seed, "held out"))
    return data.subset(order[count:]), data.subset(order[:count])


# A network trained to given test accuracies, with a checkpoint at each.
#
# Plain SGD with momentum at a constant rate, so that a longer training goes through the shorter one. All that was done
# is kept at every evaluation: a training that was stopped continues as if it had not been.


STATE = "training.safetensors"
BEST = "best.safetensors"


@dataclass(frozen=True)
class AccuracyCourse:
    """How a network is trained."""

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
        _ = self.optimiser  # which refuses what it can not step with

    @property
    def optimiser(self) -> optimisers.SGD:
        return optimisers.SGD(momentum=self.momentum, weight_decay=self.weight_decay)


class Progress(Protocol):
    """Hears of a training's way."""

    def moved(self, step: int, steps: int, loss: float) -> None: ...

    def judged(self, step: int, accuracy: float, saved: Sequence[Path]) -> None: ...


@dataclass(eq=False)
class State:
    """Where a training stands, beside the weights."""

    optimiser: optimisers.State
    step: int = 0
    best: float = -1.0
    reached: dict[str, float] = field(default_factory=dict)
    """Target -> accuracy at which it was first reached, in percent."""


def train_to(
    targets: Sequence[float], start: Start, course: AccuracyCourse, epochs: int, directory: Path, progress: Progress
) -> State:
    """Train the start's model until every target (a test accuracy in percent) is reached, or the epochs are over.

    The directory receives `acc25.safetensors` for a target of 25, `best.safetensors`, and the state to continue from.
    A directory of another start or course is refused.
    """
    _check(targets, epochs)
    model, data, identity = start.model, start.train, start.identity(repr(course))
    state = _resumed(model, course, directory / STATE, identity)
    _refuse_passed(targets, state, directory)
    total = epochs * steps_per_epoch(data, course)
    for inputs, labels in _batches(data, course, state.step, total):
        if all(name_of(target) in state.reached for target in targets):
            break
        loss = _descend(model, inputs, labels, course, state)
        state.step += 1
        progress.moved(state.step, total, loss)
        if state.step % course.every == 0 or state.step == total:
            value = percentage(model, start.test, course.seed)
            progress.judged(state.step, value, _keep(model, state, value, targets, directory, identity))
    return state


def name_of(target: float) -> str:
    """The name of a target's checkpoint.

    >>> name_of(25.0), name_of(95.3)
    ('acc25', 'acc95.3')
    """
    return f"acc{target:g}"


def percentage(model: nn.Module, test: Dataset, seed: int) -> float:
    """The accuracy in percent, rounded so that 29 of 100 images reach a target of 29."""
    return round(100 * accuracy(model, test.whitening, sample_examples(test, seed)), 9)


def steps_per_epoch(data: Dataset, course: AccuracyCourse) -> int:
    """Full batches only: batch normalisation can not do with a last one of a single example."""
    return max(1, len(data) // course.batch_size)


def _check(targets: Sequence[float], epochs: int) -> None:
    if not targets or not all(0 < target <= 100 for target in targets):
        raise UsageError(f"Targets must be test accuracies in percent, above 0 and at most 100, got {list(targets)}.")
    if epochs < 1:
        raise UsageError(f"epochs must be at least 1, got {epochs}.")


def _refuse_passed(targets: Sequence[float], state: State, directory: Path) -> None:
    passed = [target for target in targets if target <= state.best and name_of(target) not in state.reached]
    if passed:
        raise UsageError(
            f"The training in {directory} was at {state.best:g} % already, so that {passed[0]:g} % can not be saved "
            "any more: choose another directory with -o to begin anew."
        )


def _batches(data: Dataset, course: AccuracyCourse, start: int, total: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches from a step on; those of an epoch depend on the seed and the epoch alone."""
    each = steps_per_epoch(data, course)
    order = torch.empty(0)
    for step in range(start, total):
        epoch, place = divmod(step, each)
        if place == 0 or len(order) == 0:
            order = torch.randperm(len(data), generator=stream(course.seed, "epoch", epoch))
        rows = order[place * course.batch_size : (place + 1) * course.batch_size]
        images = data.images[rows]
        if course.mirror:
            turned = torch.rand(len(rows), generator=stream(course.seed, "mirror", step)) < 0.5
            images = torch.where(turned.view(-1, 1, 1, 1), images.flip(-1), images)
        yield data.whitening.whiten(images), data.labels[rows]


def _descend(model: nn.Module, inputs: Tensor, labels: Tensor, course: AccuracyCourse, state: State) -> float:
    """One step, in which normalisation layers gather their statistics; the loss before it."""
    model.train()
    for layer in model.modules():
        if isinstance(layer, _DropoutNd):
            layer.eval()  # it would draw from the global generator
    weights = list(model.parameters())
    device = weights[0].device
    loss = F.cross_entropy(model(inputs.to(device)), labels.to(device))
    if not math.isfinite(value := float(loss.detach())):
        raise AuditError(
            f"The training diverged at step {state.step} (loss {value}): lower --lr, and choose another directory."
        )
    gradient = torch.autograd.grad(loss, weights, materialize_grads=True)
    moved, state.optimiser = course.optimiser.step(optimisers.Move(weights, gradient, state.optimiser, course.lr))
    with torch.no_grad():
        for weight, new in zip(weights, moved, strict=True):
            weight.copy_(new)
    return value


def _keep(
    model: nn.Module, state: State, value: float, targets: Sequence[float], directory: Path, identity: str
) -> list[Path]:
    """Checkpoints first, the state last: what is stopped in between is done again, and comes out the same."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    if not all(bool(torch.isfinite(tensor).all()) for tensor in weights.values()):
        raise AuditError(
            f"The training diverged before step {state.step} (weights not finite): lower --lr, and choose another "
            "directory."
        )
    facts = {"accuracy": f"{value:g}", "step": str(state.step)}
    new = [t for t in sorted(set(targets)) if value >= t and name_of(t) not in state.reached]
    places = [directory / f"{name_of(target)}.safetensors" for target in new]
    state.reached |= {name_of(target): value for target in new}
    if value > state.best:
        state.best = value
        places.append(directory / BEST)
    for path in places:
        write_bytes(directory, path.name, save(weights, facts))
    moving = zip(_slots(model), (slot for each in state.optimiser.slots for slot in each), strict=False)
    slots = {name: slot.cpu().contiguous() for name, slot in moving}
    way = {"step": state.step, "best": state.best, "reached": state.reached}
    write_bytes(directory, STATE, save({**weights, **slots}, {"identity": identity, "way": json.dumps(way)}))
    return places


def _slots(model: nn.Module) -> list[str]:
    """The names under which the momentum of each weight is kept."""
    return [f"momentum {name}" for name, _ in model.named_parameters()]


def _resumed(model: nn.Module, course: AccuracyCourse, path: Path, identity: str) -> State:
    """The state of that file, with the model's weights set to it; the beginning where there is none."""
    beginning = State(course.optimiser.init(list(model.parameters())))
    if not path.is_file():
        return beginning
    try:
        with safe_open(str(path), framework="pt") as file:
            facts = file.metadata() or {}
            if facts.get("identity") != identity:
                raise UsageError(
                    f"{path.parent} holds another training (other data, model or options): choose another directory "
                    "with -o, or repeat the options it was begun with."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        return _restored(model, bool(beginning.optimiser.slots), tensors, json.loads(facts["way"]))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise DataError(f"{path} can not be read ({error}): it is damaged, delete it to begin anew.") from error


def _restored(model: nn.Module, moving: bool, tensors: Mapping[str, Tensor], way: Mapping[str, Any]) -> State:
    device = next(model.parameters()).device
    slots = ([tensors[name].to(device) for name in _slots(model)],) if moving else ()
    model.load_state_dict({name: tensors[name] for name in model.state_dict()})
    reached = {str(name): float(value) for name, value in dict(way["reached"]).items()}
    return State(optimisers.State(slots, int(way["step"])), int(way["step"]), float(way["best"]), reached)
