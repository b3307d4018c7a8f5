"""How an update came about, seen while the client trained: the examples need not be handed to the guard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedglass.core.errors import UsageError
from fedglass.core.optimisers import SGD, Adam, AdamW, Optimiser
from fedglass.core.types import BatchNorm, Training
from fedglass.recorders.hooks import TrainingReader
from fedglass.recorders.read import BY_HAND, ODD_BATCHES, training_facts
from fedglass.recorders.steps import StepRead
from fedglass.recordings.format import RESERVED

OPTIMISERS: Mapping[str, tuple[type[SGD | Adam | AdamW], tuple[str, ...]]] = {
    "SGD": (SGD, ("momentum", "dampening", "nesterov", "weight_decay")),
    "Adam": (Adam, ("betas", "eps", "weight_decay")),
    "AdamW": (AdamW, ("betas", "eps", "weight_decay")),
}
"""Those that can be played again, with the options that count."""
OTHERWISE = ("amsgrad", "maximize")
"""Options that make another optimiser of them."""
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
    return Trained(
        model,
        torch.stack([reader.inputs[digest] for digest, _ in keys]),
        torch.tensor([label for _, label in keys], dtype=torch.int64),
        _training(facts, len(keys), steps),
        tuple(tuple(rows[pair] for pair in _pairs(step)) for step in steps),
        tuple(facts.get("untrained", ())),
    )


def _pairs(step: StepRead) -> list[tuple[bytes, int]]:
    return list(zip(step.rows, step.labels or (), strict=True))


def _training(facts: Mapping[str, Any], examples: int, steps: list[StepRead]) -> Training:
    size = steps[0].examples
    whole = size >= examples and all(step.examples == size for step in steps)
    return Training(
        lr=facts["lr"],
        batch_size=None if whole else size,
        batch_norm=BatchNorm.BATCH if facts.get("batch_norm") == "batch" else BatchNorm.FROZEN,
        optimiser=_optimiser(facts),
        steps=None if whole and len(steps) == 1 else len(steps),
        clip=facts.get("clip"),
        label_smoothing=facts.get("label_smoothing") or 0.0,
    )


def _optimiser(facts: Mapping[str, Any]) -> Optimiser:
    name, options = str(facts.get("optimiser")), facts.get("options", {})
    if options.get("decoupled_weight_decay"):
        name = "AdamW"  # what torch makes of Adam then
    if name not in OPTIMISERS or any(options.get(each) for each in OTHERWISE):
        raise UsageError(f"The training can not be played again: the optimiser {name}, with its options, is not known.")
    kind, known = OPTIMISERS[name]
    told: dict[str, Any] = {key: options[key] for key in known if key in options}
    return kind(**told)
