"""A client that behaves otherwise from round to round."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.params import Update
from fedglass.rounds.behaviour.behaviour import Behaviour, Fitting, Turn


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

        >>> from fedglass.rounds.behaviour.honest import Honest
        >>> from fedglass.rounds.behaviour.sign_flip import SignFlip
        >>> PerRound((Honest(), SignFlip())).describe()
        'in round 1 is honest, from round 2 on sends its update with the sign flipped, times 1'
        """
        told = [each.describe() for each in self.behaviours]
        if not any(told):
            return ""
        last = len(told)
        when = [f"in round {i}" if i < last else f"from round {i} on" for i in range(1, last + 1)]
        return ", ".join(f"{time} {words or 'is honest'}" for time, words in zip(when, told, strict=True))
