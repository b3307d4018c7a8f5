"""An attack: labels, then stages of image reconstruction, then merging and refinement."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedglass.attack.merge import MatchAndAverage
from fedglass.attack.parts import (
    Bound,
    BoundForward,
    Evaluation,
    Forward,
    Images,
    Labels,
    Merge,
    Problem,
    Progress,
    Refine,
    Solution,
    Solver,
    binding_of,
    silent,
)
from fedglass.attack.terms.term import Term
from fedglass.core.errors import UsageError
from fedglass.core.params import check_update, check_weights
from fedglass.core.rng import derive, stream
from fedglass.core.types import Candidate, Observation, Reconstruction, Unknown
from fedglass.fl.trajectory import per_epoch

TRACE_POINTS = 200
"""How many energies of a run are kept for its curve."""


@dataclass(frozen=True)
class Stage:
    """Minimise `objective` of the message that `forward` predicts, over the unknowns of `images`."""

    forward: Forward
    images: Images
    objective: Term
    solver: Solver


@dataclass(frozen=True)
class Attack:
    """What a recipe composes. The restart of lowest energy is returned; nothing here can see the truth."""

    labels: Labels
    stages: tuple[Stage, ...]
    merge: Merge = field(default_factory=MatchAndAverage)
    refine: tuple[Refine, ...] = ()
    restarts: int = 1

    def __post_init__(self) -> None:
        if not self.stages:
            raise UsageError("An attack needs at least one stage, got none.")
        if self.restarts < 1:
            raise UsageError(f"attack.restarts must be at least 1, got {self.restarts}.")

    def run(self, observation: Observation, seed: int = 0, progress: Progress = silent) -> Reconstruction:
        """Reconstruct; `progress` hears of iterations over all restarts and stages."""
        check_observation(observation)
        runs = [
            self._once(observation, derive(seed, "restart", i), part(progress, i, self.restarts))
            for i in range(self.restarts)
        ]
        best = min(runs, key=lambda run: rank(run.energy))
        images = best.images
        for i, refinement in enumerate(self.refine):
            images = refinement.refine(images, stream(seed, "refine", i))
        return Reconstruction(images, best.labels, best.energy, best.trace, best.notes, best.details)

    def energy_of(self, observation: Observation, pixels: Tensor, labels: Tensor, like: Reconstruction) -> float:
        """The last stage's energy at given images; the operator's own unknowns end where they do in `like`.

        For the audit, which may compare with the truth.  # pixels (n, c, h, w), labels (n,)
        """
        stage = self.stages[-1]
        forward = stage.forward.bind(observation)
        own = [
            u.start if (at := like.details.get(_detail(i))) is None else torch.full_like(u.start, at)
            for i, u in enumerate(forward.unknowns)
        ]
        bound = stage.images.bind(observation, stream(0, "shape"), None)
        epochs = len(bound.decode([u.start for u in bound.unknowns]))
        images = observation.knows.whitening.whiten(pixels).expand(epochs, *pixels.shape)
        return float(_energy(stage, observation, forward)(Candidate(images, labels), own, 1.0).detach())

    def _once(self, observation: Observation, seed: int, progress: Progress) -> Reconstruction:
        # All operators first: what the last one refuses is said before the first one has run for minutes.
        forwards = [stage.forward.bind(observation) for stage in self.stages]
        labels = self.labels.bind(observation, stream(seed, "labels"))
        label_start = [u.start for u in labels.unknowns]
        images: Tensor | None = None
        notes: list[str] = []
        for i, (stage, forward) in enumerate(zip(self.stages, forwards, strict=True)):
            bound = stage.images.bind(observation, stream(seed, "images", i), images)
            asked = tuple(replace(u, start=s) for s, u in zip(label_start, labels.unknowns, strict=True))
            problem = _problem(stage, observation, forward, bound, Bound(asked, labels.decode))
            solution = stage.solver.minimise(problem, part(progress, i, len(self.stages)))
            of_images, of_labels, own = _split(solution.tensors, bound.unknowns, asked)
            images = bound.decode(of_images).detach()
            label_start = list(of_labels)
            notes += [] if solution.finite else ["non-finite"]
        assert images is not None, "an attack has at least one stage"
        return self._reconstruction(observation, images, labels.decode(label_start).detach(), solution, own, notes)

    def _reconstruction(
        self,
        observation: Observation,
        images: Tensor,
        labels: Tensor,
        solution: Solution,
        own: Sequence[Tensor],
        notes: Sequence[str],
    ) -> Reconstruction:
        pixels = self.merge.merge(observation.knows.whitening.unwhiten(images))
        hard = labels.argmax(-1) if labels.is_floating_point() else labels[0] if per_epoch(labels) else labels
        details = {_detail(i): float(t) for i, t in enumerate(own) if t.numel() == 1}
        return Reconstruction(pixels, hard, solution.energy, _thin(solution.trace), tuple(notes), details)


def rank(energy: float) -> float:
    """For choosing among runs by their energy; one that is not a number comes last."""
    return energy if math.isfinite(energy) else math.inf


def check_observation(observation: Observation) -> None:
    """Refuse what no attack can work with, in words that say what to do."""
    check_weights(observation.before, observation.model)
    check_update(observation.update, observation.before)
    knows = observation.knows
    if knows.examples < 1:
        raise UsageError(f"knowledge.examples must be at least 1, got {knows.examples}.")
    if not 1 <= knows.clients <= knows.examples:
        raise UsageError(
            f"knowledge.clients must be between 1 and the number of examples, {knows.examples}, got {knows.clients}."
        )
    if not any(bool(t.any()) for t in observation.update.values()):
        raise UsageError(
            "The update is zero everywhere, so that there is nothing to invert: check that the client trained "
            "and that the weights before and after were not mixed up."
        )


_Energy = Callable[[Candidate, Sequence[Tensor], float], Tensor]


def _energy(stage: Stage, observation: Observation, forward: BoundForward) -> _Energy:
    """The objective as a function of candidate, operator's unknowns and progress."""
    objective = stage.objective.bind(binding_of(forward, observation.knows))

    def energy(candidate: Candidate, own: Sequence[Tensor], share: float) -> Tensor:
        return objective(Evaluation(forward.predict(candidate, own), candidate, share))

    return energy


def _problem(stage: Stage, observation: Observation, forward: BoundForward, images: Bound, labels: Bound) -> Problem:
    energy = _energy(stage, observation, forward)
    a = len(images.unknowns)
    b = a + len(labels.unknowns)

    def of(tensors: Sequence[Tensor], share: float) -> Tensor:
        candidate = Candidate(images.decode(tensors[:a]), labels.decode(tensors[a:b]))
        return energy(candidate, tensors[b:], share)

    return Problem((*images.unknowns, *labels.unknowns, *forward.unknowns), of)


def _split(
    tensors: Sequence[Tensor], images: Sequence[Unknown], labels: Sequence[Unknown]
) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    a = len(images)
    b = a + len(labels)
    return tensors[:a], tensors[a:b], tensors[b:]


def part(progress: Progress, index: int, parts: int) -> Progress:
    """The share of a progress bar that one restart or stage owns."""
    return lambda done, total: progress(index * total + done, parts * total)


def _detail(index: int) -> str:
    return f"unknown {index}"


def _thin(trace: Tensor) -> tuple[float, ...]:
    """At most `TRACE_POINTS` energies, evenly spaced, the first and the last among them."""
    n = len(trace)
    rows = torch.linspace(0, n - 1, min(n, TRACE_POINTS)).round().long()
    return tuple(trace[rows].tolist())
