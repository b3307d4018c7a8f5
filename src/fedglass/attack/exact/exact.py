"""An attack that tries exact methods one after another."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedglass.attack.attack import check_counted, check_observation
from fedglass.attack.exact.method import ExactMethod, Search, Solved
from fedglass.attack.exact.verify import explains
from fedglass.attack.participant import without_own_update
from fedglass.attack.parts import Progress, no_progress
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Observation, Reconstruction

NOTHING = "it found nothing"
NEARLY = 0.01
"""What a replay of one image may leave for later methods, which are less precise, to be left out: a vision transformer
in closed form leaves up to 0.008 at a learning rate of 0.01."""


@dataclass(frozen=True)
class ExactAttack:
    """Exact methods, the cheapest first, until one reads all examples and its result explains the message.

    What is read may be fewer images than there are examples, or none. A participant's own update is taken off first,
    and its own images are not among the result. Of several rounds the first message is read.
    """

    methods: tuple[ExactMethod, ...]
    seconds: float = 30.0
    """Time limit of each method's search."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise UsageError(f"exact.seconds must be positive and finite, got {self.seconds}.")

    def check(self, observation: Observation) -> None:
        """Refuse what every attack refuses: where no method applies, nothing is read."""
        check_counted(observation)

    def run(self, observation: Observation, seed: int = 0, progress: Progress = no_progress) -> Reconstruction:
        try:
            check_observation(observation)
        except UsageError as error:  # every audit asks, whatever the adversary knows
            return _reconstruction(observation, None, {"exact": str(error)})
        seen = _first_alone(observation)
        reasons: dict[str, str] = {}
        best: tuple[ExactMethod, Solved] | None = None
        for i, method in enumerate(sorted(self.methods, key=lambda each: each.cost)):
            progress(i, len(self.methods))
            reasons[method.name] = method.applies(seen)
            if reasons[method.name]:
                continue
            found = method.solve(seen, Search(stream(seed, "exact", method.name), self.seconds))
            if found is None or not len(found.images):
                reasons[method.name] = NOTHING
                continue
            del reasons[method.name]
            best = (method, found) if best is None or _rank(found) < _rank(best[1]) else best
            if _settled(seen, found):
                break
        progress(len(self.methods), len(self.methods))
        return _reconstruction(seen, best, reasons)

    def shortened(self, share: float) -> ExactAttack:
        return replace(self, seconds=self.seconds * share)

    def energy_of(self, observation: Observation, pixels: Tensor, labels: Tensor, like: Reconstruction) -> float:
        """Return what these images leave unexplained; infinite where the training cannot be replayed."""
        seen = _first_alone(observation)
        n = seen.knows.examples
        return explains(seen, pixels[:n], labels[:n])


def _first_alone(observation: Observation) -> Observation:
    """The first round's message, without the adversary's own part in it."""
    return without_own_update(replace(observation, also=()))


def _settled(seen: Observation, found: Solved) -> bool:
    """Whether no other method can tell more: all is explained, or all but rounding of a single image."""
    nearly = seen.knows.examples == 1 and found.residual < NEARLY
    return len(found.images) >= seen.knows.examples and (found.explains or nearly)


def _rank(found: Solved) -> tuple[bool, int, float]:
    """The lowest is the best: what explains the message, then more images, then less that is left."""
    return not found.explains, -len(found.images), found.residual


def _reconstruction(
    seen: Observation, best: tuple[ExactMethod, Solved] | None, reasons: dict[str, str]
) -> Reconstruction:
    if best is None:
        images = torch.zeros(0, *seen.knows.shape)
        return Reconstruction(images, torch.zeros(0, dtype=torch.int64), math.inf, reasons=reasons)
    method, found = best
    notes = tuple(f"{name}: {value}" for name, value in found.details.items())
    return Reconstruction(
        found.images,
        found.labels,
        found.residual,
        notes=notes,
        method=method.name,
        explains=found.explains,
        reasons=reasons,
    )
