"""Training to given test accuracies: stopped and continued, it is the same training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedglass.core.errors import AuditError, DataError, UsageError
from fedglass.core.resumable import STATE
from fedglass.core.rng import stream
from fedglass.core.types import Whitening
from fedglass.data.dataset import Dataset
from fedglass.models.init import load_weights
from fedglass.train.classifiers import (
    BEST,
    ClassifierOptions,
    ClassifierStart,
    ClassifierTraining,
    percentage,
    train_to,
)

COURSE = ClassifierOptions(lr=0.1, batch_size=8, every=2, mirror=True)


class Heard:
    """Remembers the tests, and stops the training at a step."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop, self.tests, self.saved = stop, list[tuple[int, float]](), list[str]()

    def moved(self, step: int, share: float, loss: float) -> None:
        if step == self.stop:
            raise KeyboardInterrupt

    def judged(self, step: int, accuracy: float, saved: Sequence[Path]) -> None:
        self.tests.append((step, accuracy))
        self.saved += [path.name for path in saved]


def sides(n: int, name: str) -> Dataset:
    """Pictures whose upper or lower half is the brighter one."""
    labels = torch.randint(2, (n,), generator=stream(0, name, "labels"))
    images = 0.4 * torch.rand(n, 1, 8, 8, generator=stream(0, name))
    for image, label in zip(images, labels, strict=True):
        image[:, 4 * int(label) : 4 * int(label) + 4] += 0.5
    return Dataset(name, images, labels, 2, Whitening((0.4,), (0.3,)))


TRAIN, TEST = sides(40, "train"), sides(20, "test")


def fresh() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(108, 2)
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(0.2 * torch.rand(weight.shape, generator=stream(0, "weights", name)) - 0.1)
    return model


def train(
    directory: Path,
    heard: Heard | None = None,
    targets: Sequence[float] = (100.0,),
    epochs: int = 2,
    course: ClassifierOptions = COURSE,
    data: Dataset | None = None,
) -> tuple[nn.Module, ClassifierTraining]:
    start = ClassifierStart(data or TRAIN, TEST, fresh(), "")
    heard = heard or Heard()
    return start.model, train_to(targets, start, course, epochs, directory, heard.moved, heard.judged)


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.state_dict())


def test_checkpoints_are_what_reached_the_accuracy_first(tmp_path: Path) -> None:
    heard = Heard()
    _, state = train(tmp_path, heard, (60.0, 90.0), epochs=20)
    assert set(state.reached) == {"acc60", "acc90"}
    for target in (60, 90):
        first = next((step, value) for step, value in heard.tests if value >= target)
        path = tmp_path / f"acc{target}.safetensors"
        model = fresh()
        load_weights(model, str(path))
        assert percentage(model, TEST, COURSE.seed) == first[1] == state.reached[f"acc{target}"]
        with safe_open(str(path), framework="pt") as file:
            assert file.metadata() == {"accuracy": f"{first[1]:g}", "step": str(first[0])}
    assert heard.tests[-1][1] >= 90


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_a_training_that_was_stopped_continues_as_if_it_had_not_been(tmp_path: Path, stop: int) -> None:
    whole, state = train(
        tmp_path / "whole", targets=(100.0,), epochs=2, course=ClassifierOptions(0.001, batch_size=8, every=2)
    )
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "parts", Heard(stop), course=ClassifierOptions(0.001, batch_size=8, every=2))
    parts, again = train(tmp_path / "parts", course=ClassifierOptions(0.001, batch_size=8, every=2))
    assert again.step == state.step == 10
    for name, tensor in tensors(whole).items():
        assert torch.equal(tensor, tensors(parts)[name]), name
    (ours,), (theirs,) = state.optimiser_state.slots, again.optimiser_state.slots
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_it_is_plain_sgd_with_momentum(tmp_path: Path) -> None:
    course = ClassifierOptions(lr=0.03, momentum=0.8, weight_decay=0.01, batch_size=8, every=100)
    model, _ = train(tmp_path, epochs=1, course=course)
    other = fresh()
    for layer in other.modules():
        layer.train(not isinstance(layer, nn.Dropout))
    solver = torch.optim.SGD(other.parameters(), lr=0.03, momentum=0.8, weight_decay=0.01)
    order = torch.randperm(40, generator=stream(0, "epoch", 0))
    for rows in torch.split(order, 8):
        solver.zero_grad()
        logits = other(TRAIN.whitening.whiten(TRAIN.images[rows]))
        nn.functional.cross_entropy(logits, TRAIN.labels[rows]).backward()
        solver.step()
    for name, tensor in tensors(other).items():
        torch.testing.assert_close(tensors(model)[name], tensor)


def test_the_global_generator_is_left_alone(tmp_path: Path) -> None:
    start, before = ClassifierStart(TRAIN, TEST, fresh(), ""), torch.get_rng_state()
    train_to((100.0,), start, COURSE, 2, tmp_path, Heard().moved, Heard().judged)
    assert torch.equal(before, torch.get_rng_state())


def test_what_is_done_is_not_done_again_and_more_epochs_continue(tmp_path: Path) -> None:
    slow = ClassifierOptions(1e-6, batch_size=8, every=2)
    _, state = train(tmp_path, epochs=1, course=slow)
    assert state.step == 5
    heard = Heard()
    _, state = train(tmp_path, heard, epochs=1, course=slow)
    assert heard.tests == []
    _, state = train(tmp_path, heard, epochs=2, course=slow)
    assert [step for step, _ in heard.tests] == [6, 8, 10]


def test_the_best_is_kept_whatever_the_targets(tmp_path: Path) -> None:
    heard = Heard()
    _, state = train(tmp_path, heard, epochs=3)
    assert state.best == max(value for _, value in heard.tests)
    model = fresh()
    load_weights(model, str(tmp_path / BEST))
    assert percentage(model, TEST, COURSE.seed) == state.best


def test_another_training_and_passed_accuracies_are_refused(tmp_path: Path) -> None:
    train(tmp_path, targets=(60.0,), epochs=20)
    with pytest.raises(UsageError, match="holds another training"):
        train(tmp_path, data=sides(40, "other"))
    with pytest.raises(UsageError, match=r"5 % cannot be saved any more"):
        train(tmp_path, targets=(5.0, 60.0))


def test_damaged_states_are_refused(tmp_path: Path) -> None:
    train(tmp_path, epochs=1)
    path = tmp_path / STATE
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    with pytest.raises(DataError, match="damaged, delete it to start over"):
        train(tmp_path)
    with safe_open(str(_written(path, whole)), framework="pt") as file:
        facts = file.metadata()
    kept = load_file(path)
    save_file({name: t for name, t in kept.items() if not name.startswith("momentum")}, path, facts)
    with pytest.raises(DataError, match="damaged"):
        train(tmp_path)


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_divergence_is_said(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"diverged .* lower --lr"):
        train(tmp_path, epochs=60, course=ClassifierOptions(lr=1e20, batch_size=8))


@pytest.mark.parametrize(
    ("field", "value"),
    [("lr", 0.0), ("lr", float("nan")), ("momentum", 1.0), ("weight_decay", -1.0), ("batch_size", 1), ("every", 0)],
)
def test_bad_courses_are_refused(field: str, value: float) -> None:
    with pytest.raises(UsageError, match="must be"):
        ClassifierOptions(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("targets", [(), (0.0,), (101.0,)])
def test_bad_targets_are_refused(tmp_path: Path, targets: Sequence[float]) -> None:
    with pytest.raises(UsageError, match="accuracies in percent"):
        train(tmp_path, targets=targets)
