"""The private data behind a transcript: a sidecar that only the audit opens."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fedglass.core.errors import DataError
from fedglass.core.identity import digest, of_tensor

BatchLabels = tuple[tuple[int, ...], ...]
"""The labels of each local step."""
Batches = tuple[tuple[int, ...], ...]
"""The rows of each local step."""


@dataclass(frozen=True, eq=False)
class Truth:
    """The examples that a message was computed from."""

    images: Tensor  # (n, c, h, w), pixels in [0, 1]
    labels: Tensor  # (n,)
    clients: tuple[str, ...]
    """Whose examples are scored."""
    own: int = 0
    """How many examples at the end are the adversary's own: they explain the message, and are not scored."""
    owners: tuple[str, ...] = ()
    """Whose each of the scored examples is; empty where nobody says."""

    @property
    def private(self) -> Truth:
        """The examples that are not the adversary's own."""
        count = len(self.labels) - self.own
        return Truth(self.images[:count], self.labels[:count], self.clients, owners=self.owners)


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled images."""

    images: Tensor  # (n, c, h, w), pixels in [0, 1]
    labels: Tensor  # (n,)


@dataclass(frozen=True, eq=False)
class Truths:
    """Every client's examples, and the order in which each round took them."""

    examples: Mapping[str, Examples]
    batch_labels: Mapping[tuple[int, str], BatchLabels] = field(default_factory=dict)
    """By round and client."""
    taken: Mapping[tuple[int, str], tuple[int, ...]] = field(default_factory=dict)
    """By round and client, which examples were trained on, where not all were."""
    order: Mapping[tuple[int, str], Batches] = field(default_factory=dict)
    """By round and client, which of all its examples each local step took, where that was recorded."""

    @property
    def identity(self) -> str:
        """A hash of whose examples are known, and of these."""
        parts = [(name, of_tensor(own.images), of_tensor(own.labels)) for name, own in sorted(self.examples.items())]
        return digest(*(text for part in parts for text in part))

    def sharing(self, clients: Sequence[str]) -> tuple[str, ...]:
        """Who else has an image that one of these clients has."""
        known = set[bytes]().union(*(self._pictures.get(name, ()) for name in clients))
        return tuple(name for name, own in self._pictures.items() if name not in clients and not known.isdisjoint(own))

    @cached_property
    def _pictures(self) -> dict[str, set[bytes]]:
        return {name: _contents(own) for name, own in self.examples.items()}

    def of(self, client: str, index: int) -> Examples:
        """The examples that a client trained on in a round, or that nobody kept them."""
        if client not in self.examples:
            raise DataError(
                f"The private examples of {client!r} are not beside the transcript, which has those of "
                f"{', '.join(map(repr, self.examples)) or 'nobody'}: let that client write its own, or choose another."
            )
        whole, rows = self.examples[client], self.taken.get((index, client))
        return whole if rows is None else Examples(whole.images[list(rows)], whole.labels[list(rows)])

    def batches(self, client: str, index: int) -> Batches | None:
        """The recorded batches, as rows of what `of` gives."""
        told, rows = self.order.get((index, client)), self.taken.get((index, client))
        if told is None or rows is None:
            return told
        place = {row: i for i, row in enumerate(rows)}
        return tuple(tuple(place[row] for row in batch) for batch in told)

    def behind(self, clients: Sequence[str], index: int, own: str | None = None) -> Truth:
        """The examples of these clients in a round, one after another, then the adversary's own."""
        parts = [self.of(name, index) for name in (*clients, *([] if own is None else [own]))]
        images, labels = torch.cat([p.images for p in parts]), torch.cat([p.labels for p in parts])
        owners = tuple(name for name, part in zip(clients, parts, strict=False) for _ in part.labels)
        return Truth(images, labels, tuple(clients), 0 if own is None else len(parts[-1].labels), owners)

    def save(self, directory: str | Path) -> None:
        """Write the private side, apart from the transcript; only its owner may read the files."""
        from fedglass.recordings.truth_files import save_truths

        save_truths(self, Path(directory))

    @classmethod
    def load(cls, directory: str | Path) -> Truths:
        """What `save` wrote."""
        from fedglass.recordings.truth_files import load_truths

        return load_truths(Path(directory))


def _contents(own: Examples) -> set[bytes]:
    """A digest of each image, of eight bits as pictures are kept: what is rounded otherwise shows the same."""
    pixels = (own.images.detach().cpu() * 255).round().to(torch.uint8)
    return {hashlib.blake2b(image.numpy().tobytes(), digest_size=16).digest() for image in pixels}
