"""Where `fedglass train` starts: a plan's federation or options, made into data and an untrained model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from fedglass.core.errors import DataError, UsageError
from fedglass.core.identity import digest, of_model, of_tensor
from fedglass.core.rng import stream
from fedglass.data.catalogue import load, located
from fedglass.data.dataset import Dataset
from fedglass.models.catalogue import build
from fedglass.models.init_names import by_name
from fedglass.models.init_names import located as initialisation_at
from fedglass.plan.schema import read_plan

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
