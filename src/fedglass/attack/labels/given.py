"""Labels that the adversary is told: ORACLE knowledge, and marked as such in the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from fedglass.attack.images.pixels import device_of
from fedglass.attack.labels.known import known
from fedglass.attack.parts import Bound
from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.core.types import Observation, Training


@register("labels", "oracle", summary="ORACLE: the true labels, in no particular order; needs adversary.knows_labels")
@dataclass(frozen=True)
class OracleLabels:
    """The true labels in random order: how often each occurs is known, in which batches is not."""

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        knows = observation.knows
        if knows.labels is None:
            raise UsageError(
                "OracleLabels needs the true labels, but the adversary does not know them: set "
                "adversary.knows_labels = true, or choose labels that are recovered from the message."
            )
        told = knows.labels.to(device_of(observation))
        if told.shape != (knows.examples,):
            raise UsageError(
                f"The adversary is told labels of shape {tuple(told.shape)} for {knows.examples} examples: give one "
                "for each."
            )
        if told.is_floating_point():
            raise UsageError(
                f"The adversary is told labels of type {told.dtype}, expected whole numbers: convert them."
            )
        _check_classes(told, observation)
        each = torch.split(told, knows.examples // knows.clients)  # the clients' labels are told apart
        return known(torch.cat([labels[torch.randperm(len(labels), generator=generator)] for labels in each]))


@register(
    "labels",
    "oracle_batches",
    summary="ORACLE: the true labels of each local batch; needs adversary.knows_batch_labels",
)
@dataclass(frozen=True)
class OracleBatchLabels:
    """The true labels of each local batch [Dimitrov et al., 2022, App. C.3].  # (epochs, n)"""

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        return known(told_in_batches(observation))


def told_in_batches(observation: Observation) -> Tensor:
    """The true labels in the order in which each epoch took them.  # (epochs, n)"""
    batches, training = observation.knows.batch_labels, observation.knows.training
    if batches is None or training is None:
        raise UsageError(
            "OracleBatchLabels needs the true labels of each batch and the training: set "
            "adversary.knows_batch_labels and adversary.knows_training = true. Of an aggregate they can not be told."
        )
    examples = observation.knows.examples
    _check_batches(batches, training, examples)
    flat = torch.tensor([label for batch in batches for label in batch], device=device_of(observation))
    _check_classes(flat, observation)
    return flat.view(training.epochs, examples)


def _check_batches(batches: Sequence[Sequence[int]], training: Training, examples: int) -> None:
    """Every epoch has the same examples, in batches of the training's sizes."""
    sizes = [part.stop - part.start for part in training.batches(examples)]
    if len(batches) != training.steps(examples):
        raise UsageError(
            f"The adversary is told the labels of {len(batches)} batches, expected {training.steps(examples)}, "
            f"{training.epochs} epochs of {len(sizes)}: give those of every batch."
        )
    for number, (batch, size) in enumerate(zip(batches, sizes * training.epochs, strict=True), start=1):
        if len(batch) != size:
            raise UsageError(
                f"The adversary is told {len(batch)} labels of batch {number}, expected {size}: give one for each "
                "example."
            )
    epochs = [Counter(chain(*batches[i : i + len(sizes)])) for i in range(0, len(batches), len(sizes))]
    other = next((i for i, counts in enumerate(epochs, start=1) if counts != epochs[0]), None)
    if other is not None:
        raise UsageError(
            f"The adversary is told other labels in epoch {other} than in epoch 1, but each epoch takes all examples: "
            "correct the labels of the batches."
        )


def _check_classes(told: Tensor, observation: Observation) -> None:
    classes = observation.knows.classes
    if int(told.min()) < 0 or int(told.max()) >= classes:
        raise UsageError(
            f"The adversary is told labels from {int(told.min())} to {int(told.max())}, expected 0 to "
            f"{classes - 1}: correct them or the number of classes."
        )
