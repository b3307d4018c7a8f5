"""Further looks at a message that one run of an attack did not read: other starts, and other priors, chosen on decoys.

The truth decides nothing here about what the attack returns. It only tells the audit what may be said of it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedglass.attack.decoys import decoy_like
from fedglass.attack.hypotheses import AnyAttack
from fedglass.attack.parts import Progress, silent
from fedglass.attack.prior_choice import Trial, tried_on
from fedglass.core.errors import FedglassError
from fedglass.core.rng import derive
from fedglass.core.types import Observation, Reconstruction


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
    def priors(self) -> int:
        """Further runs with weaker priors, those that did best on decoys."""
        return {"quick": 0, "standard": 1, "thorough": 2}[self.value]

    @property
    def factors(self) -> tuple[float, ...]:
        """By which the priors are multiplied on decoys.

        A stronger prior is tried beside the given one only in runs of full length: in short ones it does best always.
        """
        weaker = (0.1, 0.01, 0.001)
        return {"quick": (), "standard": weaker, "thorough": (*weaker, 0.0001, 1.0, 10.0)}[self.value]

    @property
    def share(self) -> float:
        """The share of the attack's iterations that a run on decoys makes."""
        return 1.0 if self is Effort.THOROUGH else 0.5

    def __repr__(self) -> str:
        return f"Effort.{self.name}"


@dataclass(frozen=True)
class Rerun:
    """The same attack once more."""

    words: str
    attack: AnyAttack
    seed: int
    must_reach: bool = True
    """Whether absence is shown only if it reaches the truth's energy, which a stronger prior may well make dearer."""


@dataclass(frozen=True)
class Cost:
    """What an attack's further looks at a message come to, at most."""

    looks: int
    on_decoys: int
    runs: int
    """All of them, in runs of the attack's own length."""


def cost_of(attack: AnyAttack, effort: Effort) -> Cost:
    """How often a message is looked at again, known before anything has run.

    >>> from fedglass.recipes.catalogue import recipe
    >>> cost_of(recipe("inverting_gradients"), Effort.STANDARD)
    Cost(looks=3, on_decoys=3, runs=5)
    >>> cost_of(recipe("dlg"), Effort.STANDARD)
    Cost(looks=2, on_decoys=0, runs=2)
    """
    if not has_prior(attack):
        return Cost(effort.starts, 0, effort.starts)
    stronger = any(factor > 1 for factor in effort.factors)
    looks, trials = effort.starts + effort.priors + stronger, len(effort.factors)
    return Cost(looks, trials, looks + math.ceil(trials * effort.share))


def has_prior(attack: AnyAttack) -> bool:
    """Whether an attack has a prior that could be weaker."""
    return attack.weakened(0.1) != attack


def other_starts(attack: AnyAttack, seed: int, effort: Effort) -> list[Rerun]:
    """The same attack from other starts.

    >>> from fedglass.recipes.catalogue import recipe
    >>> [run.words for run in other_starts(recipe("dlg"), 0, Effort.STANDARD)]
    ['from start 2', 'from start 3']
    """
    return [Rerun(f"from start {i + 2}", attack, derive(seed, "look", i)) for i in range(effort.starts)]


@dataclass(frozen=True, eq=False)
class Experiment:
    """All that a choice of the prior may depend on: nothing of it is private."""

    attack: AnyAttack
    seen: Observation
    found: Reconstruction
    """What the attack found in the real message, whose labels the decoys get."""
    pictures: Tensor | None
    """What the adversary has of such data.  # (m, c, h, w)"""
    seed: int
    effort: Effort


def other_priors(given: Experiment, progress: Progress = silent) -> list[Rerun]:
    """The attack with the weaker priors that did best on decoys, and with a stronger one if that did best of all."""
    attack, effort = given.attack, given.effort
    if not effort.priors or not has_prior(attack):
        return []
    trials = _trials(given, progress)
    said = f", best of {len(trials)} on decoys" if trials else ""
    ranked = [trial.factor for trial in trials] or list(effort.factors)
    weaker = [factor for factor in ranked if factor < 1][: effort.priors]
    stronger = [factor for factor in ranked[:1] if factor > 1]
    return [
        Rerun(f"with priors times {factor:g}{said}", attack.weakened(factor), given.seed, factor < 1)
        for factor in (*weaker, *stronger)
    ]


def _trials(given: Experiment, progress: Progress) -> Sequence[Trial]:
    """What came of each factor on decoys, the best first; nothing where no decoy can be made or attacked."""
    effort = given.effort
    try:
        decoy = decoy_like(given.seen, given.found, given.pictures, derive(given.seed, "decoys"))
        if decoy is None:
            return []
        return tried_on(decoy, given.attack.shortened(effort.share), effort.factors, given.seed, progress)
    except FedglassError:  # an attack may refuse a decoy, such as labels that it can not read from its message
        return []
