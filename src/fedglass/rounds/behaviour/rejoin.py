"""A client that comes back under a new name when it is shut out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.params import Update
from fedglass.rounds.behaviour.behaviour import Behaviour, Fitting, Turn


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
        >>> from fedglass.rounds.behaviour.honest import Honest
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
