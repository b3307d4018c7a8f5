"""Labels that the adversary is told: ORACLE knowledge, and marked as such in the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.images.pixels import device_of
from fedglass.attack.parts import Bound
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact, refusal
from fedglass.core.registry import register
from fedglass.core.types import Observation, Training

# Labels that are settled before the images are sought.


def known(labels: Tensor) -> Bound:
    """A binding without unknowns: the labels are what they are."""
    return Bound((), lambda tensors: labels)


@register("labels", "oracle", summary="ORACLE: the true labels, in no particular order; needs adversary.knows_labels")
@dataclass(frozen=True)
class OracleLabels:
    """The true labels in random order: how often each occurs is known, in which batches is not."""

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.LABELS})

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        knows = observation.knows
        if knows.labels is None:
            raise refusal("OracleLabels", [Fact.LABELS])
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
        # The clients' labels are told apart, where it is known how many each has.
        each = torch.split(told, list(knows.sizes) if knows.sizes else max(1, knows.examples // knows.clients))
        return known(torch.cat([labels[torch.randperm(len(labels), generator=generator)] for labels in each]))


@register(
    "labels",
    "oracle_batches",
    summary="ORACLE: the true labels of each local batch; needs adversary.knows_batch_labels",
)
@dataclass(frozen=True)
class OracleBatchLabels:
    """The true labels of each local batch [Dimitrov et al., 2022, App. C.3].  # (epochs, n)"""

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.BATCH_LABELS})

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        return known(told_in_batches(observation))


def told_in_batches(observation: Observation) -> Tensor:
    """The true labels in the order in which each epoch took them.  # (epochs, n)

    The examples that a last epoch, cut short, did not take come at its end.
    """
    batches, training = observation.knows.batch_labels, observation.knows.training
    if batches is None or training is None or observation.knows.clients > 1:
        raise refusal("OracleBatchLabels", [Fact.BATCH_LABELS])
    examples = observation.knows.examples
    _check_batches(batches, training, examples)
    each = _epochs(batches, len(training.batches(examples)))
    told = torch.tensor([*each[:-1], each[-1] + _not_taken(each, examples)], device=device_of(observation))
    _check_classes(told, observation)
    return told


def _epochs(batches: Sequence[Sequence[int]], per_epoch: int) -> list[list[int]]:
    """The labels of each epoch, one after the other."""
    return [list(chain(*batches[i : i + per_epoch])) for i in range(0, len(batches), per_epoch)]


def _not_taken(epochs: Sequence[Sequence[int]], examples: int) -> list[int]:
    """The labels that the last epoch lacks.

    Where it is the only one they are not told, and do not count: zeros.
    """
    missing = examples - len(epochs[-1])
    others = Counter(epochs[0]) - Counter(epochs[-1]) if len(epochs) > 1 else Counter({0: missing})
    return sorted(others.elements())


def _check_batches(batches: Sequence[Sequence[int]], training: Training, examples: int) -> None:
    """Every epoch has the same examples, in batches of the training's sizes; the last may have been cut short."""
    sizes = [part.stop - part.start for part in training.batches(examples)]
    steps, passes = training.local_steps(examples), training.passes(examples)
    if len(batches) != steps:
        raise UsageError(
            f"The adversary is told the labels of {len(batches)} batches, expected {steps}, "
            f"{passes} epochs of {len(sizes)}: give those of every batch."
        )
    for number, (batch, size) in enumerate(zip(batches, (sizes * passes)[:steps], strict=True), start=1):
        if len(batch) != size:
            raise UsageError(
                f"The adversary is told {len(batch)} labels of batch {number}, expected {size}: give one for each "
                "example."
            )
    epochs = [Counter(labels) for labels in _epochs(batches, len(sizes))]
    # What a shorter epoch took must be among what the first did.
    other = next((i for i, counts in enumerate(epochs, start=1) if not _agree(counts, epochs[0])), None)
    if other is not None:
        raise UsageError(
            f"The adversary is told other labels in epoch {other} than in epoch 1, but each epoch takes all examples: "
            "correct the labels of the batches."
        )


def _agree(counts: Counter[int], first: Counter[int]) -> bool:
    return counts == first if counts.total() == first.total() else counts <= first


def _check_classes(told: Tensor, observation: Observation) -> None:
    classes = observation.knows.classes
    if int(told.min()) < 0 or int(told.max()) >= classes:
        raise UsageError(
            f"The adversary is told labels from {int(told.min())} to {int(told.max())}, expected 0 to "
            f"{classes - 1}: correct them or the number of classes."
        )
