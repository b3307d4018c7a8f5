"""Images that may differ between the epochs of a simulated training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.forward.target import known_training
from fedglass.attack.forward.unroll import in_each_order
from fedglass.attack.images.pixels import whitened_bounds, whitened_noise
from fedglass.attack.labels.given import batch_labels_by_epoch
from fedglass.attack.parts import Bound
from fedglass.core.facts import Fact
from fedglass.core.types import Observation, Unknown


@dataclass(frozen=True)
class EpochPixels:
    """Separate images for each local epoch, E x N in all, without hard bounds [Dimitrov et al., 2022, Sec. 4.3].

    The client's order of examples changes between epochs and is unknown, so that the n-th image of one epoch
    need not be the n-th of another. Starts from N(0, 1) in whitened coordinates.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING})

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        return Bound((Unknown(_first(observation, generator, start)),), lambda tensors: tensors[0])


@dataclass(frozen=True)
class BoundedEpochPixels:
    """`EpochPixels` that stay inside the pixel bounds by projection."""

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING})

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        low, high = whitened_bounds(observation)
        first = _first(observation, generator, start).clamp(low, high)
        return Bound((Unknown(first, low, high),), lambda tensors: tensors[0], lambda images: images.clamp(low, high))


@dataclass(frozen=True)
class OrderedEpochPixels:
    """`BoundedEpochPixels` for labels that are known batch by batch, in a separate order for each epoch.

    The previous stage's images are in the order of the first epoch: later epochs place each image at its label.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING, Fact.BATCH_LABELS})

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        ordered = None if start is None else in_each_order(start, batch_labels_by_epoch(observation))
        return BoundedEpochPixels().bind(observation, generator, ordered)


def _first(observation: Observation, generator: torch.Generator, start: Tensor | None) -> Tensor:
    """Return noise, or the previous stage's images, for each epoch.  # (epochs, n, c, h, w)

    A client that does not shuffle has the same images at the same places in each epoch: one set of them is enough.
    """
    training, knows = known_training(observation), observation.knows
    epochs = training.passes(max(1, knows.examples // knows.clients)) if training.shuffle else 1
    if start is None:
        return whitened_noise(observation, generator, epochs)
    first = start if training.shuffle else start[:1]
    return first.expand(epochs, *start.shape[1:]).contiguous()
