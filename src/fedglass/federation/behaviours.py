"""Behaviours of clients: honest ones, poisoners, and clients that come back under a new name.

A behaviour decides which examples a client trains on and what it sends. Defences are a separate role (`Client.gradient`
and `Client.release`), so that poison is never taken for protection.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedglass.core.errors import DataError, UsageError
from fedglass.core.losses import is_class_labels
from fedglass.core.registry import register
from fedglass.core.tensors import Params, Update
from fedglass.fl.aggregate.selection import BLANCHARD


@dataclass(frozen=True, eq=False)
class Turn:
    """A client's turn in one round, with all facts that its behaviour may use; a new fact is a new field."""

    images: Tensor  # (n, c, h, w), pixels in [0, 1]
    labels: Tensor  # (n,)
    round: int
    before: Params
    """The global model that the client was sent."""
    generator: torch.Generator


class Behaviour(Protocol):
    """The examples that a client trains on, and what it makes of its update before its defences act.

    A behaviour that derives from this class changes only what is dishonest in it.
    """

    def examples(self, turn: Turn) -> tuple[Tensor, Tensor]:
        """Return the images and labels to train on."""
        return turn.images, turn.labels

    def update(self, turn: Turn, trained: Update) -> Update:
        """Return the update to send, given the one that was trained."""
        return trained

    def describe(self) -> str:
        """Return the end of a sentence that begins with the client's name; empty for an honest client."""
        return ""


def check_data(behaviour: Behaviour, shape: tuple[int, int, int], classes: int) -> None:
    """Raise an error if a behaviour that has a method `check` does not work with such images and classes."""
    check = getattr(behaviour, "check", None)
    if check is not None:
        check(shape, classes)


@register("behaviours", "honest", summary="trains on its examples and sends what comes out")
@dataclass(frozen=True)
class Honest(Behaviour):
    """Follow the protocol: train on the client's own examples and send the trained update."""


@dataclass(frozen=True)
class PerRound:
    """One behaviour for each round; the last one also serves all rounds that follow."""

    behaviours: tuple[Behaviour, ...]

    def __post_init__(self) -> None:
        if not self.behaviours:
            raise UsageError("A list of behaviours needs at least one, got none.")

    def examples(self, turn: Turn) -> tuple[Tensor, Tensor]:
        return self.at(turn.round).examples(turn)

    def update(self, turn: Turn, trained: Update) -> Update:
        return self.at(turn.round).update(turn, trained)

    def check(self, shape: tuple[int, int, int], classes: int) -> None:
        for behaviour in self.behaviours:
            check_data(behaviour, shape, classes)

    def at(self, index: int) -> Behaviour:
        """Return the behaviour in that round, counted from 0."""
        return self.behaviours[min(index, len(self.behaviours) - 1)]

    def describe(self) -> str:
        """Describe the behaviour of each round; empty if the client is honest in all of them.

        >>> PerRound((Honest(), SignFlip())).describe()
        'in round 1 is honest, from round 2 on sends its update with the sign flipped, times 1'
        """
        descriptions = [behaviour.describe() for behaviour in self.behaviours]
        if not any(descriptions):
            return ""
        last = len(descriptions)
        times = [f"in round {i}" if i < last else f"from round {i} on" for i in range(1, last + 1)]
        pairs = zip(times, descriptions, strict=True)
        return ", ".join(f"{time} {description or 'is honest'}" for time, description in pairs)


@dataclass(frozen=True)
class RejoinAfterRejection:
    """Behave as `behaviour` does, and rejoin under a new name once a rule has rejected `after` updates in a row.

    The server takes the client for a new one, so that a rule forgets what it remembers by name. The transcript keeps
    both names: the client's own and the one that the server knows.
    """

    behaviour: Behaviour
    after: int

    def __post_init__(self) -> None:
        if self.after < 1:
            raise UsageError(f"group.rejoins_after must be at least 1, got {self.after}.")

    def examples(self, turn: Turn) -> tuple[Tensor, Tensor]:
        return self.behaviour.examples(turn)

    def update(self, turn: Turn, trained: Update) -> Update:
        return self.behaviour.update(turn, trained)

    def check(self, shape: tuple[int, int, int], classes: int) -> None:
        check_data(self.behaviour, shape, classes)

    def describe(self) -> str:
        """Describe the behaviour, and when the client rejoins.

        >>> RejoinAfterRejection(Honest(), 2).describe()
        'comes back under a new name when 2 of its updates in a row were rejected'
        """
        updates = "one of its updates was" if self.after == 1 else f"{self.after} of its updates in a row were"
        rejoins = f"comes back under a new name when {updates} rejected"
        description = self.behaviour.describe()
        return f"{description}, and {rejoins}" if description else rejoins


@register(
    "behaviours",
    "backdoor",
    summary="trains on some examples with a white patch and one label for all of them",
    paper=(
        "Gu, Dolan-Gavitt, Garg: BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply Chain, "
        "2017, https://arxiv.org/abs/1708.06733"
    ),
)
@dataclass(frozen=True)
class Backdoor(Behaviour):
    """Give the first `share` of the examples a white square in the lower right corner and the label `target`.

    Only the data are poisoned: the client sends the update that it trained [Gu et al., 2017].
    """

    target: int = 0
    share: float = 0.5
    side: int = 5
    """Side of the square, in pixels."""

    def __post_init__(self) -> None:
        if self.target < 0 or self.side < 1 or not 0 < self.share <= 1:
            raise UsageError(
                "Behaviour 'backdoor': target must be at least 0, side at least 1 and share above 0 and at most 1, got "
                f"{self.target}, {self.side} and {self.share}."
            )

    def check(self, shape: tuple[int, int, int], classes: int) -> None:
        _, height, width = shape
        if self.side > min(height, width):
            raise DataError(
                f"Behaviour 'backdoor': a square of {self.side} pixels does not fit into images of {height} x {width}: "
                "choose a smaller side."
            )
        if self.target >= classes:
            raise DataError(
                f"Behaviour 'backdoor': target must be one of the classes 0 to {classes - 1}, got {self.target}."
            )

    def examples(self, turn: Turn) -> tuple[Tensor, Tensor]:
        height, width = turn.images.shape[-2:]
        if not is_class_labels(turn.labels):
            raise DataError("Behaviour 'backdoor' needs a loss with one class for each example: choose another one.")
        images, labels = turn.images.clone(), turn.labels.clone()
        marked = math.ceil(self.share * len(labels))
        images[:marked, :, height - self.side :, width - self.side :] = 1.0
        labels[:marked] = self.target
        return images, labels

    def describe(self) -> str:
        return (
            f"trains on {self.share:.0%} of its examples with a white square of {self.side} pixels and the label "
            f"{self.target}"
        )


@register(
    "behaviours", "gaussian", summary="sends Gaussian noise instead of its update, as long as asked", paper=BLANCHARD
)
@dataclass(frozen=True)
class Gaussian(Behaviour):
    """Send N(0, std^2) in each coordinate instead of the update [Blanchard et al., 2017, Sec. 5].

    Without `std` the noise is as long as the update that it replaces. Papers do not state its size, and a fixed
    deviation of the weights is weak in one network and strong in another.
    """

    std: float | None = None

    def __post_init__(self) -> None:
        if self.std is not None and not 0 < self.std < math.inf:
            raise UsageError(f"Behaviour 'gaussian': std must be positive and finite, got {self.std}.")

    def update(self, turn: Turn, trained: Update) -> Update:
        size = sum(tensor.numel() for tensor in trained.values())
        length = math.sqrt(sum(float(tensor.double().square().sum()) for tensor in trained.values()))
        std = length / math.sqrt(size) if self.std is None else self.std
        return {
            name: std * torch.randn(tensor.shape, generator=turn.generator, dtype=tensor.dtype)
            for name, tensor in trained.items()
        }

    def describe(self) -> str:
        size = "as long as its update" if self.std is None else f"of standard deviation {self.std:g}"
        return f"sends Gaussian noise {size} in its place"


@register(
    "behaviours",
    "sign_flip",
    summary="sends its update with the sign flipped, times a factor",
    paper=(
        "Li, Xu, Chen, Giannakis, Ling: RSA: Byzantine-Robust Stochastic Aggregation Methods, AAAI 2019, "
        "https://arxiv.org/abs/1811.03761"
    ),
)
@dataclass(frozen=True)
class SignFlip(Behaviour):
    """Send -factor * u instead of the update u [Li et al., 2019, RSA]."""

    factor: float = 1.0

    def update(self, turn: Turn, trained: Update) -> Update:
        return {name: -self.factor * tensor for name, tensor in trained.items()}

    def describe(self) -> str:
        return f"sends its update with the sign flipped, times {self.factor:g}"
