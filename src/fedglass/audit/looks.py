"""Further looks at a message that one run of an attack did not read: other starts, weaker priors, no defence.

The truth decides nothing here about what the attack returns. It only tells the audit what may be said of it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from fedglass.attack.hypotheses import AnyAttack
from fedglass.attack.parts import Progress
from fedglass.core.rng import derive


class Effort(enum.Enum):
    """How much an audit does to be sure of what it did not find."""

    QUICK = "quick"
    STANDARD = "standard"
    THOROUGH = "thorough"

    @property
    def starts(self) -> int:
        """Further starts of the attack."""
        return {"quick": 0, "standard": 2, "thorough": 4}[self.value]

    @property
    def priors(self) -> tuple[float, ...]:
        """Factors by which the priors are weakened, one further run for each."""
        return {"quick": (), "standard": (0.1,), "thorough": (0.1, 0.01)}[self.value]

    def __repr__(self) -> str:
        return f"Effort.{self.name}"


@dataclass(frozen=True)
class Rerun:
    """The same attack once more."""

    words: str
    attack: AnyAttack
    seed: int


def reruns(attack: AnyAttack, seed: int, effort: Effort) -> Iterator[Rerun]:
    """From other starts, then with weaker priors where it has any.

    >>> from fedglass.recipes.catalogue import recipe
    >>> [run.words for run in reruns(recipe("inverting_gradients"), 0, Effort.STANDARD)]
    ['from start 2', 'from start 3', 'with priors times 0.1']
    >>> [run.words for run in reruns(recipe("dlg"), 0, Effort.STANDARD)]
    ['from start 2', 'from start 3']
    """
    for start in range(effort.starts):
        yield Rerun(f"from start {start + 2}", attack, derive(seed, "look", start))
    for factor in effort.priors:
        weaker = attack.weakened(factor)
        if weaker != attack:
            yield Rerun(f"with priors times {factor:g}", weaker, seed)


def share_of(progress: Progress, index: int, parts: int) -> Progress:
    """The part of a progress bar that one of several runs has."""
    return lambda done, total: progress(index * total + done, parts * total)
