"""A set of labelled images with everything an audit needs to know about it, and its partition over the clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedglass.core.errors import DataError, UsageError
from fedglass.core.losses import is_class_labels, is_target
from fedglass.core.types import Whitening


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled images with pixels in [0, 1], checked when it is made.

    >>> images, labels = torch.ones(4, 1, 8, 8), torch.tensor([0, 1, 0, 1])
    >>> dots = Dataset("dots", images, labels, classes=2, whitening=Whitening((0.5,), (0.3,)))
    >>> len(dots), dots.shape, dots.take(2).labels
    (4, (1, 8, 8), tensor([0, 1]))
    """

    name: str
    images: Tensor  # (n, c, h, w), float32
    labels: Tensor  # (n,), int64; targets of another loss: (n, outputs) floats, or (n, h, w) classes of pixels
    classes: int
    """Number of classes, or of outputs."""
    whitening: Whitening
    class_names: tuple[str, ...] | None = None
    writers: Tensor | None = None  # (n,), int64: who made each image

    def __post_init__(self) -> None:
        check_images(self.name, self.images)
        _check_labels(self.name, self.labels, len(self.images), self.classes)
        _check_companions(self)

    def __len__(self) -> int:
        return self.images.shape[0]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    def subset(self, indices: Tensor | Sequence[int]) -> Dataset:
        """The examples at these positions, in this order."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        if chosen.ndim != 1 or len(chosen) == 0:
            raise DataError(f"{self.name}: a subset needs a list of positions, got {tuple(chosen.shape)}.")
        if int(chosen.min()) < 0 or int(chosen.max()) >= len(self):
            raise DataError(
                f"{self.name}: positions must lie in [0, {len(self)}), got {int(chosen.min())} to {int(chosen.max())}."
            )
        writers = None if self.writers is None else self.writers[chosen]
        return replace(self, images=self.images[chosen], labels=self.labels[chosen], writers=writers)

    def take(self, n: int) -> Dataset:
        """The first n examples."""
        if not 1 <= n <= len(self):
            raise DataError(
                f"{self.name}: {n} examples were asked for, expected between 1 and {len(self)}, which is all "
                "there are: ask for fewer or bring more data."
            )
        return self.subset(torch.arange(n))

    def relabelled(self, classes: int, generator: torch.Generator) -> Dataset:
        """The same images under labels drawn uniformly from `classes` classes: a stand-in for richer data."""
        if classes < 1:
            raise DataError(f"{self.name}: classes must be at least 1, got {classes}.")
        labels = torch.randint(classes, (len(self),), generator=generator)
        name = f"{self.name} (labels drawn from {classes})"
        return replace(self, name=name, labels=labels, classes=classes, class_names=None)

    def resized(self, size: int | tuple[int, int]) -> Dataset:
        """The images stretched to size x size (or to height, width) with an anti-aliasing filter."""
        target = (size, size) if isinstance(size, int) else size
        if min(target) < 1:
            raise DataError(f"{self.name}: size must be at least 1 pixel, got {size}.")
        images = functional.interpolate(self.images, target, mode="bilinear", antialias=True)
        labels = self.labels
        if labels.ndim == 3 and labels.shape[1:] == self.images.shape[2:]:
            labels = functional.interpolate(labels[:, None].double(), target, mode="nearest-exact")[:, 0].long()
        # The filter's weights sum to one only up to rounding.
        return replace(self, images=images.clamp(0, 1), labels=labels)


def check_images(name: str, images: Tensor) -> None:
    """Refuse what is not a batch of images with pixels in [0, 1]; `name` is what the message blames."""
    if images.ndim != 4 or images.numel() == 0:
        raise DataError(
            f"{name}: images must have shape (n, channels, height, width) with no empty side, got "
            f"{tuple(images.shape)}."
        )
    if images.dtype != torch.float32:
        raise DataError(f"{name}: images must be float32 pixels in [0, 1], got {images.dtype}.")
    if not torch.isfinite(images).all():
        raise DataError(f"{name}: images hold NaN or infinity; expected pixels in [0, 1]. Clean the file.")
    low, high = float(images.min()), float(images.max())
    if low < 0 or high > 1:
        raise DataError(
            f"{name}: pixels must lie in [0, 1], got [{low:g}, {high:g}]: store them as uint8, or scale them "
            "before (divide by 255, or undo the normalisation)."
        )


def _check_labels(name: str, labels: Tensor, examples: int, classes: int) -> None:
    if is_target(labels):
        _check_targets(name, labels, examples, classes)
        return
    if labels.dtype != torch.int64 or labels.ndim != 1:
        raise DataError(
            f"{name}: labels must be int64 of shape (n,), got {labels.dtype} of shape {tuple(labels.shape)}."
        )
    if len(labels) != examples:
        raise DataError(f"{name}: expected one label for each of {examples} images, got {len(labels)} labels.")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise DataError(
            f"{name}: labels must lie in [0, {classes}) for {classes} classes, got {low} to {high}: check "
            "the number of classes, and that counting starts at 0."
        )


def _check_targets(name: str, targets: Tensor, examples: int, outputs: int) -> None:
    if len(targets) != examples:
        raise DataError(f"{name}: expected one target for each of {examples} images, got {len(targets)} targets.")
    if targets.is_floating_point() and not torch.isfinite(targets).all():
        raise DataError(f"{name}: targets hold NaN or infinity: clean the file.")
    if targets.is_floating_point() and targets.shape[1] != outputs:
        raise DataError(f"{name}: expected {outputs} numbers as the target of an image, got {targets.shape[1]}.")


def _check_companions(data: Dataset) -> None:
    if len(data.whitening.mean) != data.images.shape[1]:
        raise DataError(
            f"{data.name}: whitening must have one mean per channel, expected {data.images.shape[1]}, got "
            f"{len(data.whitening.mean)}."
        )
    if data.class_names is not None and len(data.class_names) != data.classes:
        raise DataError(
            f"{data.name}: expected {data.classes} class names, one per class, got {len(data.class_names)}."
        )
    writers = data.writers
    if writers is not None and (writers.dtype != torch.int64 or writers.shape != data.labels.shape[:1]):
        raise DataError(
            f"{data.name}: writers must be int64 of shape {tuple(data.labels.shape[:1])}, got {writers.dtype} of "
            f"shape {tuple(writers.shape)}."
        )


# Channel means and deviations: the published ones, and those of data that nobody has published.


FEMNIST = Whitening((0.96424,), (0.15768,))
MNIST = Whitening((0.1307,), (0.3081,))
FASHION_MNIST = Whitening((0.2860,), (0.3530,))
CIFAR10 = Whitening((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100 = Whitening((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))


def measured(images: Tensor) -> Whitening:
    """The mean and deviation of each channel, to four digits.  # (n, c, h, w)

    Rounded so that a report can print them; a deviation below 0.01 becomes 0.01, since flat images would
    otherwise be blown up to noise.

    >>> measured(torch.tensor([0.0, 1.0]).view(1, 1, 1, 2))
    Whitening(mean=(0.5,), std=(0.5,))
    """
    deviation, mean = torch.std_mean(images, dim=(0, 2, 3), correction=0)
    return Whitening(
        tuple(round(float(m), 4) for m in mean),
        tuple(round(max(float(s), 0.01), 4) for s in deviation),
    )


@dataclass(frozen=True)
class Iid:
    """Shuffled and dealt out evenly: sizes differ by at most one, and nothing is left over.

    >>> from fedglass.core.types import Whitening
    >>> labels = torch.zeros(5, dtype=torch.int64)
    >>> data = Dataset("d", torch.zeros(5, 1, 2, 2), labels, 1, Whitening((0.0,), (1.0,)))
    >>> [len(part) for part in Iid().split(data, 2, torch.Generator().manual_seed(0))]
    [3, 2]
    """

    def split(self, dataset: Dataset, clients: int, generator: torch.Generator) -> list[Tensor]:
        _check_clients(dataset, clients)
        return list(torch.randperm(len(dataset), generator=generator).tensor_split(clients))


@dataclass(frozen=True)
class Dirichlet:
    """Each class is spread over the clients in Dirichlet(alpha) shares [Hsu et al., 2019].

    Small alpha: few clients hold most of a class. A client that would stay empty takes one example from the
    largest client, since an empty client cannot train.
    """

    alpha: float

    def __post_init__(self) -> None:
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise UsageError(f"Dirichlet(alpha) needs a positive finite alpha, got {self.alpha}.")

    def split(self, dataset: Dataset, clients: int, generator: torch.Generator) -> list[Tensor]:
        _check_clients(dataset, clients)
        shuffled = torch.randperm(len(dataset), generator=generator)
        # torch draws no Dirichlet shares from a generator of one's own; numpy's are also safe for tiny alpha.
        shares = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        parts: list[list[int]] = [[] for _ in range(clients)]
        if not is_class_labels(dataset.labels):
            raise UsageError(
                f'federation.partition = "dirichlet" deals out classes, but {dataset.name} has other targets: leave it '
                "out."
            )
        for label in sorted(set(dataset.labels.tolist())):
            members = shuffled[dataset.labels[shuffled] == label]
            edges = np.cumsum(shares.dirichlet(np.full(clients, self.alpha)))[:-1] * len(members)
            pieces = members.tensor_split(np.rint(edges).astype(int).tolist())
            for part, piece in zip(parts, pieces, strict=True):
                part.extend(piece.tolist())
        for part in parts:
            if not part:
                part.append(max(parts, key=len).pop())
        return [torch.tensor(part) for part in parts]


@dataclass(frozen=True)
class ByWriter:
    """One writer per client with all its examples in order; of more writers than clients some are drawn."""

    def split(self, dataset: Dataset, clients: int, generator: torch.Generator) -> list[Tensor]:
        _check_clients(dataset, clients)
        if dataset.writers is None:
            raise DataError(
                f"{dataset.name} does not say who wrote its examples: ByWriter() needs writers, choose Iid() "
                "or Dirichlet(alpha)."
            )
        writers = torch.tensor(sorted(set(dataset.writers.tolist())))
        if clients > len(writers):
            raise DataError(f"{dataset.name} has {len(writers)} writers, too few for {clients} clients: ask for fewer.")
        drawn = writers[torch.randperm(len(writers), generator=generator)[:clients].sort().values]
        return [(dataset.writers == writer).nonzero()[:, 0] for writer in drawn]


@dataclass(frozen=True)
class Sizes:
    """Exactly this many examples for each client, drawn without repetition; the rest stays out."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise UsageError(f"Sizes(sizes) needs one positive number per client, got {self.sizes}.")

    def split(self, dataset: Dataset, clients: int, generator: torch.Generator) -> list[Tensor]:
        _check_clients(dataset, clients)
        if clients != len(self.sizes):
            raise UsageError(f"Sizes(sizes) names {len(self.sizes)} clients, got clients={clients}.")
        total = sum(self.sizes)
        if total > len(dataset):
            raise DataError(
                f"{dataset.name} has {len(dataset)} examples, Sizes{self.sizes} needs {total}: ask for fewer."
            )
        shuffled = torch.randperm(len(dataset), generator=generator)
        return list(torch.split(shuffled[:total], list(self.sizes)))


Partition = Iid | Dirichlet | ByWriter | Sizes
"""A rule that gives every client the positions of its examples; no example goes to two clients."""


def _check_clients(dataset: Dataset, clients: int) -> None:
    if not 1 <= clients <= len(dataset):
        raise DataError(
            f"{dataset.name} has {len(dataset)} examples, so clients must lie between 1 and {len(dataset)}, "
            f"got {clients}."
        )


def stratified_rows(labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw `count` rows with each class in its proportion, in ascending order.  # (n,) -> (count,)

    What rounding leaves over goes to the classes with the largest remainders, the smaller label first. Fewer examples
    than classes cannot have every class. Targets without classes, such as masks, are drawn as if they were one class.

    >>> labels = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    >>> labels[stratified_rows(labels, 4, torch.Generator().manual_seed(0))]
    tensor([0, 0, 1, 2])
    """
    labels = labels if is_class_labels(labels) else labels.new_zeros(len(labels))
    shuffled = torch.randperm(len(labels), generator=generator)
    by_class = shuffled[torch.argsort(labels[shuffled], stable=True)]
    sizes = torch.unique(labels, return_counts=True)[1]
    exact = sizes.double() * count / len(labels)
    quotas = exact.floor().long()
    largest = torch.argsort(exact - quotas, descending=True, stable=True)
    quotas[largest[: count - int(quotas.sum())]] += 1
    members = torch.split(by_class, sizes.tolist())
    return torch.cat([rows[:quota] for rows, quota in zip(members, quotas.tolist(), strict=True)]).sort().values
