"""Where the clients' images come from: a user's own files, or stand-ins where there are none."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedglass.audit.digest import digest, of_tensor
from fedglass.core.errors import DataError
from fedglass.core.rng import stream
from fedglass.core.types import Whitening
from fedglass.data.catalogue import load
from fedglass.data.dataset import Dataset
from fedglass.data.photos import photos
from fedglass.data.whitening import CIFAR100, FEMNIST


@dataclass(frozen=True)
class Kind:
    """What the papers call a data set, and what stands in for it."""

    title: str
    shape: tuple[int, int, int]
    classes: int
    whitening: Whitening
    file: str
    """In a folder of stand-ins."""
    images: str
    """What the file shows."""
    embedded: str


KINDS = {
    "femnist": Kind(
        "FEMNIST",
        (1, 28, 28),
        62,
        FEMNIST,
        "femnist_digits_12clients.npz",
        "handwritten digits of 12 writers",
        "glyphs",
    ),
    "cifar100": Kind("CIFAR100", (3, 32, 32), 100, CIFAR100, "cifar10_10k.npz", "CIFAR-10 images", "photos"),
}
KIND_OF = {kind.title: name for name, kind in KINDS.items()}


@dataclass(frozen=True)
class Population:
    """The images that clients are drawn from. A value of text alone, so that a worker can load it for itself."""

    kind: str
    source: str
    stand_in: bool
    seed: int = 0

    def dataset(self, own_labels: bool = False) -> Dataset:
        """The images; a stand-in's labels are drawn from as many classes as the paper's data have.

        That is sound for an untrained network alone, to which labels mean nothing: with `own_labels` they stay.
        """
        return _loaded(self, own_labels)

    def client(self, index: int, examples: int | None, own_labels: bool = False) -> tuple[str, Tensor, Tensor]:
        """Name, images and labels of one client: a writer's images, or any, shuffled for that client."""
        return _client(self, index, examples, own_labels)

    def _drawn(self, index: int, examples: int | None, own_labels: bool) -> tuple[str, Tensor, Tensor]:
        data = self.dataset(own_labels)
        name, rows = self._rows(data, index)
        chosen = rows[torch.randperm(len(rows), generator=stream(self.seed, "client", index))]
        count = len(rows) if examples is None else examples
        if count > len(rows):
            raise DataError(
                f"{data.name}: client {index} needs {count} images, but {name} has {len(rows)}: choose rows with "
                "fewer examples or bring more data with --data."
            )
        return f"{name} (client {index})", data.images[chosen[:count]], data.labels[chosen[:count]]

    def writers(self) -> int | None:
        """How many there are, where the data say."""
        found = self.dataset().writers
        return None if found is None else len(set(found.tolist()))

    def words(self, own_labels: bool = False) -> str:
        """What the images are, for every table that shows a number from them."""
        kind, data = KINDS[self.kind], self.dataset()
        if not self.stand_in:
            return f"{kind.title}: {data.name}, {len(data)} images read from {self.source}"
        images = {"glyphs": "drawn characters", "photos": "crops of the embedded photographs"}.get(self.source)
        labels = "their own labels" if own_labels else f"labels drawn from {kind.classes} classes"
        return f"STAND-IN for {kind.title}: {images or kind.images} with {labels}"

    @functools.cached_property
    def identity(self) -> str:
        """A hash of the images, their labels and their writers."""
        data = self.dataset(own_labels=True)
        writers = "" if data.writers is None else of_tensor(data.writers)
        return digest(self.kind, str(self.stand_in), of_tensor(data.images), of_tensor(data.labels), writers)

    def _rows(self, data: Dataset, index: int) -> tuple[str, Tensor]:
        if data.writers is None:
            return "random images", torch.arange(len(data))
        writers = sorted(set(data.writers.tolist()))
        # More clients than writers: go round again, each time with another shuffle.
        writer = writers[index % len(writers)]
        return f"writer {writer}", (data.writers == writer).nonzero()[:, 0]


@functools.cache
def _client(population: Population, index: int, examples: int | None, own_labels: bool) -> tuple[str, Tensor, Tensor]:
    """Kept, so that the runs of all methods on one client share its images."""
    return population._drawn(index, examples, own_labels)


def populations(kinds: Sequence[str], data: Sequence[str], stand_ins: Path | None, seed: int) -> dict[str, Population]:
    """One population for each kind: the user's data of that shape, or its stand-in."""
    given = {kind: source for source in data for kind in [_kind_of(source)]}
    return {kind: _population(kind, given.get(kind), stand_ins, seed) for kind in kinds}


def _population(kind: str, source: str | None, stand_ins: Path | None, seed: int) -> Population:
    if source is not None:
        return Population(kind, source, stand_in=False, seed=seed)
    if stand_ins is not None and not stand_ins.is_dir():
        raise DataError(f"stand-ins: no such folder: {str(stand_ins)!r}.")
    file = None if stand_ins is None else stand_ins / KINDS[kind].file
    if file is None or not file.is_file():
        return Population(kind, KINDS[kind].embedded, stand_in=True, seed=seed)
    return Population(kind, f"npz:{file}", stand_in=True, seed=seed)


def _kind_of(source: str) -> str:
    shape = _read(source).shape
    for name, kind in KINDS.items():
        if kind.shape == shape:
            return name
    raise DataError(
        f"--data {source}: its images have shape {shape}; expected FEMNIST's (1, 28, 28) or CIFAR-100's (3, 32, 32)."
    )


@functools.cache
def _read(source: str) -> Dataset:
    return load(source)


@functools.lru_cache(maxsize=4)
def _loaded(population: Population, own_labels: bool) -> Dataset:
    kind = KINDS[population.kind]
    data = _photo_crops() if population.source == "photos" else _read(population.source)
    if data.classes > kind.classes:
        raise DataError(f"{data.name} has {data.classes} classes, {kind.title} has {kind.classes}: bring those data.")
    if population.stand_in and not own_labels:
        data = data.relabelled(kind.classes, stream(population.seed, "labels", population.kind))
    return replace(data, whitening=kind.whitening, classes=kind.classes, class_names=None)


def _photo_crops() -> Dataset:
    """Each embedded photograph whole and in 9 crops, all mirrored too: 480 images of 32x32."""
    whole, data = photos().resized(32), photos()
    steps = range(0, 33, 16)
    crops = [data.images[:, :, y : y + 32, x : x + 32] for y in steps for x in steps]
    images = torch.cat([whole.images, *crops])
    both = torch.cat([images, images.flip(-1)])
    return replace(whole, name="photo crops", images=both, labels=data.labels.repeat(2 * (1 + len(crops))))
