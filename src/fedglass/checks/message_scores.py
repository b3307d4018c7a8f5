"""How well an example fits a message: its gradient beside the update, without what all examples have in common.

Without noise the principal directions of public gradients are projected out of both, and the score is the cosine of
what is left. Under declared Gaussian noise it is the likelihood ratio of a part of unknown size along the gradient,
where the other examples are one more Gaussian, with the covariance of public gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedglass.checks.candidates import Pool
from fedglass.checks.example_sketches import AT_ONCE, Reader
from fedglass.core.identity import digest, of_params, of_tensor
from fedglass.core.params import Params
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.models.network import Network
from fedglass.rounds.truth import Examples

DIRECTIONS = 0.95
"""Share of the public gradients that become directions, at most: on CIFAR-10 between half and all name as many."""
ROOM = 4
"""A message has so many times as many entries as directions are taken out: it has no other rank, as a vector. Of 490
entries, 40 to 150 directions named 7 of 8 records and 380 named 2."""
SIGNIFICANT = 1e-4
"""Singular values below this share of the largest are rounding, in single precision."""
UNMOVED = 0.05
"""Share of entries that are exactly zero from which they are left out everywhere: frozen layers, or a pruned update."""
STREWN = 4
"""Records in one batch with public examples, where a network uses the statistics of the batch."""
BLOCK = 256
"""Sketches that are scored at once."""
TINY = 1e-30


@dataclass(frozen=True, eq=False)
class Message:
    """What the adversary sees: the update, and all that is public about how it was made."""

    model: nn.Module
    before: Params
    buffers: Params
    update: Params
    training: Training
    whitening: Whitening
    noise_std: float = 0.0
    """Of each entry of the update, where additive Gaussian noise is declared."""


@dataclass(frozen=True, eq=False)
class _Inputs:
    """A pool as the network is fed with it."""

    pool: Pool
    whitening: Whitening

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.whitening.whiten(self.pool.images[rows].float()), self.pool.labels[rows]


class Kept:
    """Sketches of a pool at the same weights, kept from one message to the next: the clients of a round share them.

    Two bytes for each of 8,192 places: 160 MB for a pool of 10,000 examples.
    """

    def __init__(self) -> None:
        self._key = ""
        self._units, self._norms = torch.zeros(0, 0), torch.zeros(0)

    def read(self, key: str, reader: Reader, inputs: _Inputs, rows: Tensor) -> Tensor:
        """Return the sketches of these rows, of which only new ones are computed.  # (b, places)"""
        if key != self._key:
            count = len(inputs.pool.labels)
            self._key, self._norms = key, torch.full((count,), -1.0)
            self._units = torch.empty(count, reader.places, dtype=torch.float16)
        new = rows[self._norms[rows] < 0]
        if len(new):
            found, _ = reader.read(*inputs.at(new))
            norms = found.norm(dim=1)
            self._norms[new] = norms
            self._units[new] = (found / norms.clamp(min=TINY)[:, None]).half()
        return self._units[rows].float() * self._norms[rows, None]


class Scorer:
    """Scores examples against some messages that were sent from the same weights."""

    def __init__(
        self, message: Message, updates: Sequence[Params], pool: Pool, public: Tensor, kept: Kept | None = None
    ) -> None:
        """The first of the updates is the one that was sent; `public` are rows of the pool."""
        self._message, self._inputs, self._public, self._kept = message, _Inputs(pool, message.whitening), public, kept
        self._moved = _moved(message.update)
        self._reader, self.reads_as_trained = _reader(message, self._moved, self._inputs.at(torch.arange(AT_ONCE)))
        self._key = "" if kept is None else self._identity(pool)
        self._updates = [{name: update[name].float() for name in message.before} for update in updates]
        self._along: list[list[Tensor]] = []
        if message.noise_std > 0:
            self._use_likelihood()
        else:
            self._use_projection()

    @property
    def statistic(self) -> str:
        return "likelihood" if self._message.noise_std > 0 else "projected_cosine"

    def of_pool(self, rows: Tensor) -> Tensor:
        """Return the scores of rows of the pool, by message.  # (messages, rows)"""
        return torch.cat([self._scores(*self._read(some)) for some in torch.split(rows, BLOCK)], dim=1)

    def of_examples(self, examples: Examples) -> Tensor:
        """Return the scores of examples that are not in the pool, by message.  # (messages, n)"""
        inputs, labels = self._message.whitening.whiten(examples.images.float()), examples.labels
        if not self._reader.mixes:
            return self._scores(*self._reader.read(inputs, labels, self._along))
        found = []
        for first in range(0, len(labels), STREWN):
            some = slice(first, first + STREWN)
            rows = (torch.arange(AT_ONCE - STREWN) + AT_ONCE * first) % len(self._inputs.pool.labels)
            others, other_labels = self._inputs.at(rows)
            among = torch.cat([inputs[some], others]), torch.cat([labels[some], other_labels])
            sketches, products = self._reader.read(*among, self._along)
            count = len(labels[some])
            found.append(self._scores(sketches[:count], products[:count]))
        return torch.cat(found, dim=1)

    def _read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        if self._kept is None or self._along:
            return self._reader.read(*self._inputs.at(rows), self._along)
        return self._kept.read(self._key, self._reader, self._inputs, rows), torch.zeros(len(rows), 0)

    def _use_projection(self) -> None:
        public, _ = self._read(self._public)
        values, directions = _principal(public)
        significant = int((values > SIGNIFICANT * values.norm()).sum())
        entries = sum(int((u != 0).sum()) for u in self._updates[0].values())
        exhausted = significant // 2 if significant < len(public) else significant
        self.directions = min(int(DIRECTIONS * len(public)), entries // ROOM, exhausted)
        basis = directions[: self.directions]
        if getattr(self._message.training.optimiser, "weight_decay", 0.0):
            basis = _with(basis, self._reader.sketch(self._message.before))
        self._basis = basis
        units = []
        for update in self._updates:
            sketch = -self._reader.sketch(update)
            left = _left(sketch[None], basis)[0]
            faint = left.norm() <= SIGNIFICANT * sketch.norm()
            units.append(torch.zeros_like(left) if faint else left / left.norm())
        self._units = torch.stack(units)

    def _use_likelihood(self) -> None:
        inputs, labels = self._inputs.at(self._public)
        along = [[update[name] for name in self._reader.network.names] for update in self._updates]
        public, products = self._reader.read(inputs, labels, along)
        self._public_sketches, gram = public, public.double() @ public.double().T
        values, vectors = torch.linalg.eigh(gram)
        kept = values > SIGNIFICANT**2 * gram.diagonal().sum()
        variance = self._message.noise_std**2
        self._shrinks, self.directions = list[Tensor](), int(kept.sum())
        found = []
        for update, product in zip(along, products.T, strict=True):
            squares = (vectors.T @ product)[kept].square() / values[kept]
            ratio = float((squares - variance).sum().clamp(min=0) / values[kept].sum().clamp(min=TINY) / variance)
            shrink = ratio * torch.linalg.inv(torch.eye(len(gram), dtype=gram.dtype) + ratio * gram)
            common = self._reader.weighted_sum(inputs, labels, shrink @ product)
            self._shrinks.append(shrink)
            found.append([c - u for u, c in zip(update, common, strict=True)])
        self._along = found

    def _scores(self, sketches: Tensor, products: Tensor) -> Tensor:
        if not self._along:
            left = _left(sketches, self._basis)
            sizes, whole = left.norm(dim=1), sketches.norm(dim=1)
            return torch.where(sizes > SIGNIFICANT * whole, self._units @ left.T / sizes.clamp(min=TINY), 0.0)
        common = (sketches @ self._public_sketches.T).double()  # (b, p)
        square = sketches.square().sum(1).double()
        found = []
        for shrink, product in zip(self._shrinks, products.T, strict=True):
            left = square - ((common @ shrink) * common).sum(1)
            found.append(product / left.clamp(min=SIGNIFICANT**2 * square + TINY).sqrt())
        return torch.stack(found).float()

    def _identity(self, pool: Pool) -> str:
        told, moved = self._message, "" if self._moved is None else of_params(self._moved)
        how = f"{told.whitening!r} {told.training.label_smoothing!r} {self._reader.mixes} {told.model!r}"
        examples = of_tensor(pool.images), of_tensor(pool.labels)
        return digest(of_params(told.before), of_params(told.buffers), how, moved, *examples)


def _moved(update: Params) -> dict[str, Tensor] | None:
    """1 where the update moved; None where it moved nearly everywhere."""
    entries = sum(u.numel() for u in update.values())
    zeros = sum(int((u == 0).sum()) for u in update.values())
    return {name: (u != 0).float() for name, u in update.items()} if UNMOVED * entries < zeros < entries else None


def _reader(message: Message, moved: Params | None, some: tuple[Tensor, Tensor]) -> tuple[Reader, bool]:
    """One that uses the statistics that the client used, where its layers can be read; and whether it does."""
    buffers = {name: b.float() if b.is_floating_point() else b for name, b in message.buffers.items()}
    for batch_norm in dict.fromkeys((message.training.batch_norm, BatchNorm.FROZEN)):
        network = Network(message.model, buffers, batch_norm)
        reader = Reader(network, message.before, message.training.label_smoothing, moved)
        if reader.can_read(*some):
            break
    return reader, batch_norm is message.training.batch_norm


def _principal(gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values and directions of some gradients, the largest first.  # (p, places) -> (p,), (p, places)"""
    wide = gradients.double()
    squares, vectors = torch.linalg.eigh(wide @ wide.T)
    values = squares.clamp(min=0).sqrt().flip(0)
    directions = vectors.T.flip(0) @ wide / values.clamp(min=TINY)[:, None]
    return values, directions.float()


def _with(basis: Tensor, more: Tensor) -> Tensor:
    left = _left(more[None], basis)
    return torch.cat([basis, left / left.norm().clamp(min=TINY)])


def _left(sketches: Tensor, basis: Tensor) -> Tensor:
    """# (b, places)"""
    return sketches - (sketches @ basis.T) @ basis
