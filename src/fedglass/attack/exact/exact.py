"""Exact methods: they solve equations of the message instead of searching, and an attack tries one after another."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from fedglass.attack.attack import check_counted, check_observation
from fedglass.attack.defaults import mark_with
from fedglass.attack.exact.verify import message_of
from fedglass.attack.parts import Progress, no_progress
from fedglass.attack.peer_knowledge import without_own_update
from fedglass.core.errors import UsageError
from fedglass.core.registry import find
from fedglass.core.rng import stream
from fedglass.core.types import Observation, Reconstruction

Details = dict[str, float | int | str]
"""Figures for the record, such as the rank, the number of rows that agree, or the seconds of the search."""
FOUND_NOTHING = "it found nothing"
UNSOLVABLE = "its equations have no finite solution for this message"
COST = "seconds_if_it_applies"
"""Attribute of a method."""
NEARLY_EXPLAINED = 0.01
"""The residual of a replay of one image below which later, less precise methods are skipped: a vision transformer in
closed form leaves up to 0.008 at a learning rate of 0.01."""


@dataclass(frozen=True, eq=False)
class ExactSolution:
    """The images that an exact method read from a message."""

    images: Tensor  # (n, c, h, w), pixels before whitening; n may be smaller than the number of examples
    labels: Tensor  # (n,); -1 where the method cannot tell
    residual: float
    """Relative size of the part of the message (or of the first layer's update) that the images do not explain."""
    explains: bool
    """True if the images were verified: by a replay, or by an explanation of a whole layer at rounding level."""
    details: Details = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SearchBudget:
    """The random numbers and the time that a method may use."""

    generator: torch.Generator
    seconds: float = 30.0
    """Time limit of a search, such as SPEAR's."""


ExactMethod = Callable[[Observation, SearchBudget], ExactSolution | str]
"""One closed-form method, registered by name: the images that it reads from a message, or the reason why it reads none.
The reason is that it does not apply to this network and knowledge, or that it found nothing."""
Method = TypeVar("Method", bound=ExactMethod)


def costs(seconds: float) -> Callable[[Method], Method]:
    """Mark a method with about how many seconds it takes if it applies: cheap methods are tried first."""
    return mark_with(COST, seconds)


def cost_of(name: str) -> float:
    """Return about how many seconds the method of that name takes."""
    seconds: float = getattr(find("exact", name).value, COST)
    return seconds


@dataclass(frozen=True)
class ExactAttack:
    """Exact methods, the cheapest first, until one reads all examples and its result explains the message.

    The result may hold fewer images than there are examples, or none. A participant's own update is subtracted first,
    and its own images are not in the result. Of several rounds the first message is read.
    """

    methods: tuple[str, ...]
    """Registered names, such as `division`."""
    seconds: float = 30.0
    """Time limit of each method's search."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise UsageError(f"exact.seconds must be positive and finite, got {self.seconds}.")

    def check(self, observation: Observation) -> None:
        """Refuse what every attack refuses. If no method applies, the attack runs and reads nothing."""
        check_counted(observation)

    def run(self, observation: Observation, seed: int = 0, progress: Progress = no_progress) -> Reconstruction:
        try:
            check_observation(observation)
        except UsageError as error:  # every audit runs this attack, whatever the adversary knows
            return nothing_read(observation, {"exact": str(error)})
        message = first_message(observation)
        reasons: dict[str, str] = {}
        best: tuple[str, ExactSolution] | None = None
        for i, name in enumerate(sorted(self.methods, key=cost_of)):
            progress(i, len(self.methods))
            method: ExactMethod = find("exact", name).value
            try:
                solution = method(message, SearchBudget(stream(seed, "exact", name), self.seconds))
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined] # torch documents it
                solution = UNSOLVABLE  # such as a layer whose update is zero; other methods may read the message
            if isinstance(solution, str) or not len(solution.images):
                reasons[name] = solution if isinstance(solution, str) else FOUND_NOTHING
                continue
            best = (name, solution) if best is None or _preference(solution) < _preference(best[1]) else best
            if _is_final(message, solution):
                break
        progress(len(self.methods), len(self.methods))
        if best is None:
            return nothing_read(message, reasons)
        method_name, read = best
        notes = tuple(f"{name}: {value}" for name, value in read.details.items())
        return Reconstruction(
            read.images,
            read.labels,
            read.residual,
            notes=notes,
            method=method_name,
            explains=read.explains,
            reasons=reasons,
        )

    def shortened(self, share: float) -> ExactAttack:
        return replace(self, seconds=self.seconds * share)

    def energy_of(self, observation: Observation, pixels: Tensor, labels: Tensor, like: Reconstruction) -> float:
        """Return the residual that these images leave; infinite if the training cannot be replayed."""
        return replay_residual(observation, pixels, labels)


def nothing_read(observation: Observation, reasons: dict[str, str]) -> Reconstruction:
    """Return a reconstruction without images, and the reasons of those that could not read any."""
    images = torch.zeros(0, *observation.knows.shape)
    return Reconstruction(images, torch.zeros(0, dtype=torch.int64), math.inf, reasons=reasons)


def replay_residual(observation: Observation, pixels: Tensor, labels: Tensor) -> float:
    """Return the residual of the first message that the first of these images leave, as many as it has examples."""
    message = first_message(observation)
    n = message.knows.examples
    return message_of(message).replay(pixels[:n].cpu(), labels[:n].cpu())[0]


def first_message(observation: Observation) -> Observation:
    """Return the first round's message, without the adversary's own part in it, on the CPU: a GPU may lack doubles."""
    message = replace(observation, also=())
    if any(tensor.device.type != "cpu" for tensor in message.before.values()):
        message = message.copied_to(torch.device("cpu"))
    return without_own_update(message)


def _is_final(message: Observation, solution: ExactSolution) -> bool:
    """Return True if no other method can read more: all is explained, or all but rounding of a single image."""
    nearly = message.knows.examples == 1 and solution.residual < NEARLY_EXPLAINED
    return len(solution.images) >= message.knows.examples and (solution.explains or nearly)


def _preference(solution: ExactSolution) -> tuple[bool, int, float]:
    """Return a sort key, the best solution first: explains the message, more images, smaller residual."""
    return not solution.explains, -len(solution.images), solution.residual
