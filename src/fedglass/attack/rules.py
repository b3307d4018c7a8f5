"""Attacks under several hypotheses about the server's aggregation rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from fedglass.attack.hypotheses import AnyAttack, refined_by, refinements_of
from fedglass.attack.parts import Progress, Refine, silent
from fedglass.attack.stages import part, rank
from fedglass.core.errors import UsageError
from fedglass.core.types import Observation, Reconstruction


@dataclass(frozen=True)
class TryRules:
    """The same attack under each of some rules; the lowest energy wins [Yue et al., 2025, Eq. 22].

    All of them measure the same message in the same units, so that their energies can be compared. Where `finalists`
    are asked for and there are more, each is tried with a `share` of its iterations first, and the best are played:
    what supposes another rule than the server's stays behind from the first iterations on.
    """

    attacks: tuple[tuple[str, AnyAttack], ...]
    """By the name of the rule that each supposes."""
    finalists: int | None = None
    share: float = 0.1

    def __post_init__(self) -> None:
        names = [name for name, _ in self.attacks]
        if not names or len(set(names)) != len(names):
            raise UsageError(f"Rules to try need different names, at least one, got {names}.")
        if (self.finalists is not None and self.finalists < 1) or not 0 < self.share <= 1:
            raise UsageError(
                f"rules.finalists must be at least 1, rules.share above 0 and at most 1, got {self.finalists} and "
                f"{self.share}."
            )

    def check(self, observation: Observation) -> None:
        self._possible(observation)

    def run(self, observation: Observation, seed: int = 0, progress: Progress = silent) -> Reconstruction:
        possible = self._possible(observation)
        most = len(possible) if self.finalists is None else self.finalists
        brief = len(possible) if len(possible) > most else 0
        parts = brief + min(len(possible), most)
        tried = [
            (rank(attack.shortened(self.share).run(observation, seed, part(progress, i, parts)).energy), i)
            for i, (_, attack) in enumerate(possible[:brief])
        ]
        final = [possible[i] for _, i in sorted(tried)[:most]] if brief else possible
        runs = [
            replace(attack.run(observation, seed, part(progress, brief + i, parts)), rule=name)
            for i, (name, attack) in enumerate(final)
        ]
        return min(runs, key=lambda run: rank(run.energy))

    def _possible(self, observation: Observation) -> list[tuple[str, AnyAttack]]:
        """Without rules that the server can not use, such as one that drops more clients than there are."""
        found, refusals = list[tuple[str, AnyAttack]](), list[UsageError]()
        for name, attack in self.attacks:
            try:
                attack.check(observation)
                found.append((name, attack))
            except UsageError as refusal:
                refusals.append(refusal)
        if not found:
            raise refusals[0]
        return found

    def shortened(self, share: float) -> TryRules:
        return self._each(lambda attack: attack.shortened(share))

    @property
    def refinements(self) -> tuple[Refine, ...]:
        return refinements_of(self.attacks[0][1])

    def refined_by(self, parts: tuple[Refine, ...]) -> TryRules:
        return self._each(lambda attack: refined_by(attack, parts))

    def energy_of(self, observation: Observation, pixels: Tensor, labels: Tensor, like: Reconstruction) -> float:
        return self._won(like).energy_of(observation, pixels, labels, like)

    def _won(self, like: Reconstruction) -> AnyAttack:
        """The attack under the rule that a reconstruction supposes."""
        named = dict(self.attacks)
        if like.rule not in named:
            raise UsageError("The reconstruction supposes none of these rules: give one that this attack returned.")
        return named[like.rule]

    def _each(self, change: Callable[[AnyAttack], AnyAttack]) -> TryRules:
        return replace(self, attacks=tuple((name, change(attack)) for name, attack in self.attacks))
