"""How an update came about, seen while the client trained: the examples need not be handed to the guard."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedglass.core.errors import UsageError
from fedglass.core.types import Training
from fedglass.recorders.hooks import TrainingReader
from fedglass.recorders.read import BY_HAND, ODD_BATCHES, training_facts
from fedglass.recorders.steps import StepRead
from fedglass.recordings.format import RESERVED, FactSheet
from fedglass.recordings.training_facts import training_of_batches

ANSWERED = (BY_HAND, ODD_BATCHES)
"""What the replay of the very batches tells: weights that were written to may hold the declared noise."""
CHANGED = "Gradients were changed between backward and the step"
"""How a reader begins to say so: what DP-SGD does, if it is declared."""


@dataclass(frozen=True, eq=False)
class Trained:
    """What a client trained, on what and how."""

    model: nn.Module
    examples: Tensor  # (n, c, h, w), as the network was fed
    labels: Tensor  # (n,)
    training: Training
    batches: tuple[tuple[int, ...], ...]
    """The rows of each local step."""
    untrained: tuple[str, ...] = ()
    """The parameters that no step moved."""


def trained(reader: TrainingReader, noisy_steps: bool = False) -> Trained:
    """What was seen, or that it can not be played again. `noisy_steps`: gradients are declared to be changed."""
    steps = reader.steps
    if reader.fault:
        raise UsageError(f"The training can not be played again: listening to it failed ({reader.fault}).")
    if not steps:
        raise UsageError("No optimiser took a step while the guard watched: train inside of `guard.watch()`.")
    facts = training_facts(steps)
    doubts = [d for d in facts.get(RESERVED, ()) if d not in ANSWERED and not (noisy_steps and d.startswith(CHANGED))]
    if doubts or facts.get("loss") != "cross_entropy" or "lr" not in facts:
        raise UsageError(f"The training can not be played again: {' '.join(doubts) or 'its loss is another.'}")
    model = steps[-1].module
    if model is None or any(step.module is not model or step.labels is None for step in steps):
        raise UsageError("The training can not be played again: the network or the labels were not seen.")
    if any(step.shape is None or len(step.shape) != 3 for step in steps):
        raise UsageError("The training can not be played again: what the network was given are no images.")
    keys = dict.fromkeys((row, label) for step in steps for row, label in _pairs(step))
    rows = {key: i for i, key in enumerate(keys)}
    sheet: FactSheet = {name: {"read": value} for name, value in facts.items()}
    training = training_of_batches(sheet, [step.examples for step in steps], len(keys))
    if training is None:
        raise UsageError("The training can not be played again: its optimiser, with its options, is not known.")
    return Trained(
        model,
        torch.stack([reader.inputs[digest] for digest, _ in keys]),
        torch.tensor([label for _, label in keys], dtype=torch.int64),
        training,
        tuple(tuple(rows[pair] for pair in _pairs(step)) for step in steps),
        tuple(facts.get("untrained", ())),
    )


def _pairs(step: StepRead) -> list[tuple[bytes, int]]:
    return list(zip(step.rows, step.labels or (), strict=True))
