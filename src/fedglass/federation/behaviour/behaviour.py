"""What a client does with its turn, beside its defences: a role of its own, so that poison is never taken for one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.core.tensors import Params, Update


@dataclass(frozen=True, eq=False)
class Turn:
    """A client's turn in one round, and what its behaviour may use; a new fact is a new field."""

    images: Tensor  # (n, c, h, w), pixels in [0, 1]
    labels: Tensor  # (n,)
    round: int
    before: Params
    """The global model that the client was sent."""
    generator: torch.Generator


@runtime_checkable
class Fitting(Protocol):
    """A behaviour that can say beforehand of which images and classes it can not be."""

    def check(self, shape: tuple[int, int, int], classes: int) -> None:
        """Refuse them, before anything has run."""
        ...


class Behaviour(Protocol):
    """Which examples a client trains on, and what it makes of its update before its defences act."""

    def examples(self, turn: Turn) -> tuple[Tensor, Tensor]:
        """Images and labels to train on."""
        ...

    def update(self, turn: Turn, trained: Update) -> Update:
        """What is sent in place of the update that was trained."""
        ...

    def describe(self) -> str:
        """In plain words, as the rest of a sentence that begins with the client; empty for an honest one."""
        ...


# A client that follows the protocol.


@register("behaviours", "honest", summary="trains on its examples and sends what comes out")
@dataclass(frozen=True)
class Honest:
    """Trains on its own examples and sends what it trained."""

    def examples(self, turn: Turn) -> tuple[Tensor, Tensor]:
        return turn.images, turn.labels

    def update(self, turn: Turn, trained: Update) -> Update:
        return trained

    def describe(self) -> str:
        return ""


# A client that behaves otherwise from round to round.


@dataclass(frozen=True)
class PerRound:
    """One behaviour for each round, the last one for all that follow."""

    behaviours: tuple[Behaviour, ...]

    def __post_init__(self) -> None:
        if not self.behaviours:
            raise UsageError("A list of behaviours needs at least one, got none.")

    def examples(self, turn: Turn) -> tuple[Tensor, Tensor]:
        return self.at(turn.round).examples(turn)

    def update(self, turn: Turn, trained: Update) -> Update:
        return self.at(turn.round).update(turn, trained)

    def check(self, shape: tuple[int, int, int], classes: int) -> None:
        for each in self.behaviours:
            if isinstance(each, Fitting):
                each.check(shape, classes)

    def at(self, index: int) -> Behaviour:
        """The behaviour in that round, counted from 0."""
        return self.behaviours[min(index, len(self.behaviours) - 1)]

    def describe(self) -> str:
        """Each round's, where there is something to say of any.

        >>> from fedglass.federation.behaviour.behaviour import Honest
        >>> from fedglass.federation.behaviour.poison import SignFlip
        >>> PerRound((Honest(), SignFlip())).describe()
        'in round 1 is honest, from round 2 on sends its update with the sign flipped, times 1'
        """
        told = [each.describe() for each in self.behaviours]
        if not any(told):
            return ""
        last = len(told)
        when = [f"in round {i}" if i < last else f"from round {i} on" for i in range(1, last + 1)]
        return ", ".join(f"{time} {words or 'is honest'}" for time, words in zip(when, told, strict=True))


# A client that comes back under a new name when it is shut out.


@dataclass(frozen=True)
class Rejoin:
    """Behaves as it does, and joins anew once a rule has rejected `after` of its updates in a row.

    The server meets a stranger: what a rule remembers of a client by its name begins anew. The transcript keeps who
    it is, beside the name under which the server knows it.
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
        if isinstance(self.behaviour, Fitting):
            self.behaviour.check(shape, classes)

    def describe(self) -> str:
        """
        >>> from fedglass.federation.behaviour.behaviour import Honest
        >>> Rejoin(Honest(), 2).describe()
        'comes back under a new name when 2 of its updates in a row were rejected'
        """
        updates = "one of its updates was" if self.after == 1 else f"{self.after} of its updates in a row were"
        back = f"comes back under a new name when {updates} rejected"
        told = self.behaviour.describe()
        return f"{told}, and {back}" if told else back


@dataclass(frozen=True)
class Doorbook:
    """Under which name the server knows each client, and how often in a row it was rejected under that."""

    patience: dict[str, int]
    """Of those that come back, by their own names."""
    taken: frozenset[str]
    """Names that a newcomer can not have."""
    known: dict[str, str] = field(default_factory=dict)
    """The names of those who have come back."""
    rejected: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, behaviours: Iterable[tuple[str, Behaviour]]) -> Doorbook:
        told = dict(behaviours)
        return cls({name: each.after for name, each in told.items() if isinstance(each, Rejoin)}, frozenset(told))

    def after(self, present: Iterable[str], kept: Iterable[str]) -> Doorbook:
        """The book after a round in which these took part, and the updates of those got through.

        >>> book = Doorbook({"a": 2}, frozenset({"a", "b"}))
        >>> book.after(["a", "b"], ["b"]).after(["a", "b"], []).known
        {'a': 'newcomer 1'}
        >>> book.after(["a"], []).after(["a"], ["a"]).after(["a"], []).known
        {}
        """
        passed, known, rejected = set(kept), dict(self.known), dict(self.rejected)
        taken = set(self.taken)
        for name in present:
            if name not in self.patience:
                continue
            rejected[name] = 0 if name in passed else rejected.get(name, 0) + 1
            if rejected[name] >= self.patience[name]:
                known[name], rejected[name] = _new(taken), 0
                taken.add(known[name])
        return replace(self, taken=frozenset(taken), known=known, rejected=rejected)


def _new(taken: set[str]) -> str:
    return next(name for i in range(1, len(taken) + 2) if (name := f"newcomer {i}") not in taken)
