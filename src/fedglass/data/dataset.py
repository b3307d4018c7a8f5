"""A set of labelled images with everything an audit needs to know about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from fedglass.core.errors import DataError
from fedglass.core.losses import is_target
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
    credit: str = ""

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
