"""Scores of examples against a message: gradient and update, without what all examples have in common.

The update is the sum of the example's part, of unknown size, and that of the others. The others are taken for Gaussian:
they vary as public gradients do, and by some more in every direction, which declared noise and long trainings add. How
much more is estimated from the update by maximum likelihood. The score is the likelihood ratio, a matched filter: the
product of gradient and update in units of that covariance, divided by the gradient's length in the same units. Without
noise it is nearly the cosine of gradient and update after the directions of the public gradients are projected out.

In the candidate game, records are compared with examples of the same label, since the label alone would name some of
them. Numbers, several labels and masks hardly ever occur twice, so that public images take the place of the record
under its own target. The distinct targets of the records are numbered, and the game goes on with these numbers as
classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedglass.checks.candidates import MOST_OF_LABEL
from fedglass.checks.example_sketches import AT_ONCE, Reader
from fedglass.core.errors import UsageError
from fedglass.core.losses import Loss, is_class_labels
from fedglass.core.tensors import Params
from fedglass.core.thresholds import GRADIENT_ROUNDING, UNMOVED_ENTRIES
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.federation.truth import Examples
from fedglass.models.network import Network

WEIGHTS = (0.0, *(10 ** (step / 8) for step in range(-32, 25)))
"""How much more the others may vary along a public gradient than everywhere; the likeliest is taken. On
CIFAR-10 that is 30 for one local step, 18 for five epochs and 4 for Adam, whose steps are not sums of gradients."""
MIXED_IN = 4
"""Records in one batch with public examples, where a network uses the statistics of the batch."""
BLOCK = 256
"""Examples that are scored at once."""
TINY = 1e-30


@dataclass(frozen=True, eq=False)
class ScoredMessage:
    """An update as the adversary sees it, and all that is public about how it was made."""

    model: nn.Module
    before: Params
    buffers: Params
    update: Params
    training: Training
    whitening: Whitening
    noise_std: float = 0.0
    """The deviation of declared additive Gaussian noise at each entry of the update."""


class Scorer:
    """Scores examples against some messages that were sent from the same weights: cosines, after the filter."""

    def __init__(self, message: ScoredMessage, updates: Sequence[Params], pool: Examples, public: Tensor) -> None:
        """The first of the updates is the one that was sent; `public` are rows of the pool."""
        self._message, self._pool, self._public = message, pool, public
        self._reader, self.reads_as_trained = _reader(message, self._inputs(public[:AT_ONCE]))
        sent = [self._reader.kept(_without_decay(update, message)) for update in updates]
        self._along: list[Sequence[Tensor]] = list(sent) if message.noise_std > 0 else []
        self._gradients, products = self._read(public)  # on the CPU, where all but the gradients is computed
        sketches = [self._reader.sketch(update) for update in sent]
        if not self._along:
            products = (self._gradients @ torch.stack(sketches, 1)).double()
        squares, self._vectors = torch.linalg.eigh(self._gradients.double() @ self._gradients.double().T)
        self._squares = squares.clamp(min=0)
        self._common = (self._vectors.T @ self._gradients.double()).float()  # (k, places)
        self._filters = [self._filter(*sources) for sources in zip(sent, sketches, products.T, strict=True)]
        self._along = [remainder for remainder, _, _ in self._filters] if self._along else []

    @property
    def directions(self) -> int:
        """The number of directions that the others have in common, above rounding."""
        return int((self._squares > GRADIENT_ROUNDING**2 * self._squares.sum()).sum())

    def of_pool(self, rows: Tensor) -> Tensor:
        """Return the scores of rows of the pool, by message; public ones as if they were not.  # (messages, rows)"""
        places = torch.full((len(self._pool.labels),), -1)
        places[self._public] = torch.arange(len(self._public))
        scores = torch.zeros(len(self._filters), len(rows))
        for some in torch.split((places[rows] < 0).nonzero().flatten(), BLOCK):
            scores[:, some] = self._scores(*self._read(rows[some]))
        for some in torch.split((places[rows] >= 0).nonzero().flatten(), BLOCK):
            products = self._read(rows[some])[1] if self._along else torch.zeros(0)
            scores[:, some] = self._scores(self._gradients[places[rows[some]]], products, public=True)
        return scores

    def of_examples(self, examples: Examples) -> Tensor:
        """Return the scores of examples that are not in the pool, by message.  # (messages, n)"""
        inputs, labels = self._message.whitening.whiten(examples.images.float()), examples.labels
        if not self._reader.mixes:
            return self._scores(*self._reader.read(inputs, labels, self._along))
        scores = []
        for first in range(0, len(labels), MIXED_IN):
            some = slice(first, first + MIXED_IN)
            places = (torch.arange(AT_ONCE - MIXED_IN) + AT_ONCE * first) % len(self._public)
            public_inputs, public_labels = self._inputs(self._public[places])
            mixed_batch = torch.cat([inputs[some], public_inputs]), torch.cat([labels[some], public_labels])
            count = len(labels[some])
            scores.append(self._scores(*(read[:count] for read in self._reader.read(*mixed_batch, self._along))))
        return torch.cat(scores, dim=1)

    def _inputs(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows of the pool as inputs of the network."""
        return self._message.whitening.whiten(self._pool.images[rows].float()), self._pool.labels[rows]

    def _read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return sketches of the gradients, and under noise their exact products with the updates or remainders."""
        return self._reader.read(*self._inputs(rows), self._along)

    def _filter(
        self, update: Sequence[Tensor], sketch: Tensor, products: Tensor
    ) -> tuple[Sequence[Tensor], Tensor, float]:
        """Take out what the others explain; `products` are the update's with the public gradients.  # (k,)

        Returns:
            The remainder, of length 1: a sketch, or under noise the tensors, since a sketch adds up the noise of many
            entries; the share of each direction that is taken out, by its squared length; and how much the others vary
            along a public gradient, in units of how they vary everywhere.
        """
        along = self._vectors.T @ products
        weight = self._likeliest(along, update if self._along else [sketch])
        shares = weight / (1 + weight * self._squares)
        explained = self._vectors @ (shares * along)
        if self._along:
            common = self._reader.weighted_sum(*self._inputs(self._public), explained)
            sent, remainder = update, [u - c for u, c in zip(update, common, strict=True)]
        else:
            sent, remainder = [sketch], [sketch - explained.float() @ self._gradients]
        size = max(sum(float((u * r).sum()) for u, r in zip(sent, remainder, strict=True)), TINY) ** 0.5
        return [tensor / size for tensor in remainder], shares, weight

    def _likeliest(self, along: Tensor, update: Sequence[Tensor]) -> float:
        """Return the weight under which the update is most likely, with the variance that goes with it."""
        entries = self._reader.entries if self._along else min(self._reader.entries, self._reader.places)
        above_rounding = self._squares > GRADIENT_ROUNDING**2 * self._squares.sum()
        squares = self._squares[above_rounding]
        inside = along[above_rounding].square() / squares
        outside = (sum(float(u.cpu().double().square().sum()) for u in update) - inside.sum()).clamp(min=0)
        weights = torch.tensor(WEIGHTS, dtype=squares.dtype) / squares.sum().clamp(min=TINY) * len(self._public)
        spread = 1 + weights[:, None] * squares  # (weights, k)
        energy = outside + (inside / spread).sum(1)
        variance = (energy / entries).clamp(min=max(self._message.noise_std**2, TINY))
        surprise = entries * variance.log() + spread.log().sum(1) + energy / variance
        return float(weights[surprise.argmin()])

    def _scores(self, sketches: Tensor, products: Tensor, *, public: bool = False) -> Tensor:
        """Return the scores of sketched gradients.  # (b, places), (b, messages) -> (messages, b)"""
        along = (sketches @ self._common.T).double().square()  # (b, k)
        square = sketches.square().sum(1).double()
        scores = []
        for i, (filtered, shares, weight) in enumerate(self._filters):
            remainder = (square - along @ shares).clamp(min=TINY)
            product = products[:, i] if self._along else (sketches @ filtered[0]).double()
            # A gradient that is among the public ones explains itself: undone as for one row of a least-squares fit.
            leverage = (1 - weight * remainder).clamp(min=GRADIENT_ROUNDING) if public else torch.ones_like(remainder)
            above_rounding = remainder > GRADIENT_ROUNDING**2 * square
            scores.append(torch.where(above_rounding, product / (remainder * leverage).sqrt(), 0.0))
        return torch.stack(scores).float()


def _without_decay(update: Params, message: ScoredMessage) -> dict[str, Tensor]:
    """Return the negative update, which points along gradients, without the weights' direction where these decay."""
    sent = {name: -update[name].detach().to(before).float() for name, before in message.before.items()}
    if not getattr(message.training.optimiser, "weight_decay", 0.0):
        return sent
    weights = {name: w.detach().float() for name, w in message.before.items()}
    along, size = (sum(float((w * tensors[name]).sum()) for name, w in weights.items()) for tensors in (sent, weights))
    return {name: sent[name] - along / max(size, TINY) * w for name, w in weights.items()}


def _moved(update: Params) -> dict[str, Tensor] | None:
    """Return 1 where the update moved, as a mask; None where it moved nearly everywhere."""
    entries = sum(u.numel() for u in update.values())
    zeros = sum(int((u == 0).sum()) for u in update.values())
    return (
        {name: (u != 0).float() for name, u in update.items()} if UNMOVED_ENTRIES * entries < zeros < entries else None
    )


def _reader(message: ScoredMessage, some: tuple[Tensor, Tensor]) -> tuple[Reader, bool]:
    """Return a reader, and whether it uses the same BatchNorm statistics as the client."""
    buffers = {name: b.float() if b.is_floating_point() else b for name, b in message.buffers.items()}
    for batch_norm in dict.fromkeys((message.training.batch_norm, BatchNorm.FROZEN)):
        network = Network(message.model, buffers, batch_norm)
        training = message.training
        reader = Reader(
            network, message.before, training.label_smoothing, _moved(message.update), objective=training.loss
        )
        if reader.can_read(*some):
            break
    return reader, batch_norm is message.training.batch_norm


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
    message: ScoredMessage, records: Examples, pool: Examples, held_out: Examples | None, candidates: int
) -> tuple[ScoredMessage, Examples, Examples, Examples | None]:
    """Return the game with numbers of distinct targets as classes; itself where the targets are classes."""
    loss = message.training.loss
    if loss is None or is_class_labels(records.labels):
        return message, records, pool, held_out
    table, numbers = torch.unique(records.labels, dim=0, return_inverse=True)  # (m, ...), (n,)
    size = max(1, pool.images[0].numel())
    count = min(len(pool.images), round(MOST_OF_LABEL * candidates), MOST_NUMBERS // (size * len(table)))
    if count < 1:
        raise UsageError(f"The candidate game has too many different targets, {len(table)}: give fewer records.")
    # Each target has a part of the pool of its own, as far as it goes round.
    rows = torch.arange(len(table) * count) % len(pool.images)
    labels = torch.arange(len(table)).repeat_interleave(count)
    numbered = replace(message, training=replace(message.training, loss=IndexedTargets(loss, table)))
    others = None
    if held_out is not None:
        same = (held_out.labels.flatten(1)[:, None] == table.flatten(1)[None]).all(2)  # (h, m)
        others = Examples(held_out.images, torch.where(same.any(1), same.long().argmax(1), -1))
    return numbered, Examples(records.images, numbers), Examples(pool.images[rows], labels), others
