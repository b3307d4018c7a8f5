"""True labels that the adversary is given: ORACLE knowledge, and marked as such in the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.forward.target import like
from fedglass.attack.parts import Bound
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact, refusal
from fedglass.core.losses import TargetKind, is_class_labels, not_ignored, target_kind
from fedglass.core.registry import register
from fedglass.core.types import Observation, Training


def fixed_labels(labels: Tensor) -> Bound:
    """Return a binding without unknowns, for labels that are fixed before the images are sought."""
    return Bound((), lambda tensors: labels)


@register("labels", "oracle", summary="ORACLE: the true labels, in no particular order; needs adversary.knows_labels")
@dataclass(frozen=True)
class OracleLabels:
    """The true labels in random order: the count of each is known, the batches of each are not."""

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.LABELS})

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        knows = observation.knows
        if knows.labels is None:
            raise refusal("OracleLabels", [Fact.LABELS])
        labels = knows.labels.to(like(observation).device)
        if not is_class_labels(labels) and target_kind(knows.objective) is not TargetKind.CLASSES:
            if len(labels) != knows.examples:
                raise UsageError(
                    f"The adversary is told {len(labels)} targets for {knows.examples} examples: give one for each."
                )
        elif labels.shape != (knows.examples,):
            raise UsageError(
                f"The adversary is told labels of shape {tuple(labels.shape)} for {knows.examples} examples: give one "
                "for each."
            )
        elif labels.is_floating_point():
            raise UsageError(
                f"The adversary is told labels of type {labels.dtype}, expected whole numbers: convert them."
            )
        else:
            _check_classes(labels, observation)
        # Labels stay with their client, where the number of examples of each is known.
        clients = torch.split(labels, list(knows.sizes) if knows.sizes else max(1, knows.examples // knows.clients))
        return fixed_labels(torch.cat([part[torch.randperm(len(part), generator=generator)] for part in clients]))


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
        return fixed_labels(batch_labels_by_epoch(observation))


def batch_labels_by_epoch(observation: Observation) -> Tensor:
    """Return the true labels in the order of each epoch.  # (epochs, n)

    Examples that a shortened last epoch did not use come at its end.
    """
    batches, training = observation.knows.batch_labels, observation.knows.training
    if batches is None or training is None or observation.knows.clients > 1:
        raise refusal("OracleBatchLabels", [Fact.BATCH_LABELS])
    examples = observation.knows.examples
    _check_batches(batches, training, examples)
    epochs = _epochs(batches, len(training.batches(examples)))
    # The labels that the last epoch lacks; in a single epoch they are unknown, and do not matter: zeros.
    missing = Counter({0: examples - len(epochs[-1])})
    unused = Counter(epochs[0]) - Counter(epochs[-1]) if len(epochs) > 1 else missing
    rows = [*epochs[:-1], epochs[-1] + sorted(unused.elements())]
    labels = torch.tensor(rows, device=like(observation).device)
    _check_classes(labels, observation)
    return labels


def _epochs(batches: Sequence[Sequence[int]], per_epoch: int) -> list[list[int]]:
    """Return the labels of each epoch, one after the other."""
    return [list(chain(*batches[i : i + per_epoch])) for i in range(0, len(batches), per_epoch)]


def _check_batches(batches: Sequence[Sequence[int]], training: Training, examples: int) -> None:
    """Check that every epoch has the same examples, in batches of the training's sizes; the last may be shorter."""
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
    # The labels of a shorter epoch must be among those of the first.
    for number, counts in enumerate(epochs, start=1):
        if not counts <= epochs[0]:
            raise UsageError(
                f"The adversary is told other labels in epoch {number} than in epoch 1, but each epoch takes all "
                "examples: correct the labels of the batches."
            )


def _check_classes(labels: Tensor, observation: Observation) -> None:
    classes, used = observation.knows.classes, not_ignored(observation.knows.objective, labels)
    if len(used) and (int(used.min()) < 0 or int(used.max()) >= classes):
        raise UsageError(
            f"The adversary is told labels from {int(used.min())} to {int(used.max())}, expected 0 to "
            f"{classes - 1}: correct them or the number of classes."
        )
