"""Images represented by their pixels: the same or others in each epoch, or at a lower resolution that is enlarged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.forward.target import known_training, like
from fedglass.attack.forward.unroll import in_each_order
from fedglass.attack.labels.given import batch_labels_by_epoch
from fedglass.attack.parts import Bound
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.types import Observation, Unknown
from fedglass.diffusion.ddrm import bicubic_matrix


@dataclass(frozen=True)
class Pixels:
    """One image for each example, in whitened coordinates, that stays inside the pixel bounds by projection.

    Starts from N(0, 1) in whitened coordinates, projected, or from the previous stage's images.
    """

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        return _within_bounds(
            whitened_noise(observation, generator, epochs=1) if start is None else start[:1], observation
        )


@dataclass(frozen=True)
class FreePixels:
    """One image for each example, without bounds, as in Deep Leakage from Gradients [Zhu et al., 2019]."""

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        first = whitened_noise(observation, generator, epochs=1) if start is None else start[:1]
        return Bound((Unknown(first),), lambda tensors: tensors[0])


def _within_bounds(first: Tensor, observation: Observation) -> Bound:
    """Return unknown pixels that stay inside the pixel bounds, from the projection of the first ones."""
    low, high = whitened_bounds(observation)
    unknown = Unknown(first.clamp(low, high), low, high)
    return Bound((unknown,), lambda tensors: tensors[0], lambda images: images.clamp(low, high))


def whitened_noise(observation: Observation, generator: torch.Generator, epochs: int) -> Tensor:
    """Draw standard normal images on the message's device, of its type.  # (epochs, n, c, h, w)"""
    knows = observation.knows
    noise = torch.randn(epochs, knows.examples, *knows.shape, generator=generator)
    return noise.to(like(observation))


def whitened_bounds(observation: Observation) -> tuple[Tensor, Tensor]:
    """Return the pixel bounds, whitened, on the message's device, of its type.  # (c, 1, 1) each"""
    low, high = observation.knows.bounds()
    return low.to(like(observation)), high.to(like(observation))


@dataclass(frozen=True)
class EpochPixels:
    """Separate images for each local epoch, E x N in all, without hard bounds [Dimitrov et al., 2022, Sec. 4.3].

    The client's order of examples changes between epochs and is unknown, so that the n-th image of one epoch
    need not be the n-th of another. Starts from N(0, 1) in whitened coordinates.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING})

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        return Bound((Unknown(_first_of_epochs(observation, generator, start)),), lambda tensors: tensors[0])


@dataclass(frozen=True)
class BoundedEpochPixels:
    """`EpochPixels` that stay inside the pixel bounds by projection."""

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING})

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        return _within_bounds(_first_of_epochs(observation, generator, start), observation)


@dataclass(frozen=True)
class OrderedEpochPixels:
    """`BoundedEpochPixels` for labels that are known batch by batch, in a separate order for each epoch.

    The previous stage's images are in the order of the first epoch: later epochs place each image at its label.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING, Fact.BATCH_LABELS})

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        ordered = None if start is None else in_each_order(start, batch_labels_by_epoch(observation))
        return BoundedEpochPixels().bind(observation, generator, ordered)


def _first_of_epochs(observation: Observation, generator: torch.Generator, start: Tensor | None) -> Tensor:
    """Return noise, or the previous stage's images, for each epoch.  # (epochs, n, c, h, w)

    A client that does not shuffle has the same images at the same places in each epoch: one set of them is enough.
    """
    training, knows = known_training(observation), observation.knows
    epochs = training.passes(max(1, knows.examples // knows.clients)) if training.shuffle else 1
    if start is None:
        return whitened_noise(observation, generator, epochs)
    first = start if training.shuffle else start[:1]
    return first.expand(epochs, *start.shape[1:]).contiguous()


@dataclass(frozen=True)
class LowResolution:
    """x = bicubic enlargement of unknowns with 1/factor of the pixels in height and width [Wilson et al., 2024].

    As in its release, the start is U[0, 1) in pixels, and nothing bounds the unknowns. They are whitened, which does
    not change the enlargement, since its weights add up to one. A previous stage's images are fitted by least
    squares.
    """

    factor: int = 4

    def __post_init__(self) -> None:
        check_factor(self.factor)

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        small_shape, enlarge, reduce = enlargement(observation, self.factor)
        knows = observation.knows
        if start is None:
            drawn = torch.rand(1, knows.examples, *small_shape, generator=generator).to(like(observation))
            first = knows.whitening.whiten(knows.low + (knows.high - knows.low) * drawn)
        else:
            first = reduce(start[:1])
        return Bound((Unknown(first),), lambda tensors: enlarge(tensors[0]), lambda images: enlarge(reduce(images)))


@dataclass(frozen=True)
class BoundedLowResolution:
    """`LowResolution` with unknowns that stay inside the pixel bounds by projection, and start from plain grey.

    The enlarged images may leave the bounds at edges, where bicubic weights overshoot.
    """

    factor: int = 2

    def __post_init__(self) -> None:
        check_factor(self.factor)

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        small_shape, enlarge, reduce = enlargement(observation, self.factor)
        low, high = whitened_bounds(observation)
        if start is None:
            noise = torch.randn(1, observation.knows.examples, *small_shape, generator=generator)
            middle = (low + high) / 2
            first = middle + START_NOISE * (high - low) * noise.to(like(observation))
        else:
            first = reduce(start[:1])

        def nearest(images: Tensor) -> Tensor:
            return enlarge(reduce(images).clamp(low, high))

        unknown = Unknown(first.clamp(low, high), low, high)
        return Bound((unknown,), lambda tensors: enlarge(tensors[0]), nearest)


START_NOISE = 0.05
"""Deviation of the noise on a start from grey, as a share of the pixels' range: equal images would stay equal."""


def check_factor(factor: int) -> None:
    if not isinstance(factor, int) or factor < 1:
        raise UsageError(f"images.factor must be a whole number of at least 1, got {factor!r}.")


Resize = Callable[[Tensor], Tensor]


def enlargement(observation: Observation, factor: int) -> tuple[tuple[int, int, int], Resize, Resize]:
    """Return the shape of the small images, their bicubic enlargement by a whole factor, and its least squares inverse.

    The inverse gives the small images with the enlargement that is nearest in squared error. The sides of the images
    must be multiples of the factor.  # (epochs, n, c, h / factor, w / factor) <-> (epochs, n, c, h, w)
    """
    channels, height, width = observation.knows.shape
    if height % factor or width % factor:
        raise UsageError(
            f"images.factor must divide the height and the width of the images, {height} and {width}, got "
            f"{factor}: choose a common divisor, or resize the data."
        )
    small_shape = (channels, height // factor, width // factor)
    kind = like(observation)
    down, across = (torch.linalg.pinv(bicubic_matrix(side, factor)).to(kind) for side in small_shape[1:])

    def enlarge(small: Tensor) -> Tensor:
        if factor == 1:
            return small
        flat = F.interpolate(small.flatten(0, 1), scale_factor=factor, mode="bicubic", align_corners=False)
        return flat.reshape(*small.shape[:2], *flat.shape[1:])

    return small_shape, enlarge, lambda images: down @ images @ across.mT
