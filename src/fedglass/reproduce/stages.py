"""Training stages: one network trained to given test accuracies, with a checkpoint at each.

Plain SGD with momentum at a constant rate, so that a longer training goes through the shorter one. All that was done
is kept at every evaluation: a training that was stopped continues as if it had not been.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd

from fedglass.core.errors import AuditError, DataError, UsageError
from fedglass.core.rng import stream
from fedglass.data.dataset import Dataset
from fedglass.ledger.evidence import write_bytes

STATE = "training.safetensors"
BEST = "best.safetensors"
JUDGED = 1000
"""Test images that an accuracy is taken over, the first of a shuffle."""
AT_ONCE = 250


@dataclass(frozen=True)
class Course:
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
        if not 0 <= self.momentum < 1 or not 0 <= self.weight_decay < math.inf:
            raise UsageError(
                "momentum must be in [0, 1) and weight decay at least 0, got "
                f"momentum {self.momentum} and weight decay {self.weight_decay}."
            )
        if self.batch_size < 2 or self.every < 1:
            raise UsageError(
                f"batch must be at least 2 and every at least 1, got batch {self.batch_size} and every {self.every}."
            )


class Progress(Protocol):
    """Hears of a training's way."""

    def moved(self, step: int, steps: int, loss: float) -> None: ...

    def judged(self, step: int, accuracy: float, saved: Sequence[Path]) -> None: ...


@dataclass(eq=False)
class State:
    """Where a training stands, beside the weights."""

    step: int = 0
    best: float = -1.0
    reached: dict[str, float] = field(default_factory=dict)
    """Target -> accuracy at which it was first reached, in percent."""
    momentum: dict[str, Tensor] = field(default_factory=dict)


def train_stages(
    model: nn.Module,
    data: Dataset,
    test: Dataset,
    course: Course,
    targets: Sequence[float],
    epochs: int,
    directory: Path,
    identity: str,
    progress: Progress,
) -> State:
    """Train until every target (a test accuracy in percent) is reached, or the epochs are over.

    The directory receives `acc25.safetensors` for a target of 25, `best.safetensors`, and the state to continue from.
    `identity` names data, model and course: a directory of another training is refused.
    """
    _check(targets, epochs)
    state = _resumed(model, directory / STATE, identity)
    _refuse_passed(targets, state, directory)
    total = epochs * steps_per_epoch(data, course)
    for inputs, labels in _batches(data, course, state.step, total):
        if all(name_of(target) in state.reached for target in targets):
            break
        loss = _descend(model, inputs, labels, course, state)
        state.step += 1
        progress.moved(state.step, total, loss)
        if state.step % course.every == 0 or state.step == total:
            value = accuracy(model, test, course.seed)
            progress.judged(state.step, value, _keep(model, state, value, targets, directory, identity))
    return state


def name_of(target: float) -> str:
    """The name of a target's checkpoint.

    >>> name_of(25.0), name_of(95.3)
    ('acc25', 'acc95.3')
    """
    return f"acc{target:g}"


def steps_per_epoch(data: Dataset, course: Course) -> int:
    """Full batches only: batch normalisation can not do with a last one of a single example."""
    return max(1, len(data) // course.batch_size)


def accuracy(model: nn.Module, test: Dataset, seed: int) -> float:
    """The share of at most 1000 test images that are classified rightly, in percent."""
    rows = torch.randperm(len(test), generator=stream(seed, "judged"))[:JUDGED]
    device = next(model.parameters()).device
    model.eval()
    right = 0
    with torch.no_grad():
        for part in torch.split(rows, AT_ONCE):
            logits = model(test.whitening.whiten(test.images[part]).to(device))
            right += int((logits.argmax(1).cpu() == test.labels[part]).sum())
    return 100 * right / len(rows)


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


def _batches(data: Dataset, course: Course, start: int, total: int) -> Iterator[tuple[Tensor, Tensor]]:
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


def _descend(model: nn.Module, inputs: Tensor, labels: Tensor, course: Course, state: State) -> float:
    """One step: v <- momentum v + g + decay w, w <- w - lr v."""
    model.train()
    for layer in model.modules():
        if isinstance(layer, _DropoutNd):
            layer.eval()  # it would draw from the global generator
    named = dict(model.named_parameters())
    device = next(iter(named.values())).device
    loss = F.cross_entropy(model(inputs.to(device)), labels.to(device))
    if not math.isfinite(value := float(loss.detach())):
        raise AuditError(
            f"The training diverged at step {state.step} (loss {value}): lower --lr, and choose another directory."
        )
    gradients = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
    with torch.no_grad():
        for (name, weight), gradient in zip(named.items(), gradients, strict=True):
            pull = gradient.add(weight, alpha=course.weight_decay)
            velocity = state.momentum[name].mul_(course.momentum).add_(pull) if name in state.momentum else pull
            state.momentum[name] = velocity
            weight.sub_(velocity, alpha=course.lr)
    return value


def _keep(
    model: nn.Module, state: State, value: float, targets: Sequence[float], directory: Path, identity: str
) -> list[Path]:
    """Checkpoints first, the state last: what is stopped in between is done again, and comes out the same."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    _refuse_broken(weights, state.step)
    facts = {"accuracy": f"{value:g}", "step": str(state.step)}
    new = [t for t in sorted(set(targets)) if value >= t and name_of(t) not in state.reached]
    places = [directory / f"{name_of(target)}.safetensors" for target in new]
    state.reached |= {name_of(target): value for target in new}
    if value > state.best:
        state.best = value
        places.append(directory / BEST)
    for path in places:
        write_bytes(path, save(weights, facts))
    momentum = {f"momentum {name}": tensor.cpu().contiguous() for name, tensor in state.momentum.items()}
    way = {"step": state.step, "best": state.best, "reached": state.reached}
    write_bytes(directory / STATE, save({**weights, **momentum}, {"identity": identity, "way": json.dumps(way)}))
    return places


def _refuse_broken(weights: Mapping[str, Tensor], step: int) -> None:
    if not all(bool(torch.isfinite(tensor).all()) for tensor in weights.values()):
        raise AuditError(
            f"The training diverged before step {step} (weights not finite): lower --lr, and choose another directory."
        )


def _resumed(model: nn.Module, path: Path, identity: str) -> State:
    """The state of that file, with the model's weights set to it; the beginning where there is none."""
    if not path.is_file():
        return State()
    own = model.state_dict()
    try:
        with safe_open(str(path), framework="pt") as file:
            facts = file.metadata() or {}
            if facts.get("identity") != identity:
                raise UsageError(
                    f"{path.parent} holds another training (other data, model or options): choose another directory "
                    "with -o, or repeat the options it was begun with."
                )
            way = json.loads(facts["way"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            return _restored(model, own, tensors, way)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise DataError(f"{path} can not be read ({error}): it is damaged, delete it to begin anew.") from error


def _restored(
    model: nn.Module, own: Mapping[str, Tensor], tensors: Mapping[str, Tensor], way: Mapping[str, object]
) -> State:
    momentum = {name: tensors[f"momentum {name}"] for name, _ in model.named_parameters()}
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
    reached = way["reached"]
    if not isinstance(reached, dict):
        raise TypeError("no table of what was reached")
    device = next(model.parameters()).device
    return State(
        int(str(way["step"])),
        float(str(way["best"])),
        {str(name): float(value) for name, value in reached.items()},
        {name: tensor.to(device) for name, tensor in momentum.items()},
    )
