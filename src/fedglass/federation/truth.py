"""The private examples behind a transcript, kept separately: only the audit opens them."""

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
from fedglass.core.losses import is_class_labels

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
    """The clients with examples that are scored."""
    own: int = 0
    """The number of examples at the end that are the adversary's own: they explain the message and are not scored."""
    owners: tuple[str, ...] = ()
    """The client that owns each scored example; empty if unknown."""

    @property
    def private(self) -> Truth:
        """Return the examples that are not the adversary's own."""
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
    """By round and client, the rows that were trained on, if not all were."""
    order: Mapping[tuple[int, str], Batches] = field(default_factory=dict)
    """By round and client, the rows that each local step took, if that was recorded."""

    @classmethod
    def of_batches(cls, examples: Mapping[str, Examples], order: Mapping[tuple[int, str], Batches]) -> Truths:
        """Return the truths of clients whose local steps took these rows of their examples, by round and client."""
        labels, taken = {}, {}
        for place, batches in order.items():
            of_client = examples[place[1]].labels
            if is_class_labels(of_client):
                labels[place] = tuple(tuple(of_client[list(batch)].tolist()) for batch in batches)
            rows = sorted({row for batch in batches for row in batch})
            if len(rows) < len(of_client):
                taken[place] = tuple(rows)
        return cls(examples, labels, taken, order)

    @property
    def identity(self) -> str:
        """Return a hash of the clients with known examples, and of these examples."""
        hashes = [
            (name, of_tensor(data.images), of_tensor(data.labels)) for name, data in sorted(self.examples.items())
        ]
        return digest(*(text for client in hashes for text in client))

    def clients_sharing_images(self, clients: Sequence[str]) -> tuple[str, ...]:
        """Return the other clients that have an image of one of these clients."""
        theirs = set[bytes]().union(*(self._image_hashes.get(name, ()) for name in clients))
        others = ((name, hashes) for name, hashes in self._image_hashes.items() if name not in clients)
        return tuple(name for name, hashes in others if not theirs.isdisjoint(hashes))

    @cached_property
    def _image_hashes(self) -> dict[str, set[bytes]]:
        return {name: set(picture_hashes(data.images)) for name, data in self.examples.items()}

    def of(self, client: str, index: int) -> Examples:
        """Return the examples that a client trained on in a round; raise an error if they were not stored."""
        if client not in self.examples:
            raise DataError(
                f"The private examples of {client!r} are missing; those of "
                f"{', '.join(map(repr, self.examples)) or 'no client'} are stored. Let {client!r} write its examples, "
                "or choose another client."
            )
        data, rows = self.examples[client], self.taken.get((index, client))
        return data if rows is None else Examples(data.images[list(rows)], data.labels[list(rows)])

    def batches(self, client: str, index: int) -> Batches | None:
        """Return the recorded batches, as rows of the examples that `of` returns."""
        batches, rows = self.order.get((index, client)), self.taken.get((index, client))
        if batches is None or rows is None:
            return batches
        position = {row: i for i, row in enumerate(rows)}
        return tuple(tuple(position[row] for row in batch) for batch in batches)

    def truth_of(self, clients: Sequence[str], index: int, own_client: str | None = None) -> Truth:
        """Return the examples of these clients in a round, one after another, then those of the adversary itself."""
        parts = [self.of(name, index) for name in (*clients, *([] if own_client is None else [own_client]))]
        images, labels = torch.cat([p.images for p in parts]), torch.cat([p.labels for p in parts])
        owners = tuple(name for name, part in zip(clients, parts, strict=False) for _ in part.labels)
        return Truth(images, labels, tuple(clients), 0 if own_client is None else len(parts[-1].labels), owners)

    def save(self, directory: str | Path) -> None:
        """Write the private examples, apart from the transcript; only their owner may read the files."""
        from fedglass.recordings.truth_files import save_truths

        save_truths(self, Path(directory))

    @classmethod
    def load(cls, directory: str | Path) -> Truths:
        """Read the examples that `save` wrote."""
        from fedglass.recordings.truth_files import load_truths

        return load_truths(Path(directory))


def picture_hashes(images: Tensor) -> list[bytes]:
    """Return a hash of each image at eight bits, as picture files have: differences in rounding do not count."""
    pixels = (images.detach().cpu() * 255).round().to(torch.uint8)
    return [hashlib.blake2b(image.numpy().tobytes(), digest_size=16).digest() for image in pixels]
