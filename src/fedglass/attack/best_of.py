"""One attack under several guesses about what the adversary does not know: `BestOf(attack, guesses)`.

A `Guesses` value lists what is possible for a message, and says what a guess makes of the message or of the attack.
`BestOf` runs the attack under each guess and returns the run of lowest energy. The guesses are:

- `GuessEpochs` (here): the number of local epochs;
- `GuessRule` (here): the server's aggregation rule;
- `GuessAccepted` (`attack.hypotheses`): the clients that the rule has accepted;
- `SearchByOwnImages` (`attack.hypotheses`): the learning rate and the number of examples;
- `SubtractOwnUpdate` and `KeepOwnUpdate` (`attack.peer_knowledge`): one guess each, the message without the adversary's
  own examples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, Protocol, Self, TypeVar, cast

from torch import Tensor

from fedglass.attack.attack import Attack
from fedglass.attack.parts import Progress, Refine, check_needs, no_progress, unchanged
from fedglass.attack.stages import energy_rank, progress_part
from fedglass.core.errors import UsageError, check_at_least
from fedglass.core.facts import Fact, refusal
from fedglass.core.types import Observation, Reconstruction, Training


class AnyAttack(Protocol):
    """An attack that an audit runs: a composition of parts, or one under several guesses."""

    def check(self, observation: Observation) -> None:
        """Refuse what `run` would refuse of any message with this knowledge and network, without its work."""
        ...

    def run(self, observation: Observation, seed: int = 0, progress: Progress = no_progress) -> Reconstruction: ...

    def energy_of(self, observation: Observation, pixels: Tensor, labels: Tensor, like: Reconstruction) -> float: ...

    def shortened(self, share: float) -> AnyAttack:
        """Return the same attack from one start with a share of its iterations, not refined: for trying things out."""
        ...


def refinements_of(attack: AnyAttack) -> tuple[Refine, ...]:
    """Return the refinements that an attack applies, in order; none for an attack without `refinements`."""
    parts: tuple[Refine, ...] = getattr(attack, "refinements", ())
    return parts


def refined_by(attack: AnyAttack, parts: tuple[Refine, ...]) -> AnyAttack:
    """Return the same attack, which refines its images by these parts after its own."""
    refine: Callable[[tuple[Refine, ...]], AnyAttack] | None = getattr(attack, "refined_by", None)
    if refine is None:
        raise UsageError(f"{type(attack).__name__} has no method refined_by: leave its key refine out.")
    return refine(parts)


def start_from(attack: AnyAttack, start: AnyAttack) -> AnyAttack:
    """Return the same attack, with a first start that begins with the images that `start` reads."""
    if isinstance(attack, Attack):
        return replace(attack, start=start)
    if not isinstance(attack, BestOf) or isinstance(attack.attack, tuple):
        raise UsageError(f"{type(attack).__name__} does not begin with images: leave its key start out.")
    return replace(attack, attack=start_from(attack.attack, start))


AttacksByRule = tuple[tuple[str, AnyAttack], ...]
"""One attack for each aggregation rule, with the rule's name."""
A = TypeVar("A", bound=AnyAttack | AttacksByRule)


@dataclass(frozen=True, eq=False)
class GuessedRun:
    """One guess: the attack that is run under it, and the message as this attack sees it."""

    attack: AnyAttack
    observation: Observation
    note: Callable[[Reconstruction], Reconstruction] = unchanged
    """Notes the guess in the reconstruction that was made under it."""
    known_images: int = 0
    """How many images, the last ones, are the adversary's own: the attack does not look for them."""
    value: object = None
    """What is guessed, such as the name of a rule."""


class Guesses(ABC, Generic[A]):
    """Guesses of the adversary about a message."""

    @abstractmethod
    def options(self, attack: A, observation: Observation) -> list[GuessedRun]:
        """Return all guesses that are possible, at least one."""

    def check(self, options: list[GuessedRun]) -> None:
        """Refuse what a run would refuse, without its work."""
        for guess in options:
            guess.attack.check(guess.observation)

    def select(
        self, options: list[GuessedRun], observation: Observation, seed: int, progress: Progress
    ) -> list[GuessedRun]:
        """Return the guesses under which the attack is run to its end: all, unless short trials leave some out."""
        return options

    def recall(self, attack: A, observation: Observation, like: Reconstruction) -> GuessedRun:
        """Return the guess that a reconstruction was made under. Its images may be others, which are to be judged."""
        return self.options(attack, observation)[0]

    def shortened(self, share: float) -> Self:
        """Return the same guesses, with a share of the iterations of their own trials."""
        return self


@dataclass(frozen=True)
class BestOf(Generic[A]):
    """An attack under each of several guesses; the run of lowest energy is returned."""

    attack: A
    """The attack, or one for each rule where the rule is guessed."""
    guesses: Guesses[A]

    def __post_init__(self) -> None:
        if isinstance(self.attack, tuple):
            rules = [rule for rule, _ in self.attack]
            if not rules or len(set(rules)) != len(rules):
                raise UsageError(f"Rules to try need different names, at least one, got {rules}.")

    def check(self, observation: Observation) -> None:
        self.guesses.check(self._options(observation))

    def run(self, observation: Observation, seed: int = 0, progress: Progress = no_progress) -> Reconstruction:
        trials: list[int] = []

        def of_trials(done: int, total: int) -> None:
            trials.append(done)
            progress(done, 2 * total)

        selected = self.guesses.select(self._options(observation), observation, seed, of_trials)
        of_runs = progress_part(progress, 1, 2) if trials else progress
        runs = [
            guess.note(guess.attack.run(guess.observation, seed, progress_part(of_runs, i, len(selected))))
            for i, guess in enumerate(selected)
        ]
        return min(runs, key=lambda run: energy_rank(run.energy))

    def energy_of(self, observation: Observation, pixels: Tensor, labels: Tensor, like: Reconstruction) -> float:
        guess = self.guesses.recall(self.attack, observation, replace(like, images=pixels, labels=labels))
        n = len(labels) - guess.known_images
        return guess.attack.energy_of(guess.observation, pixels[:n], labels[:n], like)

    def shortened(self, share: float) -> BestOf[A]:
        short = self._with_attack(lambda attack: attack.shortened(share))
        return replace(short, guesses=self.guesses.shortened(share))

    @property
    def refinements(self) -> tuple[Refine, ...]:
        return refinements_of(self.attack[0][1] if isinstance(self.attack, tuple) else self.attack)

    def refined_by(self, parts: tuple[Refine, ...]) -> BestOf[A]:
        """Return the same attack, which refines the images that it returns, and not those of trials."""
        return self._with_attack(lambda attack: refined_by(attack, parts))

    def _options(self, observation: Observation) -> list[GuessedRun]:
        check_needs(self.guesses, observation)
        return self.guesses.options(self.attack, observation)

    def _with_attack(self, change: Callable[[AnyAttack], AnyAttack]) -> BestOf[A]:
        if isinstance(self.attack, tuple):
            return replace(self, attack=cast("A", tuple((rule, change(attack)) for rule, attack in self.attack)))
        return replace(self, attack=cast("A", change(self.attack)))


def lowest_energies(
    guesses: list[GuessedRun], share: float, keep: int, seed: int, progress: Progress
) -> list[GuessedRun]:
    """Run each guess with a share of its iterations, and return the guesses of lowest energy, the lowest first."""
    energies = []
    for i, guess in enumerate(guesses):
        short = guess.attack.shortened(share)
        trial = short.run(guess.observation, seed, progress_part(progress, i, len(guesses)))
        energies.append(energy_rank(trial.energy))
    return [guesses[i] for i in sorted(range(len(guesses)), key=energies.__getitem__)[:keep]]


@dataclass(frozen=True)
class GuessEpochs(Guesses[AnyAttack]):
    """Every number of epochs that divides the number of local steps.

    For an adversary that knows steps, examples and learning rate but neither epochs nor batch size; batches are
    taken to be of equal size [Dimitrov et al., 2022, App. C.4].
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.STEPS, Fact.LR})
    supplies: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING, Fact.STEPS, Fact.LR, Fact.SIZE})

    def options(self, attack: AnyAttack, observation: Observation) -> list[GuessedRun]:
        check_needs(attack, observation, self.supplies)
        return [self._guess(attack, observation, training) for training in possible_trainings(observation)]

    def recall(self, attack: AnyAttack, observation: Observation, like: Reconstruction) -> GuessedRun:
        if like.supposed is None:
            raise UsageError("The reconstruction supposes no training: give one that this attack returned.")
        return self._guess(attack, observation, like.supposed)

    def _guess(self, attack: AnyAttack, observation: Observation, training: Training) -> GuessedRun:
        return GuessedRun(attack, with_training(observation, training), lambda run: replace(run, supposed=training))


def possible_trainings(observation: Observation) -> list[Training]:
    """Return the trainings with the known number of steps, one for each divisor; the true one where it is known."""
    knows = observation.knows
    if knows.training is not None:
        return [knows.training]
    if knows.steps is None or knows.lr is None:
        raise refusal("Trying numbers of epochs", GuessEpochs.needs - knows.facts)
    check_at_least("knowledge.steps", knows.steps, 1)
    return trainings_of_steps(knows.lr, knows.steps, max(1, knows.examples // knows.clients))


def trainings_of_steps(lr: float, steps: int, examples: int) -> list[Training]:
    """Return a training of that many steps for each number of epochs that divides them.

    Not every number of batches is reached: 10 examples make 5 batches of 2 or 10 of 1, but never 6.

    >>> [(training.epochs, training.batch_size) for training in trainings_of_steps(0.1, 12, 10)]
    [(3, 3), (4, 4), (6, 5), (12, 10)]
    """
    divisors = [e for e in range(1, steps + 1) if steps % e == 0]
    trainings = [Training(lr, e, -(-examples * e // steps)) for e in divisors]
    return [training for training in trainings if training.local_steps(examples) == steps]


def with_training(observation: Observation, training: Training) -> Observation:
    """Return the same message to an adversary that takes this for the clients' training."""
    also = tuple(with_training(other_round, training) for other_round in observation.also)
    loss = observation.knows.objective
    training = replace(training, loss=loss, label_smoothing=0.0) if loss is not None else training
    return replace(observation, knows=replace(observation.knows, training=training), also=also)


@dataclass(frozen=True)
class GuessRule(Guesses[AttacksByRule]):
    """The aggregation rule, by one attack that supposes each rule [Yue et al., 2025, Eq. 22].

    All attacks measure the same message in the same units, so that their energies can be compared. Where there are more
    than `finalists`, each is first tried with a `share` of its iterations, and the best are run: an attack that
    supposes a wrong rule stays behind from the first iterations on. Rules that the server cannot use, such as one that
    drops more clients than there are, are left out.
    """

    finalists: int | None = None
    """How many rules are run to the end; all if None."""
    share: float = 0.1

    def __post_init__(self) -> None:
        if (self.finalists is not None and self.finalists < 1) or not 0 < self.share <= 1:
            raise UsageError(
                f"rules.finalists must be at least 1, rules.share above 0 and at most 1, got {self.finalists} and "
                f"{self.share}."
            )

    def options(self, attack: AttacksByRule, observation: Observation) -> list[GuessedRun]:
        possible, refusals = list[GuessedRun](), list[UsageError]()
        for rule, supposing in attack:
            try:
                supposing.check(observation)
                possible.append(self._guess(supposing, observation, rule))
            except UsageError as error:
                refusals.append(error)
        if not possible:
            raise refusals[0]
        return possible

    def check(self, options: list[GuessedRun]) -> None:
        """Do nothing more: `options` has checked every attack."""

    def select(
        self, options: list[GuessedRun], observation: Observation, seed: int, progress: Progress
    ) -> list[GuessedRun]:
        if self.finalists is None or len(options) <= self.finalists:
            return options
        return lowest_energies(options, self.share, self.finalists, seed, progress)

    def recall(self, attack: AttacksByRule, observation: Observation, like: Reconstruction) -> GuessedRun:
        attacks = dict(attack)
        if like.rule not in attacks:
            raise UsageError("The reconstruction supposes none of these rules: give one that this attack returned.")
        return self._guess(attacks[like.rule], observation, like.rule)

    def _guess(self, attack: AnyAttack, observation: Observation, rule: str) -> GuessedRun:
        return GuessedRun(attack, observation, lambda run: replace(run, rule=rule), value=rule)
