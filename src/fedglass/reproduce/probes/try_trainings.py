"""A reconstruction for every training that the adversary can not rule out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedglass.attack.attack import part, rank
from fedglass.attack.hypotheses import hypotheses, supposing
from fedglass.attack.parts import Progress
from fedglass.core.types import Observation, Training
from fedglass.reproduce.experiment import Finding
from fedglass.reproduce.probes.reconstruct import Reconstruct
from fedglass.rounds.truth import Truth


@dataclass(frozen=True)
class TryTrainings:
    """Epochs and batch size are unknown: every divisor of the number of steps is tried, and the lowest energy wins.

    The way out that the paper names but does not measure [Dimitrov et al., 2022, App. C.4].
    """

    probe: Reconstruct

    def measure(self, seen: Observation, truth: Truth, seed: int, progress: Progress) -> Finding:
        guesses = hypotheses(seen)
        found = [
            self.probe.measure(supposing(seen, guess), truth, seed, part(progress, i, len(guesses)))
            for i, guess in enumerate(guesses)
        ]
        best = min(range(len(guesses)), key=lambda i: rank(_energy(found[i])))
        return replace(found[best], record=dict(found[best].record) | {"extra": _told(guesses, found, best)})


def _energy(finding: Finding) -> float:
    """What the adversary chooses by."""
    return float(str(finding.record["energy"]))


def _told(guesses: list[Training], found: list[Finding], best: int) -> dict[str, object]:
    """What the best attack told, which training it supposed, and the energies of all of them."""
    own, epochs = found[best].record["extra"], guesses[best].epochs
    assert isinstance(own, dict)
    each = ", ".join(f"E={g.epochs} {_energy(f):.4g}" for g, f in zip(guesses, found, strict=True))
    return {
        **own,
        "supposed": repr(guesses[best]),
        "notes": [*own["notes"], f"E={epochs} was chosen by its energy: {each}."],
    }
