"""Attacks under several hypotheses about what the adversary does not know."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor

from fedglass.attack.attack import Attack
from fedglass.attack.needs import check_needs
from fedglass.attack.parts import Progress, Refine, silent
from fedglass.attack.stages import part, rank
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact, refusal
from fedglass.core.types import Observation, Reconstruction, Training


class AnyAttack(Protocol):
    """What an audit runs: a composition of parts, or several under different hypotheses."""

    def check(self, observation: Observation) -> None:
        """Refuse what `run` would refuse of any message with this knowledge and network, without its work."""
        ...

    def run(self, observation: Observation, seed: int = 0, progress: Progress = silent) -> Reconstruction: ...

    def energy_of(self, observation: Observation, pixels: Tensor, labels: Tensor, like: Reconstruction) -> float: ...

    def shortened(self, share: float) -> AnyAttack:
        """The same attack from one start with a share of its iterations, not refined: for trying things out."""
        ...


@dataclass(frozen=True)
class TryEpochs:
    """The same attack for every number of epochs that divides the number of local steps; lowest energy wins.

    For an adversary that knows steps, examples and learning rate but neither epochs nor batch size; batches are
    taken to be of equal size [Dimitrov et al., 2022, App. C.4].
    """

    attack: Attack

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.STEPS, Fact.LR})
    supplies: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING, Fact.STEPS, Fact.LR, Fact.SIZE})

    def check(self, observation: Observation) -> None:
        check_needs(self, observation)
        for guess in hypotheses(observation):
            self.attack.check(supposing(observation, guess))

    def run(self, observation: Observation, seed: int = 0, progress: Progress = silent) -> Reconstruction:
        check_needs(self, observation)
        guesses = hypotheses(observation)
        found = []
        for i, guess in enumerate(guesses):
            best = self.attack.run(supposing(observation, guess), seed, part(progress, i, len(guesses)))
            found.append(replace(best, supposed=guess))
        return min(found, key=lambda run: rank(run.energy))

    def shortened(self, share: float) -> TryEpochs:
        return replace(self, attack=self.attack.shortened(share))

    @property
    def refinements(self) -> tuple[Refine, ...]:
        return self.attack.refinements

    def refined_by(self, parts: tuple[Refine, ...]) -> TryEpochs:
        return replace(self, attack=self.attack.refined_by(parts))

    def energy_of(self, observation: Observation, pixels: Tensor, labels: Tensor, like: Reconstruction) -> float:
        return self.attack.energy_of(_as_supposed(observation, like), pixels, labels, like)


@runtime_checkable
class Refinable(Protocol):
    """An attack that can be told to refine the images that it has found."""

    @property
    def refinements(self) -> tuple[Refine, ...]:
        """What it does to them."""
        ...

    def refined_by(self, parts: tuple[Refine, ...]) -> AnyAttack:
        """The same attack, which refines its images by these parts after its own."""
        ...


def refinements_of(attack: AnyAttack) -> tuple[Refine, ...]:
    """What an attack does to the images that it has found; nothing is known of that for attacks of other makes."""
    return attack.refinements if isinstance(attack, Refinable) else ()


def refined_by(attack: AnyAttack, parts: tuple[Refine, ...]) -> AnyAttack:
    """The same attack, which refines its images by these parts after its own."""
    if not isinstance(attack, Refinable):
        raise UsageError(f"{type(attack).__name__} has no method refined_by, so that refine can not be added to it.")
    return attack.refined_by(parts)


def started_by(attack: AnyAttack, start: AnyAttack) -> AnyAttack:
    """Return the same attack, of which the first start begins with what another attack reads."""
    if isinstance(attack, Attack):
        return replace(attack, start=start)
    around: Any = attack
    if not hasattr(around, "attack"):
        raise UsageError(f"{type(attack).__name__} does not begin with images: leave its key start out.")
    changed: AnyAttack = replace(around, attack=started_by(around.attack, start))
    return changed


def hypotheses(observation: Observation) -> list[Training]:
    """The trainings of that many steps, one for each divisor; only the true one where it is known."""
    knows = observation.knows
    if knows.training is not None:
        return [knows.training]
    if knows.steps is None or knows.lr is None:
        raise refusal("Trying numbers of epochs", TryEpochs.needs - knows.facts)
    if knows.steps < 1:
        raise UsageError(f"knowledge.steps must be at least 1, got {knows.steps}.")
    return trainings(knows.lr, knows.steps, max(1, knows.examples // knows.clients))


def trainings(lr: float, steps: int, examples: int) -> list[Training]:
    """Of that many steps, one for each number of epochs that divides them.

    Not every number of batches is reached: 10 examples make 5 batches of 2 or 10 of 1, but never 6.

    >>> [(guess.epochs, guess.batch_size) for guess in trainings(0.1, 12, 10)]
    [(3, 3), (4, 4), (6, 5), (12, 10)]
    """
    divisors = [e for e in range(1, steps + 1) if steps % e == 0]
    guesses = [Training(lr, e, -(-examples * e // steps)) for e in divisors]
    return [guess for guess in guesses if guess.local_steps(examples) == steps]


def _as_supposed(observation: Observation, like: Reconstruction) -> Observation:
    if like.supposed is None:
        raise UsageError("The reconstruction supposes no training: give one that this attack returned.")
    return supposing(observation, like.supposed)


def supposing(observation: Observation, training: Training) -> Observation:
    """The same message to an adversary that takes this for the clients' training."""
    also = tuple(supposing(each, training) for each in observation.also)
    return replace(observation, knows=replace(observation.knows, training=training), also=also)
