"""Populations: the images that clients are drawn from, a user's own files or stand-ins for them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedglass.audit.public_data import sample_examples
from fedglass.core.errors import DataError, UsageError
from fedglass.core.identity import digest, of_tensor
from fedglass.core.rng import derive, stream
from fedglass.core.types import Whitening
from fedglass.data.catalogue import load, photos
from fedglass.data.dataset import CIFAR10, CIFAR100, FASHION_MNIST, FEMNIST, MNIST, Dataset
from fedglass.federation.truth import Examples
from fedglass.reproduce.samples import read_samples
from fedglass.reproduce.tables import CURIOUS_SIDES, PUBLISHED, REDUCED

MOST_WRITERS = 100
"""Clients that a warm-up draws from, if the data have more writers."""
IMAGENET = Whitening((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class DataKind:
    """A data set of the papers, and what stands in for it."""

    title: str
    shape: tuple[int, int, int]
    classes: int
    whitening: Whitening
    file: str
    """File in a folder of stand-ins."""
    images: str
    """Description of the images in the file."""
    embedded: str
    reader: str = "npz"
    """Reader of the file."""
    genuine: bool = False
    """Whether the file holds the paper's own data."""
    split: str = "train"


def _plain(kind: DataKind) -> DataKind:
    """Return the same data without whitening."""
    channels = kind.shape[0]
    return replace(kind, whitening=Whitening((0.0,) * channels, (1.0,) * channels))


def _at(side: int, kind: DataKind) -> DataKind:
    """Return the same data at another size."""
    return replace(kind, shape=(3, side, side))


GREY, COLOUR, LARGE = (1, 28, 28), (3, 32, 32), (3, PUBLISHED, PUBLISHED)
DIGITS = DataKind("MNIST", GREY, 10, MNIST, "mnist_10k.npz", "MNIST", "glyphs", genuine=True)
CLOTHES = DataKind("F-MNIST", GREY, 10, FASHION_MNIST, "fashion_mnist_10k.npz", "Fashion-MNIST", "glyphs", genuine=True)
SAMPLES = DataKind(
    "ImageNet", LARGE, 1000, IMAGENET, "imagenet_samples", "ImageNet images", "photos", "listed", genuine=True
)
MANY_IMAGES = DataKind("ImageNet", LARGE, 1000, IMAGENET, "cifar10_10k.npz", "CIFAR-10 images, enlarged", "photos")
"""The many images of the curious client's large rounds are a kind of their own."""
PHOTOGRAPHS = {
    "celeba": DataKind(
        "CelebA-HQ", LARGE, 307, IMAGENET, "orl_faces.npz", "ORL faces of 40 persons (grey)", "photos", "faces"
    ),
    "lc25000": DataKind(
        "LC25000", LARGE, 5, IMAGENET, "medical_images", "H&E tiles of colon tissue", "photos", "tiles"
    ),
    "imagenet": SAMPLES,
}
KINDS = {
    "femnist": DataKind(
        "FEMNIST", GREY, 62, FEMNIST, "femnist_digits_12clients.npz", "handwritten digits of 12 clients", "glyphs"
    ),
    "cifar100": DataKind("CIFAR100", COLOUR, 100, CIFAR100, "cifar10_10k.npz", "CIFAR-10 images", "photos"),
    "cifar10": DataKind(
        "CIFAR-10", COLOUR, 10, CIFAR10, "cifar10_10k.npz", "CIFAR-10", "photos", genuine=True, split="test"
    ),
    "mnist": DIGITS,
    "fashion": CLOTHES,
    "mnist-plain": _plain(DIGITS),
    "fashion-plain": _plain(CLOTHES),
    **PHOTOGRAPHS,
    **{f"{name}@{REDUCED}": _at(REDUCED, kind) for name, kind in PHOTOGRAPHS.items()},
    **{
        f"{name}@{side}-plain": _at(side, _plain(kind))
        for side in CURIOUS_SIDES
        for name, kind in (("imagenet", SAMPLES), ("imagenet-many", MANY_IMAGES))
    },
}
KIND_OF = {kind.title: name for name, kind in KINDS.items() if "@" not in name and not name.endswith("-plain")}


@dataclass(frozen=True)
class Population:
    """The images that clients are drawn from. It holds text alone, so that a worker can load the images itself."""

    kind: str
    source: str
    stand_in: bool
    seed: int = 0
    own_labels: bool = False
    """Whether a stand-in keeps its labels. Random labels are sound only for an untrained network, which knows none."""

    def dataset(self) -> Dataset:
        """Return the images; a stand-in's labels may be drawn from as many classes as the paper's data have."""
        return _loaded(self)

    def with_own_labels(self) -> Population:
        """Return the same images with their own labels."""
        return replace(self, own_labels=self.stand_in)

    def client(self, index: int, examples: int | None) -> tuple[str, Tensor, Tensor]:
        """Return name, images and labels of one client: a writer's first images, or any, shuffled for that client."""
        self.check(index + 1, examples)
        return _client(self, index, examples)

    def apart(self, index: int, sizes: Sequence[int]) -> list[tuple[str, Tensor, Tensor]]:
        """Return name, images and labels of each client of one round; they share no image, and rounds are shuffled."""
        self.check(1, sum(sizes))
        data = self.dataset()
        rows = torch.randperm(len(data), generator=stream(self.seed, "round", index))[: sum(sizes)]
        parts = torch.split(rows, list(sizes))
        return [(f"client {i} of round {index}", data.images[p], data.labels[p]) for i, p in enumerate(parts)]

    def dealt(self, index: int, sizes: Sequence[int], alpha: float) -> list[tuple[str, Tensor, Tensor]]:
        """Return name, images and labels of each client, its classes in shares q ~ Dirichlet(alpha) [Hsu et al., 2019].

        Each class is dealt from one shuffled circle: no image goes to two clients before all of its class are out.
        """
        data, clients = self.dataset(), []
        draws = np.random.default_rng(derive(self.seed, "shares", index))
        order = torch.randperm(len(data), generator=stream(self.seed, "dealt", index))
        circles = [order[data.labels[order] == label] for label in sorted(set(data.labels.tolist()))]
        starts = [0] * len(circles)
        for i, size in enumerate(sizes):
            counts = draws.multinomial(size, draws.dirichlet(np.full(len(circles), alpha)))
            taken = [c[(s + torch.arange(n)) % len(c)] for c, s, n in zip(circles, starts, counts, strict=True)]
            rows = torch.cat(taken)[torch.from_numpy(draws.permutation(size))]
            starts = [s + int(n) for s, n in zip(starts, counts, strict=True)]
            clients.append((f"client {i} of run {index}", data.images[rows], data.labels[rows]))
        return clients

    @property
    def embedded(self) -> bool:
        """Return whether the images are those of the package, since a folder of stand-ins has none."""
        return self.source == KINDS[self.kind].embedded

    def test(self) -> Examples:
        """Return images that no client has; those of embedded stand-ins are among the clients' own."""
        if self.embedded:
            return sample_examples(self.dataset(), self.seed)
        data = _read(self.source, "test")
        return Examples(data.images, data.labels)

    def check(self, clients: int, examples: int | None, together: int = 1) -> None:
        """Raise an error if there are not enough data for so many clients, `together` of them behind each message.

        Every client is another writer: the same writer twice would not be a new observation.
        """
        data, writers = self.dataset(), self.writers(examples)
        if writers is None and len(data) < (examples or 1):
            raise DataError(
                f"{data.name}: a client needs {examples} images, but there are {len(data)}: choose rows with fewer "
                "examples or bring more data with --data."
            )
        if writers is not None and writers < clients:
            raise DataError(_too_few_writers(data.name, writers, self.writers() or 0, clients, examples, together))

    def writers(self, examples: int | None = None) -> int | None:
        """Return the number of writers with at least so many images; None if the data have no writers."""
        data = self.dataset()
        return None if data.writers is None else len(_with_enough(data.writers, examples))

    def describe(self, with_place: bool = True) -> str:
        """Describe the images, for every table with numbers from them; without their place on this machine if asked."""
        kind, data = KINDS[self.kind], self.dataset()
        size = f", at {kind.shape[1]} x {kind.shape[2]} pixels" if _sized(self.kind) else ""
        if not self.stand_in:
            place = f" read from {self.source}" if with_place else ""
            return f"{kind.title}: {data.name}, {len(data)} images{place}{size}"
        images = {"glyphs": "drawn characters", "photos": "crops of the embedded photographs"}.get(self.source)
        labels = "their own labels" if self.own_labels else f"labels drawn from {kind.classes} classes"
        return f"STAND-IN for {kind.title}: {images or kind.images} with {labels}{size}"

    @functools.cached_property
    def identity(self) -> str:
        """Return a hash of the images, their labels and their writers."""
        data = self.with_own_labels().dataset()
        writers = "" if data.writers is None else of_tensor(data.writers)
        facts = [self.kind, str(self.stand_in), of_tensor(data.images), of_tensor(data.labels), writers]
        return digest(*facts, *(["own labels"] if self.own_labels else []))


def _with_enough(writers: Tensor, examples: int | None) -> list[int]:
    """Return the writers of at least so many images, in order.

    >>> _with_enough(torch.tensor([7, 2, 2, 7, 5]), 2)
    [2, 7]
    """
    counts = Counter(writers.tolist())
    return sorted(writer for writer, count in counts.items() if count >= (examples or 0))


def _too_few_writers(
    name: str, enough_writers: int, all_writers: int, clients: int, examples: int | None, together: int
) -> str:
    with_enough = "" if enough_writers == all_writers else f", of whom {enough_writers} have {examples} images or more"
    per_message = "" if together == 1 else f" ({together} behind each message)"
    fewer = (
        f"ask for at most --clients {enough_writers // together}"
        if enough_writers >= together
        else "choose rows with fewer examples"
    )
    fewer += "" if together == 1 else ", or choose with --rows those with fewer clients behind a message"
    return (
        f"{name}: every client is another writer, and {clients} are needed{per_message}, but there are "
        f"{all_writers}{with_enough}: {fewer}, or bring more data with --data."
    )


@functools.cache
def _client(population: Population, index: int, examples: int | None) -> tuple[str, Tensor, Tensor]:
    """Return a client's images; they are cached, so that the runs of all methods share them."""
    data = population.dataset()
    name, rows = "random images", torch.arange(len(data))
    if data.writers is not None:
        writer = _with_enough(data.writers, examples)[index]
        name, rows = f"writer {writer}", (data.writers == writer).nonzero()[:, 0]
    # The papers take a writer's first images; those of the stand-in are sorted by their digits.
    if data.writers is None or population.stand_in:
        rows = rows[torch.randperm(len(rows), generator=stream(population.seed, "client", index))]
    chosen = rows[: len(rows) if examples is None else examples]
    return f"{name} (client {index})", data.images[chosen], data.labels[chosen]


def populations(
    kinds: Sequence[str], data: Sequence[str], stand_ins: Path | None, seed: int, own_labels: bool = False
) -> dict[str, Population]:
    """Return one population for each kind: the user's data of that shape, or a stand-in, which may keep its labels."""
    source_by_kind: dict[str, str] = {}
    for source in data:
        kind, place = _kind_and_source(source, kinds)
        if kind not in kinds:
            raise UsageError(
                f"--data {source}: these are {KINDS[kind].title}'s, but the rows chosen need {_describe_kinds(kinds)}: "
                "leave it out, or choose rows that use it."
            )
        if kind in source_by_kind:
            raise UsageError(
                f"--data {source_by_kind[kind]} and --data {source} are both taken for {KINDS[kind].title}: give one "
                "of them, or put a name in front of each, as in cifar100=PATH."
            )
        source_by_kind[kind] = place
    by_kind = {kind: _population(kind, source_by_kind.get(kind), stand_ins, seed) for kind in kinds}
    if not own_labels:
        return by_kind
    if not any(population.stand_in for population in by_kind.values()):
        raise UsageError("--own-labels is for stand-ins, but these are the paper's data or your own: leave it out.")
    return {kind: each.with_own_labels() for kind, each in by_kind.items()}


def _describe_kinds(kinds: Sequence[str]) -> str:
    """Return the data sets and their shapes.

    >>> _describe_kinds(["femnist", "cifar10"])
    "FEMNIST's (1, 28, 28) or CIFAR-10's (3, 32, 32)"
    """
    return " or ".join(f"{KINDS[kind].title}'s {KINDS[kind].shape}" for kind in kinds)


def _population(kind: str, source: str | None, stand_ins: Path | None, seed: int) -> Population:
    if source is not None:
        return Population(kind, source, stand_in=False, seed=seed)
    if stand_ins is not None and not stand_ins.is_dir():
        raise DataError(f"stand-ins: no such folder: {str(stand_ins)!r}.")
    data_kind = KINDS[kind]
    file = None if stand_ins is None else stand_ins / data_kind.file
    if file is None or not file.exists():
        return Population(kind, data_kind.embedded, stand_in=True, seed=seed)
    return Population(kind, f"{data_kind.reader}:{file}", stand_in=not data_kind.genuine, seed=seed)


def _kind_and_source(source: str, kinds: Sequence[str]) -> tuple[str, str]:
    """Return kind and source of a user's data, by a name in front (`celeba=folder:PATH`) or by their shape."""
    name, equals, path = source.partition("=")
    if equals and name in {kind.partition("@")[0] for kind in KINDS}:
        return next((kind for kind in kinds if kind.partition("@")[0] == name), name), path
    return _kind_of(source, kinds), source


def _kind_of(source: str, kinds: Sequence[str]) -> str:
    data = _read(source)
    # Data that are not whitened look like whitened ones: they are taken only if the rows need them.
    candidates = {name: kind for name, kind in KINDS.items() if name in kinds or not name.endswith("-plain")}
    fitting = [name for name, kind in candidates.items() if kind.shape == data.shape]
    if not fitting:
        raise DataError(
            f"--data {source}: its images have shape {data.shape}; expected {_describe_kinds(kinds)}. Photographs are "
            "resized if their data set is named, as in celeba=folder:PATH."
        )
    # Of CIFAR-10 and CIFAR-100 the one that the rows need, or the smaller one that has all the classes.
    wanted = [name for name in fitting if name in kinds] or fitting
    return min(wanted, key=lambda name: (KINDS[name].classes < data.classes, KINDS[name].classes))


@functools.cache
def _read(source: str, split: str = "train", side: int | None = None) -> Dataset:
    samples = None if side is None else read_samples(source, side)
    return load(source, split=split, size=side) if samples is None else samples


@functools.lru_cache(maxsize=8)
def _loaded(population: Population) -> Dataset:
    kind = KINDS[population.kind]
    side = kind.shape[1] if _sized(population.kind) else None
    if population.source == "photos" and side is None:
        data = _photo_crops()
    else:
        data = _read(population.source, kind.split, side)
    if population.stand_in and data.classes > kind.classes:
        data = replace(data, labels=data.labels % kind.classes, classes=kind.classes, class_names=None)
    if data.classes > kind.classes:
        raise DataError(f"{data.name} has {data.classes} classes, {kind.title} has {kind.classes}: bring those data.")
    if population.stand_in and not population.own_labels:
        data = data.relabelled(kind.classes, stream(population.seed, "labels", population.kind))
    return replace(data, whitening=kind.whitening, classes=kind.classes, class_names=None)


def _sized(kind: str) -> bool:
    """Return whether the images are resized here; other data sets have a size of their own."""
    return KINDS[kind].shape[1] > 32 or "@" in kind


def _photo_crops() -> Dataset:
    """Return each embedded photograph whole and in 9 crops, all mirrored too: 480 images of 32x32."""
    resized, data = photos().resized(32), photos()
    steps = range(0, 33, 16)
    crops = [data.images[:, :, y : y + 32, x : x + 32] for y in steps for x in steps]
    images = torch.cat([resized.images, *crops])
    both = torch.cat([images, images.flip(-1)])
    return replace(resized, name="photo crops", images=both, labels=data.labels.repeat(2 * (1 + len(crops))))
