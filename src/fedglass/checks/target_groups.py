"""The candidate game for targets that are not classes: candidates get the target of the record.

Records are compared with examples of the same label, since the label alone would name some of them. Numbers, several
labels and masks hardly ever occur twice, so that public images take the place of the record under its own target. The
distinct targets of the records are numbered, and the game goes on with these numbers as classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedglass.checks.candidates import MOST_OF_LABEL, Pool
from fedglass.checks.message_scores import ScoredMessage
from fedglass.core.errors import UsageError
from fedglass.core.losses import Loss, is_class_labels
from fedglass.federation.truth import Examples

MOST_NUMBERS = 2**27
"""Numbers of all images of the game together: half a gibibyte."""


@dataclass(frozen=True, eq=False)
class IndexedTargets:
    """A loss whose targets are given as rows of a table."""

    loss: Loss
    table: Tensor  # (m, ...)

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss.value(outputs, self.table.to(outputs.device)[targets])


def with_numbered_targets(
    message: ScoredMessage, records: Examples, pool: Pool, held_out: Examples | None, candidates: int
) -> tuple[ScoredMessage, Examples, Pool, Examples | None]:
    """Return the game with numbers of distinct targets as classes; itself where the targets are classes."""
    loss = message.training.loss
    if loss is None or is_class_labels(records.labels):
        return message, records, pool, held_out
    table, numbers = _numbered(records.labels)
    size = max(1, pool.images[0].numel())
    count = min(len(pool.images), round(MOST_OF_LABEL * candidates), MOST_NUMBERS // (size * len(table)))
    if count < 1:
        raise UsageError(f"The candidate game has too many different targets, {len(table)}: give fewer records.")
    # Each target has a part of the pool of its own, as far as it goes round.
    rows = torch.arange(len(table) * count) % len(pool.images)
    labels = torch.arange(len(table)).repeat_interleave(count)
    numbered = replace(message, training=replace(message.training, loss=IndexedTargets(loss, table)))
    others = None if held_out is None else Examples(held_out.images, _numbers_in(table, held_out.labels))
    return numbered, Examples(records.images, numbers), Pool(pool.images[rows], labels, pool.same_source), others


def _numbered(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct targets, and the number of each example's.  # (m, ...), (n,)

    >>> table, numbers = _numbered(torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]))
    >>> table.tolist(), numbers.tolist()
    ([[0.0, 0.0], [1.0, 0.0]], [1, 0, 1])
    """
    rows, numbers = torch.unique(targets.flatten(1), dim=0, return_inverse=True)
    return rows.view(-1, *targets.shape[1:]), numbers


def _numbers_in(table: Tensor, targets: Tensor) -> Tensor:
    """Return the number of each target in a table, -1 for those that are not in it.  # (n,)"""
    same = (targets.flatten(1)[:, None] == table.flatten(1)[None]).all(2)  # (n, m)
    return torch.where(same.any(1), same.long().argmax(1), -1)
