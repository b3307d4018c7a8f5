"""A reconstruction for every training that the adversary can not rule out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedglass.attack.attack import Attack
from fedglass.attack.hypotheses import hypotheses, supposing, trainings
from fedglass.attack.parts import Progress
from fedglass.attack.starts import part, rank
from fedglass.audit.probe import Finding
from fedglass.audit.target import Target
from fedglass.core.types import Training
from fedglass.reproduce.cost import Load
from fedglass.reproduce.probes.reconstruct import Reconstruct


@dataclass(frozen=True)
class TryTrainings:
    """Epochs and batch size are unknown: every divisor of the number of steps is tried, and the lowest energy wins.

    The way out that the paper names but does not measure [Dimitrov et al., 2022, App. C.4].
    """

    accelerated: ClassVar[bool] = False

    probe: Reconstruct

    @property
    def attack(self) -> Attack:
        return self.probe.attack

    def measure(self, target: Target, seed: int, progress: Progress) -> Finding:
        seen, found = target.observation, []
        guesses = hypotheses(seen)
        for i, guess in enumerate(guesses):
            supposed = replace(target, observation=supposing(seen, guess))
            found.append(self.probe.measure(supposed, seed, part(progress, i, len(guesses))))
        best = min(range(len(guesses)), key=lambda i: rank(found[i].record["energy"]))
        fields = found[best].record
        extra = {**fields["extra"], "supposed": repr(guesses[best])}
        extra["notes"] = [*extra["notes"], _chosen(guesses, found, best)]
        return replace(found[best], record={**fields, "extra": extra})

    def seconds(self, load: Load) -> float:
        guesses = trainings(load.training.lr, load.steps, load.examples)
        return sum(self.probe.seconds(replace(load, training=guess)) for guess in guesses)


def _chosen(guesses: list[Training], found: list[Finding], best: int) -> str:
    """Which training was supposed in the end, and the energies of all of them."""
    each = ", ".join(f"E={g.epochs} {f.record['energy']:.4g}" for g, f in zip(guesses, found, strict=True))
    return f"E={guesses[best].epochs} was chosen by its energy: {each}."
