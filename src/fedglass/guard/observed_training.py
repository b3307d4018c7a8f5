"""A training that was observed while the client ran it: the examples need not be handed to the guard."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedglass.core.errors import UpdateError, UsageError
from fedglass.core.tensors import COUNTER
from fedglass.core.types import Training
from fedglass.models.names import names_of
from fedglass.recorders.hooks import TrainingReader
from fedglass.recorders.read import training_facts
from fedglass.recorders.steps import ObservedStep
from fedglass.recorders.texts import Reservation
from fedglass.recordings.format import RESERVATION_IDS, RESERVATIONS, FactSheet
from fedglass.recordings.training_facts import CROSS_ENTROPY, training_of_batches

REPLAYED = {Reservation.WRITTEN_BY_HAND, Reservation.ODD_BATCHES}
"""Reservations that the replay of the very batches settles: weights that were written to may hold declared noise."""


@dataclass(frozen=True, eq=False)
class ObservedTraining:
    """The network that a client trained, its examples and its training."""

    model: nn.Module
    examples: Tensor  # (n, c, h, w), as the network was fed
    labels: Tensor  # (n,)
    training: Training
    batches: tuple[tuple[int, ...], ...]
    """The rows of each local step."""
    untrained: tuple[str, ...] = ()
    """The parameters that no step moved."""


def observed_training(reader: TrainingReader, noisy_steps: bool = False) -> ObservedTraining:
    """Return what was observed; raise UsageError if it cannot be replayed.

    Args:
        noisy_steps: Whether a defence is declared that changes gradients, as DP-SGD does.
    """
    steps = reader.steps
    if reader.fault:
        raise UsageError(f"The training cannot be replayed: observing it failed ({reader.fault}).")
    if not steps:
        raise UsageError("No optimiser took a step while the guard watched: train inside of `guard.watch()`.")
    facts = training_facts(steps)
    settled = REPLAYED | ({Reservation.CHANGED_GRADIENTS} if noisy_steps else set())
    reservations = zip(facts.get(RESERVATION_IDS, ()), facts.get(RESERVATIONS, ()), strict=True)
    sentences = [sentence for reservation, sentence in reservations if reservation not in settled]
    if sentences or facts.get("loss") != CROSS_ENTROPY or "lr" not in facts:
        raise UsageError(f"The training cannot be replayed: {' '.join(sentences) or 'its loss is not cross entropy.'}")
    model = steps[-1].module
    if model is None or any(step.module is not model or step.labels is None for step in steps):
        raise UsageError("The training cannot be replayed: the network or the labels were not observed.")
    if any(step.shape is None or len(step.shape) != 3 for step in steps):
        raise UsageError("The training cannot be replayed: the inputs of the network are not images.")
    examples = dict.fromkeys(example for step in steps for example in _labelled(step))
    row_of = {example: row for row, example in enumerate(examples)}
    sheet: FactSheet = {name: {"read": value} for name, value in facts.items()}
    training = training_of_batches(sheet, [step.examples for step in steps], len(examples))
    if training is None:
        raise UsageError("The training cannot be replayed: its optimiser, with its options, is not known.")
    return ObservedTraining(
        model,
        torch.stack([reader.inputs[digest] for digest, _ in examples]),
        torch.tensor([label for _, label in examples], dtype=torch.int64),
        training,
        tuple(tuple(row_of[example] for example in _labelled(step)) for step in steps),
        tuple(facts.get("untrained", ())),
    )


def _labelled(step: ObservedStep) -> list[tuple[bytes, int]]:
    """Return the digest and the label of each example of a step: one image under two labels is two examples."""
    return list(zip(step.rows, step.labels or (), strict=True))


def under_model_names(
    arrays: Mapping[str, Tensor], model: nn.Module, untrained: Collection[str] = ()
) -> dict[str, Tensor] | None:
    """Return the same tensors under the model's names, in the model's order; None if they are not the model's.

    Parameters that are not trained may be missing. So may counters of batches, or all buffers.

    >>> network = nn.Linear(1, 1)
    >>> weight, bias = network.state_dict().values()
    >>> list(under_model_names({"net.bias": bias, "net.weight": weight}, network))
    ['weight', 'bias']
    >>> under_model_names({"net.bias": bias}, network) is None
    True
    """
    try:
        sent = [(name, tuple(tensor.shape)) for name, tensor in arrays.items()]
        matched = names_of(sent, model, "The message", untrained).applied(arrays)
    except UpdateError:
        return None
    parameters = {name for name, _ in model.named_parameters()}
    missing = [name for name in model.state_dict() if name not in matched and name not in untrained]
    without_buffers = all(name in parameters for name in matched)
    for name in missing:
        if name in parameters or not (without_buffers or name.endswith(COUNTER)):
            return None
    return {name: matched[name] for name in model.state_dict() if name in matched}
