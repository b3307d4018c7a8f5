"""An attack: labels, then stages of image reconstruction, then merging and refinement."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedglass.attack.images.pixels import whitened_noise
from fedglass.attack.labels.targets import labels_for_loss
from fedglass.attack.parts import (
    Bound,
    BoundForward,
    Evaluation,
    Forward,
    Images,
    Labels,
    MatchAndAverage,
    Merge,
    Problem,
    Progress,
    Refine,
    Refinement,
    Solver,
    check_labels,
    check_needs,
    check_refinement,
    discard_film,
    no_progress,
    reads_of,
)
from fedglass.attack.stages import (
    bind_forward,
    bind_objective,
    energy_rank,
    labels_of_rounds,
    progress_part,
)
from fedglass.attack.terms.term import Term
from fedglass.core.errors import UsageError, check_at_least
from fedglass.core.facts import Fact, refusal
from fedglass.core.identity import LATER
from fedglass.core.losses import Loss, TargetKind, target_kind
from fedglass.core.rng import derive, stream
from fedglass.core.tensors import check_update, check_weights
from fedglass.core.text import NON_FINITE
from fedglass.core.types import Candidate, Film, Knowledge, Observation, Reconstruction
from fedglass.fl.trajectory import per_epoch

if TYPE_CHECKING:
    from fedglass.attack.best_of import AnyAttack

TRACE_POINTS = 200
"""The most energies of a run that are stored for its curve."""


@dataclass(frozen=True)
class Stage:
    """Minimise `objective` of the message that `forward` predicts, over the unknowns of `images`."""

    forward: Forward
    images: Images
    objective: Term
    solver: Solver

    def reads(self, observation: Observation) -> frozenset[Fact]:
        """Return the facts that the operator takes from the message itself, for all parts of the stage."""
        return reads_of(self.forward, observation)


@dataclass(frozen=True)
class Attack:
    """A composition of parts, which a recipe makes. The restart of lowest energy is returned.

    Nothing here can see the truth.
    """

    labels: Labels
    stages: tuple[Stage, ...]
    merge: Merge = field(default_factory=MatchAndAverage)
    refine: tuple[Refine, ...] = ()
    restarts: int = 1
    start: AnyAttack | None = field(default=None, metadata=LATER)
    """An attack, such as `exact`: the first start begins with its images, and at random where it reads none."""

    def __post_init__(self) -> None:
        if not self.stages:
            raise UsageError("An attack needs at least one stage, got none.")
        check_at_least("attack.restarts", self.restarts, 1)

    def __repr__(self) -> str:
        """Print later fields only where they are used, so that the names of older records hold."""
        printed = [f for f in fields(self) if f.metadata != LATER or getattr(self, f.name)]
        return f"Attack({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in printed)})"

    def run(self, observation: Observation, seed: int = 0, progress: Progress = no_progress) -> Reconstruction:
        """Reconstruct; `progress` is called with iterations over all restarts and stages, then of each refinement."""
        check_observation(observation)
        check_loss(observation)
        if (fitting := labels_for_loss(self.labels, observation)) is not self.labels:
            return replace(self, labels=fitting).run(observation, seed, progress)
        check_needs(self, observation)
        seeds = [derive(seed, "restart", i) for i in range(self.restarts)]
        run = self._bind(observation, seeds[0])
        runs = [run(start, progress_part(progress, i, len(seeds))) for i, start in enumerate(seeds)]
        best = min(runs, key=lambda run: energy_rank(run.energy))
        return self._refined(observation, best, seed, progress) if self.refine else best

    def check(self, observation: Observation) -> None:
        """Refuse what `run` would refuse of any message with this knowledge and network, without its work."""
        check_counted(observation)
        check_loss(observation)
        if (fitting := labels_for_loss(self.labels, observation)) is not self.labels:
            replace(self, labels=fitting).check(observation)
            return
        check_needs(self, observation)
        draws = stream(0, "check")
        check_labels(self.labels, observation, draws)
        for stage in self.stages:
            bind_forward(stage.forward, observation)
            stage.images.bind(observation, draws, None)
        knows = observation.knows
        blank, first = torch.zeros(1, *knows.shape), torch.zeros(1, dtype=torch.int64)
        for refinement in self.refine:
            check_refinement(refinement, Refinement(blank, first, knows, draws))

    def shortened(self, share: float) -> Attack:
        """Return the same attack from one start with a share of its iterations, not refined: for trying things out."""
        stages = tuple(replace(stage, solver=_shortened(stage.solver, share)) for stage in self.stages)
        return replace(self, stages=stages, restarts=1, refine=())

    @property
    def refinements(self) -> tuple[Refine, ...]:
        """The refinements of the reconstructed images, in order."""
        return self.refine

    def refined_by(self, parts: tuple[Refine, ...]) -> Attack:
        """Return the same attack, which refines its images by these parts after its own."""
        return replace(self, refine=(*self.refine, *parts))

    def energy_of(self, observation: Observation, pixels: Tensor, labels: Tensor, like: Reconstruction) -> float:
        """Return the last stage's energy at the representable images that are nearest to the given ones.

        The operator's own unknowns have their final values in `like`. The audit calls this with the truth: a search
        cannot find images that its unknowns cannot represent.  # pixels (n, c, h, w), labels (n,)
        """
        bound = self._representation(observation)
        nearest = bound.nearest(_in_each_epoch(bound, observation.knows.whitening.whiten(pixels)))
        return self._energy_at(observation, Candidate(nearest, labels), like)

    def _refined(self, observation: Observation, raw: Reconstruction, seed: int, progress: Progress) -> Reconstruction:
        """Apply one refinement after another, and compute how well the images still explain the message."""
        knows, films = observation.knows, list[Film]()
        images = refined(self.refine, raw.images, raw.labels, knows, seed, progress, films.append)
        # Not at the nearest representable images: the energy is to show what the refinement added.
        candidates = _in_each_epoch(self._representation(observation), knows.whitening.whiten(images))
        energy = self._energy_at(observation, Candidate(candidates, raw.labels), raw)
        film = films[-1] if films else None
        return replace(raw, images=images, raw=raw.images, energy_refined=energy, film=film)

    def _representation(self, observation: Observation) -> Bound:
        """Bind the unknowns of the last stage, from any start."""
        return self.stages[-1].images.bind(observation, stream(0, "shape"), None)

    def _energy_at(self, observation: Observation, candidate: Candidate, like: Reconstruction) -> float:
        """Return the last stage's energy; the operator's own unknowns have their final values in `like`."""
        forward = bind_forward(self.stages[-1].forward, observation)
        unknowns = [like.unknowns.get(u.name, u.start) for u in forward.unknowns]
        return float(_energy(self.stages[-1], observation, forward)(candidate, unknowns, 1.0).detach())

    def _bind(self, observation: Observation, first_seed: int) -> Callable[[int, Progress], Reconstruction]:
        """Bind what is the same for all starts, and return the run from the start of a seed.

        The start of the first seed begins with the images of `start`, where there are some.
        """
        # All operators first: a refusal of the last one must not wait until the first one has run for minutes.
        stages = self.stages
        forwards = [bind_forward(stage.forward, observation) for stage in stages]
        begin = {} if self.start is None else {first_seed: self.start.run(observation, first_seed)}
        labels_of = _labels_by_seed(self.labels, observation)

        def run(seed: int, progress: Progress) -> Reconstruction:
            labels = labels_of(seed)
            label_start: Sequence[Tensor] = [u.start for u in labels.unknowns]
            images = _begun(observation, begin.get(seed), labels.decode(label_start), stream(seed, "images", 0))
            notes = labels.notes
            for i, (stage, forward) in enumerate(zip(stages, forwards, strict=True)):
                unknown = stage.images.bind(observation, stream(seed, "images", i), images)
                moving = tuple(replace(u, start=s) for s, u in zip(label_start, labels.unknowns, strict=True))
                a, b = len(unknown.unknowns), len(unknown.unknowns) + len(moving)
                problem = _problem(stage, observation, forward, unknown, Bound(moving, labels.decode))
                part = progress_part(progress, i, len(stages))
                solution = stage.solver.minimise(problem, part)
                images = unknown.decode(solution.tensors[:a]).detach()
                label_start = solution.tensors[a:b]
                notes += () if solution.finite else (NON_FINITE,)
            assert images is not None, "an attack has at least one stage"
            ends = {u.name: t.detach() for u, t in zip(forward.unknowns, solution.tensors[b:], strict=True)}
            pixels = self.merge.merge(observation.knows.whitening.unwhiten(images))
            final_labels = _hard(labels.decode(label_start).detach(), observation.knows.objective)
            return Reconstruction(pixels, final_labels, solution.energy, _thin(solution.trace), notes, ends)

        return run


def _begun(
    observation: Observation, start: Reconstruction | None, labels: Tensor, generator: torch.Generator
) -> Tensor | None:
    """Place each image to begin with where its label is, noise elsewhere.  # (1, n, c, h, w), whitened, or None"""
    if start is None or not len(start.images):
        return None
    loss = observation.knows.objective
    images, free = whitened_noise(observation, generator, epochs=1), _hard(labels.detach(), loss).tolist()
    for image, label in zip(start.images, start.labels.tolist(), strict=True):
        places = [i for i, other in enumerate(free) if other is not None]
        if not places:
            break
        place = min(places, key=lambda i: free[i] != label)
        images[0, place] = observation.knows.whitening.whiten(image[None])[0].to(images)
        free[place] = None
    return images


def _hard(labels: Tensor, loss: Loss | None = None) -> Tensor:
    """Return one class for each image, never one that the loss ignores, or its target without classes.  # (n,)"""
    if target_kind(loss) is not TargetKind.CLASSES:
        return labels
    ignored = getattr(loss, "ignore_index", -1)
    if labels.is_floating_point() and 0 <= ignored < labels.shape[-1]:
        labels = labels.index_fill(-1, labels.new_tensor([ignored]).long(), -torch.inf)
    return labels.argmax(-1) if labels.is_floating_point() else labels[0] if per_epoch(labels) else labels


def _labels_by_seed(labels: Labels, observation: Observation) -> Callable[[int], Bound]:
    """Return the labels of each start; they are bound once where they draw no random number."""
    shared: list[Bound] = []

    def of(seed: int) -> Bound:
        if shared:
            return shared[0]
        drawn: list[torch.Generator] = []

        def generator() -> torch.Generator:
            drawn.append(stream(seed, "labels"))
            return drawn[-1]

        bound, unused = labels_of_rounds(labels, observation, generator), stream(seed, "labels").get_state()
        if all(torch.equal(draws.get_state(), unused) for draws in drawn):
            shared.append(bound)
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
    """Apply one refinement after another to images.  # (n, c, h, w), pixels before whitening"""
    for i, refinement in enumerate(parts):
        images = refinement.refine(Refinement(images, labels, knows, stream(seed, "refine", i), progress, film))
    return images


def check_observation(observation: Observation) -> None:
    """Refuse an observation that no attack can work with, and say what to do."""
    check_weights(observation.before, observation.model)
    check_update(observation.update, observation.before)
    check_counted(observation)
    for other_round in observation.also:
        check_observation(other_round)
    knows = observation.knows
    check_at_least("knowledge.examples", knows.examples, 1)
    if not 1 <= knows.clients <= knows.examples:
        raise UsageError(
            f"knowledge.clients must be between 1 and the number of examples, {knows.examples}, got {knows.clients}."
        )
    if not any(bool(t.any()) for t in observation.update.values()):
        raise UsageError(
            "The update is zero everywhere, so there is nothing to invert: check that the client trained "
            "and that the weights before and after were not mixed up."
        )


def check_counted(observation: Observation) -> None:
    """Refuse a message with an unknown number of examples: all unknowns of the attack depend on it."""
    if not observation.knows.counted:
        raise refusal("The attack", [Fact.EXAMPLES])


def check_loss(observation: Observation) -> None:
    """Refuse a message of an unknown loss: its gradient cannot be computed for any images."""
    if Fact.LOSS not in observation.knows.facts:
        raise refusal("Gradient matching", [Fact.LOSS])


def _energy(
    stage: Stage, observation: Observation, forward: BoundForward
) -> Callable[[Candidate, Sequence[Tensor], float], Tensor]:
    """Return the objective as a function of candidate, operator's unknowns and progress."""
    objective = bind_objective(stage.objective, forward, observation.knows)

    def energy(candidate: Candidate, unknowns: Sequence[Tensor], share: float) -> Tensor:
        return objective(Evaluation(forward.predict(candidate, unknowns), candidate, share))

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
    """Return the solver with a share of its iterations, where it has such a number."""
    part: Any = solver
    count = getattr(part, "iterations", None)
    return replace(part, iterations=max(1, math.ceil(share * count))) if isinstance(count, int) else solver


def _in_each_epoch(bound: Bound, images: Tensor) -> Tensor:
    """Repeat the images for each epoch that the unknowns have.  # (n, c, h, w) -> (epochs, n, c, h, w)"""
    epochs = len(bound.decode([u.start for u in bound.unknowns]))
    return images.expand(epochs, *images.shape)


def _thin(trace: Tensor) -> tuple[float, ...]:
    """Return at most `TRACE_POINTS` energies, evenly spaced, with the first and the last."""
    n = len(trace)
    rows = torch.linspace(0, n - 1, min(n, TRACE_POINTS)).round().long()
    return tuple(trace[rows].tolist())
