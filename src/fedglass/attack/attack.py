"""An attack: labels, then stages of image reconstruction, then merging and refinement."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from fedglass.attack.images.pixels import whitened_noise
from fedglass.attack.needs import check_needs, reads_of
from fedglass.attack.parts import (
    Bound,
    BoundForward,
    Evaluation,
    Forward,
    HasLabelCheck,
    HasPrecheck,
    Images,
    Labels,
    MatchAndAverage,
    Merge,
    PausableRun,
    PausableSolver,
    Problem,
    Progress,
    Refine,
    Refinement,
    Solution,
    Solver,
    binding_of,
    discard_film,
    no_progress,
)
from fedglass.attack.stages import (
    EachRound,
    MeanOverRounds,
    labels_of_rounds,
    progress_part,
    run_all_starts,
    run_halving_starts,
)
from fedglass.attack.terms.term import Term
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact, refusal
from fedglass.core.identity import LATER
from fedglass.core.rng import derive, stream
from fedglass.core.tensors import check_update, check_weights
from fedglass.core.types import Candidate, Film, Knowledge, Observation, Reconstruction, Unknown
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

    def reads(self, observation: Observation) -> frozenset[Fact]:
        """What the operator takes from the message itself, and no part of the stage need be told."""
        return reads_of(self.forward, observation)

    def over(self, observation: Observation) -> Stage:
        """The same for all rounds that are looked at together; itself where that is one."""
        if not observation.also:
            return self
        return replace(self, forward=EachRound(self.forward), objective=MeanOverRounds(self.objective))


@dataclass(frozen=True)
class Attack:
    """What a recipe composes. The restart of lowest energy is returned; nothing here can see the truth."""

    labels: Labels
    stages: tuple[Stage, ...]
    merge: Merge = field(default_factory=MatchAndAverage)
    refine: tuple[Refine, ...] = ()
    restarts: int = 1
    halving: bool = field(default=False, metadata=LATER)
    """Whether the half of the starts that have the higher energy is given up on the way, twice."""
    start: Starter | None = field(default=None, metadata=LATER)
    """An attack, such as `exact`, whose images the first start begins with; what it cannot read begins at random."""

    def __post_init__(self) -> None:
        if not self.stages:
            raise UsageError("An attack needs at least one stage, got none.")
        if self.restarts < 1:
            raise UsageError(f"attack.restarts must be at least 1, got {self.restarts}.")
        stubborn = [stage.solver for stage in self.stages if not isinstance(stage.solver, PausableSolver)]
        if self.halving and stubborn:
            raise UsageError(
                f"attack.halving pauses the solver, and {type(stubborn[0]).__name__} has no method steps: leave it out."
            )

    def __repr__(self) -> str:
        """What was added later is printed only where it is used: records of runs go by this name."""
        told = [f for f in fields(self) if f.metadata != LATER or getattr(self, f.name)]
        return f"Attack({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in told)})"

    def run(self, observation: Observation, seed: int = 0, progress: Progress = no_progress) -> Reconstruction:
        """Reconstruct; `progress` hears of iterations over all restarts and stages, then of each refinement's own."""
        check_observation(observation)
        check_needs(self, observation)
        seeds = [derive(seed, "restart", i) for i in range(self.restarts)]
        run = partial(self._steps, self._bound(observation, seeds[0]))
        best = (run_halving_starts if self.halving else run_all_starts)(run, seeds, progress)
        return self._refined(observation, best, seed, progress) if self.refine else best

    def check(self, observation: Observation) -> None:
        """Refuse what `run` would refuse of any message with this knowledge and network, without its work."""
        check_counted(observation)
        check_needs(self, observation)
        draws = stream(0, "check")
        if isinstance(self.labels, HasLabelCheck):
            self.labels.check(observation)
        else:
            self.labels.bind(observation, draws)
        for stage in self._stages(observation):
            stage.forward.bind(observation)
            stage.images.bind(observation, draws, None)
        knows = observation.knows
        blank, first = torch.zeros(1, *knows.shape), torch.zeros(1, dtype=torch.int64)
        for refinement in self.refine:
            if isinstance(refinement, HasPrecheck):
                refinement.check(knows)
            else:
                refinement.refine(Refinement(blank, first, knows, draws))

    def shortened(self, share: float) -> Attack:
        """The same attack from one start with a share of its iterations, not refined: for trying things out."""
        stages = tuple(replace(stage, solver=_shortened(stage.solver, share)) for stage in self.stages)
        return replace(self, stages=stages, restarts=1, refine=())

    @property
    def refinements(self) -> tuple[Refine, ...]:
        """What becomes of the images that were found."""
        return self.refine

    def refined_by(self, parts: tuple[Refine, ...]) -> Attack:
        """The same attack, which refines its images by these parts after its own."""
        return replace(self, refine=(*self.refine, *parts))

    def energy_of(self, observation: Observation, pixels: Tensor, labels: Tensor, like: Reconstruction) -> float:
        """The last stage's energy at the representable images next to the given ones.

        The operator's own unknowns end where they do in `like`. For the audit, which may compare with the truth:
        of what can not be represented no search is to blame for not finding it.  # pixels (n, c, h, w), labels (n,)
        """
        return self._energy_at(observation, self._nearest(observation, pixels, labels), like)

    def _nearest(self, observation: Observation, pixels: Tensor, labels: Tensor) -> Candidate:
        """The representable images next to the given ones."""
        bound = self._representation(observation)
        return Candidate(bound.nearest(_in_each_epoch(bound, observation.knows.whitening.whiten(pixels))), labels)

    def _refined(
        self, observation: Observation, found: Reconstruction, seed: int, progress: Progress
    ) -> Reconstruction:
        """The images made better one refinement after another, and how well they still explain the message."""
        knows, films = observation.knows, list[Film]()
        images = refined(self.refine, found.images, found.labels, knows, seed, progress, films.append)
        # Not the nearest representable ones: what the refinement added is what is asked about.
        each = _in_each_epoch(self._representation(observation), knows.whitening.whiten(images))
        energy = self._energy_at(observation, Candidate(each, found.labels), found)
        film = films[-1] if films else None
        return replace(found, images=images, raw=found.images, energy_refined=energy, film=film)

    def _stages(self, observation: Observation) -> list[Stage]:
        return [stage.over(observation) for stage in self.stages]

    def _representation(self, observation: Observation) -> Bound:
        """The unknowns of the last stage, from any start."""
        return self.stages[-1].images.bind(observation, stream(0, "shape"), None)

    def _energy_at(self, observation: Observation, candidate: Candidate, like: Reconstruction) -> float:
        """The last stage's energy; the operator's own unknowns end where they do in `like`."""
        stage = self._stages(observation)[-1]
        forward = stage.forward.bind(observation)
        own = [like.unknowns.get(u.name, u.start) for u in forward.unknowns]
        return float(_energy(stage, observation, forward)(candidate, own, 1.0).detach())

    def _bound(self, observation: Observation, seed: int) -> _Bound:
        """What is the same for all starts, and the images that the one of a seed begins with."""
        # All operators first: what the last one refuses is said before the first one has run for minutes.
        stages = self._stages(observation)
        forwards = [stage.forward.bind(observation) for stage in stages]
        begin = {} if self.start is None else {seed: self.start.run(observation, seed)}
        return _Bound(observation, stages, forwards, _labels_by_seed(self.labels, observation), begin)

    def _steps(self, bound: _Bound, seed: int, progress: Progress) -> PausableRun[Reconstruction]:
        """The run from one start."""
        observation, labels, stages = bound.observation, bound.labels(seed), len(bound.stages)
        label_start = [u.start for u in labels.unknowns]
        images = _begun(observation, bound.begin.get(seed), labels.decode(label_start), stream(seed, "images", 0))
        notes = list(labels.notes)
        for i, (stage, forward) in enumerate(zip(bound.stages, bound.forwards, strict=True)):
            unknown = stage.images.bind(observation, stream(seed, "images", i), images)
            asked = tuple(replace(u, start=s) for s, u in zip(label_start, labels.unknowns, strict=True))
            problem = _problem(stage, observation, forward, unknown, Bound(asked, labels.decode))
            solution = yield from _staged(stage.solver, problem, progress_part(progress, i, stages), i, stages)
            of_images, of_labels, own = _split(solution.tensors, unknown.unknowns, asked)
            images = unknown.decode(of_images).detach()
            label_start = list(of_labels)
            notes += [] if solution.finite else ["non-finite"]
        assert images is not None, "an attack has at least one stage"
        ends = {u.name: t.detach() for u, t in zip(forward.unknowns, own, strict=True)}
        return self._reconstruction(observation, images, labels.decode(label_start).detach(), solution, ends, notes)

    def _reconstruction(
        self,
        observation: Observation,
        images: Tensor,
        labels: Tensor,
        solution: Solution,
        unknowns: Mapping[str, Tensor],
        notes: Sequence[str],
    ) -> Reconstruction:
        pixels = self.merge.merge(observation.knows.whitening.unwhiten(images))
        return Reconstruction(pixels, _hard(labels), solution.energy, _thin(solution.trace), tuple(notes), unknowns)


@dataclass(frozen=True, eq=False)
class _Bound:
    """A message, and of an attack what is the same for all starts."""

    observation: Observation
    stages: Sequence[Stage]
    forwards: Sequence[BoundForward]
    labels: Callable[[int], Bound]
    """By the start's seed."""
    begin: Mapping[int, Reconstruction]
    """The images that the start of a seed begins with, where there are some."""


class Starter(Protocol):
    """What gives an attack images to begin with: another attack."""

    def run(self, observation: Observation, seed: int = 0, progress: Progress = no_progress) -> Reconstruction: ...


def _begun(
    observation: Observation, found: Reconstruction | None, labels: Tensor, generator: torch.Generator
) -> Tensor | None:
    """Images to begin with, each where its label is, and noise elsewhere.  # (1, n, c, h, w), whitened, or None"""
    if found is None or not len(found.images):
        return None
    images, free = whitened_noise(observation, generator, epochs=1), _hard(labels.detach()).tolist()
    for image, label in zip(found.images, found.labels.tolist(), strict=True):
        left = [i for i, other in enumerate(free) if other is not None]
        if not left:
            break
        place = min(left, key=lambda i: free[i] != label)
        images[0, place] = observation.knows.whitening.whiten(image[None])[0].to(images)
        free[place] = None
    return images


def _hard(labels: Tensor) -> Tensor:
    """The labels of the images.  # (n,)"""
    return labels.argmax(-1) if labels.is_floating_point() else labels[0] if per_epoch(labels) else labels


def _staged(solver: Solver, problem: Problem, progress: Progress, stage: int, stages: int) -> PausableRun[Solution]:
    """The run of one of several stages, which pauses where the solver does."""
    if not isinstance(solver, PausableSolver):
        return solver.minimise(problem, progress)
    steps = solver.steps(problem, progress)
    while True:
        try:
            share, energy = next(steps)
        except StopIteration as end:
            found: Solution = end.value
            return found
        yield (stage + share) / stages, energy


def _labels_by_seed(labels: Labels, observation: Observation) -> Callable[[int], Bound]:
    """The labels of each start, found once where they draw no random number."""
    found: list[Bound] = []

    def of(seed: int) -> Bound:
        if found:
            return found[0]
        drawn: list[torch.Generator] = []

        def generator() -> torch.Generator:
            drawn.append(stream(seed, "labels"))
            return drawn[-1]

        bound, unused = labels_of_rounds(labels, observation, generator), stream(seed, "labels").get_state()
        if all(torch.equal(each.get_state(), unused) for each in drawn):
            found.append(bound)
        return bound

    return of


def refined(
    parts: Sequence[Refine],
    images: Tensor,
    labels: Tensor,
    knows: Knowledge,
    seed: int,
    progress: Progress = no_progress,
    film: Callable[[Film], None] = discard_film,
) -> Tensor:
    """Images made better by one refinement after another.  # (n, c, h, w), pixels before whitening"""
    for i, refinement in enumerate(parts):
        images = refinement.refine(Refinement(images, labels, knows, stream(seed, "refine", i), progress, film))
    return images


def check_observation(observation: Observation) -> None:
    """Refuse what no attack can work with, in words that say what to do."""
    check_weights(observation.before, observation.model)
    check_update(observation.update, observation.before)
    check_counted(observation)
    for each in observation.also:
        check_observation(each)
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


def check_counted(observation: Observation) -> None:
    """Refuse a message of which nobody has said how many examples it comes from: all unknowns hang on that."""
    if not observation.knows.counted:
        raise refusal("The attack", [Fact.EXAMPLES])


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


def _shortened(solver: Solver, share: float) -> Solver:
    """With a share of its iterations, where it says how many it makes."""
    part: Any = solver
    count = getattr(part, "iterations", None)
    return replace(part, iterations=max(1, math.ceil(share * count))) if isinstance(count, int) else solver


def _in_each_epoch(bound: Bound, images: Tensor) -> Tensor:
    """The same images in each epoch that the unknowns have.  # (n, c, h, w) -> (epochs, n, c, h, w)"""
    epochs = len(bound.decode([u.start for u in bound.unknowns]))
    return images.expand(epochs, *images.shape)


def _split(
    tensors: Sequence[Tensor], images: Sequence[Unknown], labels: Sequence[Unknown]
) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
    a = len(images)
    b = a + len(labels)
    return tensors[:a], tensors[a:b], tensors[b:]


def _thin(trace: Tensor) -> tuple[float, ...]:
    """At most `TRACE_POINTS` energies, evenly spaced, the first and the last among them."""
    n = len(trace)
    rows = torch.linspace(0, n - 1, min(n, TRACE_POINTS)).round().long()
    return tuple(trace[rows].tolist())
