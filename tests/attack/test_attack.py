"""The attack itself: restarts, stages, traces, flags, and what it refuses."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.attack.attack import TRACE_POINTS, Attack, Stage
from fedglass.attack.forward.gradients import OneGradient, OnSegment
from fedglass.attack.forward.unroll import Unroll
from fedglass.attack.images.pixels import EpochPixels, FreePixels, Pixels
from fedglass.attack.labels.assigned import JointLabels
from fedglass.attack.labels.given import OracleBatchLabels, OracleLabels
from fedglass.attack.parts import (
    Binding,
    Bound,
    BoundTerm,
    FirstEpoch,
    Problem,
    Progress,
    Refinement,
    Solution,
    no_progress,
)
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.solvers.schedules import Lowest
from fedglass.attack.terms.distance import Cosine, SquaredError
from fedglass.attack.terms.priors import TotalVariation
from fedglass.attack.terms.term import Term
from fedglass.core.errors import ModelError, UpdateError, UsageError
from fedglass.core.identity import identity_text
from fedglass.core.types import Observation, Reconstruction, Training, Unknown
from fedglass.federation.federation import observe
from fedglass.federation.views import Knows, ServerView

FEDAVG = Training(0.1, epochs=2, batch_size=2)


def simple(iterations: int = 5, restarts: int = 1, **parts: Any) -> Attack:
    stage = Stage(OneGradient(), Pixels(), Cosine() + 0.01 * TotalVariation(), Adam(0.1, iterations))
    return Attack(OracleLabels(), (stage,), restarts=restarts, **parts)


@dataclass(frozen=True)
class Scripted:
    """A solver that returns its start with energies from a list, one for each call."""

    energies: list[float]
    starts: list[Tensor]

    def minimise(self, problem: Problem, progress: Progress) -> Solution:
        energy = self.energies[len(self.starts)]
        self.starts.append(problem.unknowns[0].start)
        trace = torch.tensor([2 * energy, energy])
        return Solution(tuple(u.start for u in problem.unknowns), energy, trace, finite=math.isfinite(energy))


def scripted(energies: list[float]) -> tuple[Attack, Scripted]:
    solver = Scripted(energies, [])
    stage = Stage(OneGradient(), FreePixels(), SquaredError(), solver)
    return Attack(OracleLabels(), (stage,), restarts=len(energies)), solver


@pytest.mark.parametrize("energies", [[3.0, 1.0, 2.0], [math.nan, 5.0, math.inf], [2.0, math.nan, -1.0]])
def test_the_restart_of_lowest_energy_is_returned(toy: Any, energies: list[float]) -> None:
    attack, solver = scripted(energies)
    seen = toy.observation(FEDAVG)
    found = attack.run(seen)
    best = min(e for e in energies if math.isfinite(e))
    assert found.energy == best
    assert found.trace == (2 * best, best)
    chosen = solver.starts[energies.index(best)]
    torch.testing.assert_close(found.images, seen.knows.whitening.unwhiten(chosen[0]))
    assert len({float(s.sum()) for s in solver.starts}) == len(energies)  # each from a start of its own


@dataclass(frozen=True)
class CountedLabels:
    """Labels that count how often they are found; with random numbers where `drawing`."""

    asked: list[int]
    drawing: bool

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        found = torch.zeros(observation.knows.examples, dtype=torch.int64)
        if self.drawing:
            found = torch.randint(3, found.shape, generator=generator)
        self.asked.append(int(found.sum()))
        return Bound((), lambda tensors: found)


def test_labels_are_found_anew_for_each_start_only_where_they_are_drawn(toy: Any) -> None:
    seen = toy.observation(FEDAVG)
    drawn, read = CountedLabels([], drawing=True), CountedLabels([], drawing=False)
    for labels in (drawn, read):
        replace(simple(1, restarts=5), labels=labels).run(seen)
    assert read.asked == [0]
    assert len(drawn.asked) == 5
    assert len(set(drawn.asked)) > 1
    replace(simple(1, restarts=5), labels=read).run(seen)
    assert read.asked == [0, 0]  # nothing is kept from one run to the next


def test_a_run_that_is_not_finite_is_flagged(toy: Any) -> None:
    attack, _ = scripted([math.nan])
    found = attack.run(toy.observation(FEDAVG))
    assert found.notes == ("non-finite",)
    assert math.isnan(found.energy)


@pytest.mark.parametrize(("iterations", "points"), [(1, 2), (50, 51), (199, 200), (1000, TRACE_POINTS)])
def test_a_trace_is_thinned_and_keeps_its_ends(toy: Any, iterations: int, points: int) -> None:
    stage = Stage(OneGradient(), FreePixels(), Quick(), Adam(0.1, iterations))
    found = Attack(OracleLabels(), (stage,)).run(toy.observation(Training(0.1), examples=1))
    assert len(found.trace) == points
    assert found.trace[-1] == pytest.approx(found.energy)
    assert found.trace[0] > found.trace[-1]


@dataclass(frozen=True)
class Quick(Term):
    """The squared norm of the images alone, to be quick."""

    def bind(self, binding: Binding) -> BoundTerm:
        return lambda at: at.candidate.images.square().sum()


def test_progress_covers_restarts_and_stages(toy: Any) -> None:
    told: list[float] = []
    attack = simple(restarts=2)
    twice = replace(attack, stages=attack.stages * 3)
    twice.run(toy.observation(FEDAVG), progress=lambda done, of: told.append(done / of))
    assert told == sorted(told)
    assert told[0] == 0.0
    assert told[-1] == 1.0


def test_a_later_stage_continues_the_earlier_one(toy: Any) -> None:
    """Two stages of the same parts without iterations of note return what one returns."""
    still = replace(simple().stages[0], solver=Adam(rate=0.0, iterations=1))
    seen = toy.observation(FEDAVG)
    one = simple(iterations=20).run(seen)
    two = Attack(OracleLabels(), (simple(iterations=20).stages[0], still)).run(seen)
    torch.testing.assert_close(one.images, two.images)
    assert one.energy == pytest.approx(two.energy)


def test_joint_labels_are_carried_from_stage_to_stage(toy: Any) -> None:
    stage = Stage(OneGradient(), FreePixels(), SquaredError(), Adam(0.1, 30))
    still = replace(stage, solver=Adam(rate=0.0, iterations=1))
    seen = toy.observation(Training(0.1), examples=1)
    one, two = (Attack(JointLabels(), stages).run(seen) for stages in ((stage,), (stage, still)))
    assert one.energy == pytest.approx(two.energy)
    assert torch.equal(one.labels, two.labels)
    assert one.labels.shape == (1,)
    assert not one.labels.is_floating_point()


def test_where_the_operators_own_unknowns_ended_is_told(toy: Any) -> None:
    stage = Stage(OnSegment(rate=0.5), Pixels(), Cosine(), Adam(0.1, 5))
    found = Attack(OracleLabels(), (stage,)).run(toy.observation(FEDAVG))
    assert list(found.unknowns) == ["alpha"]
    assert 0 <= float(found.unknowns["alpha"]) <= 1
    assert float(found.unknowns["alpha"]) != 0.5


def test_images_stay_inside_the_pixel_bounds(toy: Any) -> None:
    found = simple(iterations=30).run(toy.observation(FEDAVG))
    assert found.images.shape == (4, 1, 8, 8)
    assert float(found.images.min()) >= -1e-6
    assert float(found.images.max()) <= 1 + 1e-6


def test_labels_by_epoch_come_back_in_the_first_epochs_order(toy: Any) -> None:
    federation = toy.federation(FEDAVG)
    seen = observe(federation, ServerView(), Knows(batch_labels=True))[0]
    stage = Stage(Unroll(), EpochPixels(), SquaredError(), Adam(0.1, 2))
    found = Attack(OracleBatchLabels(), (stage,)).run(seen)
    assert torch.equal(found.labels, toy.trained_on(federation).labels[0])


def test_merging_happens_in_pixels(toy: Any) -> None:
    seen = toy.observation(FEDAVG)
    stage = Stage(Unroll(), EpochPixels(), SquaredError(), Adam(rate=0.0, iterations=1))
    got: list[Tensor] = []

    class Spy:
        def merge(self, images: Tensor) -> Tensor:
            got.append(images)
            return images[0]

    found = Attack(OracleLabels(), (stage,), merge=Spy()).run(seen)
    plain = Attack(OracleLabels(), (stage,), merge=FirstEpoch()).run(seen)
    assert got[0].shape == (2, 4, 1, 8, 8)
    assert torch.equal(found.images, got[0][0])
    assert torch.equal(found.images, plain.images)


def test_refinements_see_the_images_one_after_another(toy: Any) -> None:
    @dataclass(frozen=True)
    class Plus:
        by: float

        def refine(self, refinement: Refinement) -> Tensor:
            assert torch.equal(refinement.labels, plain.labels)
            assert refinement.knows.shape == (1, 8, 8)
            refinement.progress(1, 1)
            return 2 * refinement.images + self.by

    seen = toy.observation(FEDAVG)
    plain = simple().run(seen)
    refined = simple(refine=(Plus(1.0), Plus(5.0))).run(seen)
    torch.testing.assert_close(refined.images, 2 * (2 * plain.images + 1) + 5)


@dataclass(frozen=True)
class Instead:
    """A refinement that shows something else."""

    value: float

    def refine(self, refinement: Refinement) -> Tensor:
        return torch.full_like(refinement.images, self.value)


def test_raw_and_refined_images_are_kept_with_the_energies_of_both(toy: Any) -> None:
    seen = toy.observation(FEDAVG)
    plain, refined = simple(iterations=50).run(seen), simple(iterations=50, refine=(Instead(0.5),)).run(seen)
    assert (plain.raw, plain.energy_refined) == (None, None)
    assert refined.raw is not None
    assert refined.energy_refined is not None
    assert torch.equal(refined.raw, plain.images)
    assert torch.equal(refined.images, torch.full_like(plain.images, 0.5))
    assert (refined.energy, refined.trace) == (plain.energy, plain.trace)
    assert refined.energy_refined > 1.1 * refined.energy  # grey explains the message no longer
    assert refined.energy_refined == simple().energy_of(seen, refined.images, refined.labels, plain)


def test_a_broken_refinement_has_an_energy_that_is_not_a_number(toy: Any) -> None:
    found = simple(refine=(Instead(math.nan),)).run(toy.observation(FEDAVG))
    assert found.energy_refined is not None
    assert math.isnan(found.energy_refined)
    assert math.isfinite(found.energy)


@dataclass(frozen=True)
class Blocks:
    """Images of two by two equal pixels: a representation that most pictures do not fit."""

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        knows = observation.knows
        c, h, w = knows.shape
        first = torch.randn(1, knows.examples, c, h // 2, w // 2, generator=generator)

        def decode(tensors: Sequence[Tensor]) -> Tensor:
            return tensors[0].repeat_interleave(2, -1).repeat_interleave(2, -2)

        def nearest(images: Tensor) -> Tensor:
            return decode([F.avg_pool2d(images.flatten(0, 1), 2).view(*images.shape[:-2], h // 2, w // 2)])

        return Bound((Unknown(first),), decode, nearest)


def test_the_energy_at_the_truth_is_that_of_the_nearest_image_that_can_be_represented(toy: Any) -> None:
    federation = toy.federation(Training(0.1), examples=1)
    seen, truth = observe(federation, ServerView(), Knows(labels=True))
    stages = [Stage(OneGradient(), images, SquaredError(), Adam(0.05, 400)) for images in (Blocks(), FreePixels())]
    coarse, fine = (Attack(OracleLabels(), (stage,)) for stage in stages)
    found = coarse.run(seen)
    reduced = F.avg_pool2d(truth.images, 2).repeat_interleave(2, -1).repeat_interleave(2, -2)
    exact = fine.energy_of(seen, truth.images, truth.labels, found)
    at_truth = coarse.energy_of(seen, truth.images, truth.labels, found)
    assert at_truth == pytest.approx(fine.energy_of(seen, reduced, truth.labels, found), rel=1e-4)
    assert exact < 0.5 * found.energy  # which no search in blocks could have reached
    assert at_truth > 0.9 * found.energy


def test_the_energy_at_the_truth_is_that_of_the_last_stage(toy: Any) -> None:
    federation = toy.federation(Training(0.1))
    seen, truth = observe(federation, ServerView(), Knows(labels=True))
    attack = Attack(OracleLabels(), (Stage(OneGradient(), FreePixels(), SquaredError(), Adam(0.1, 3)),))
    found = attack.run(seen)
    assert attack.energy_of(seen, truth.images, truth.labels, found) == pytest.approx(0.0, abs=1e-8)
    assert attack.energy_of(seen, found.images, found.labels, found) == pytest.approx(found.energy, rel=1e-4)


@pytest.mark.parametrize("images", [FreePixels(), EpochPixels()], ids=repr)
def test_the_energy_can_be_asked_of_a_simulation(toy: Any, images: Any) -> None:
    federation = toy.federation(Training(0.1, epochs=2))
    seen, truth = observe(federation, ServerView(), Knows(labels=True))
    attack = Attack(OracleLabels(), (Stage(Unroll(), images, SquaredError(), Adam(0.1, 3)),))
    found = attack.run(seen)
    assert attack.energy_of(seen, truth.images, truth.labels, found) == pytest.approx(0.0, abs=1e-7)


def test_the_energy_is_taken_where_alpha_ended(toy: Any) -> None:
    seen = toy.observation(FEDAVG)
    attack = Attack(OracleLabels(), (Stage(OnSegment(rate=1.0), FreePixels(), Cosine(), Adam(0.1, 20)),))
    found = attack.run(seen)
    same_place = attack.energy_of(seen, found.images, found.labels, found)
    assert same_place == pytest.approx(found.energy, rel=1e-3)
    elsewhere = attack.energy_of(seen, found.images, found.labels, replace(found, unknowns={}))
    assert elsewhere != pytest.approx(found.energy, rel=1e-3)


def test_the_lowest_iterate_can_be_kept_in_an_attack(toy: Any) -> None:
    seen = toy.observation(FEDAVG)
    stage = simple().stages[0]
    last, lowest = (
        Attack(OracleLabels(), (replace(stage, solver=Adam(2.0, 40, keep=keep)),)).run(seen)
        for keep in (Adam().keep, Lowest())
    )
    assert lowest.energy <= last.energy
    assert lowest.energy == pytest.approx(min(lowest.trace))


def zeroed(seen: Observation, change: dict[str, Tensor | None]) -> Observation:
    update = {name: t for name, t in {**seen.update, **change}.items() if t is not None}
    return replace(seen, update=update)


def test_messages_that_no_attack_can_use_are_refused(toy: Any) -> None:
    seen, attack = toy.observation(FEDAVG), simple()
    nothing: dict[str, Tensor | None] = {name: torch.zeros_like(t) for name, t in seen.update.items()}
    for bad, kind, said in [
        (zeroed(seen, nothing), UsageError, "zero everywhere"),
        (zeroed(seen, {"1.bias": torch.full((32,), math.nan)}), UpdateError, "'1.bias' holds NaN or infinity"),
        (zeroed(seen, {"1.bias": torch.zeros(3)}), UpdateError, r"shape \(3,\), expected \(32,\)"),
        (zeroed(seen, {"1.bias": None}), UpdateError, "lacks '1.bias'"),
        (zeroed(seen, {"more": torch.zeros(3)}), UpdateError, "unknown 'more'"),
        (replace(seen, model=nn.Linear(64, 5)), ModelError, "do not fit the model at 'weight', 'bias', '1.weight' and"),
        (replace(seen, knows=replace(seen.knows, examples=0)), UsageError, "examples must be at least 1, got 0"),
        (replace(seen, knows=replace(seen.knows, clients=0)), UsageError, "clients must be between 1"),
        (replace(seen, knows=replace(seen.knows, clients=5)), UsageError, "number of examples, 4, got 5"),
    ]:
        with pytest.raises(kind, match=said):
            attack.run(bad)


def test_attacks_without_stages_or_restarts_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one stage"):
        Attack(OracleLabels(), ())
    with pytest.raises(UsageError, match="restarts must be at least 1, got 0"):
        simple(restarts=0)


def test_in_double_precision_all_stays_double(toy: Any) -> None:
    seen = toy.observation(FEDAVG)
    double = replace(
        seen,
        model=copy.deepcopy(seen.model).double(),
        before={n: t.double() for n, t in seen.before.items()},
        update={n: t.double() for n, t in seen.update.items()},
    )
    one, other = simple().run(seen), simple().run(double)
    assert other.images.dtype == torch.float64
    torch.testing.assert_close(one.images.double(), other.images, rtol=1e-3, atol=1e-3)


ONCE = 1
"""A label of one of three toy examples; the label of the other two is another."""


@dataclass(frozen=True)
class Read:
    """An attack that has read one image of a label, and nothing else."""

    label: int
    value: float = 0.75

    def run(self, observation: Observation, seed: int = 0, progress: Progress = no_progress) -> Reconstruction:
        images = torch.full((1, *observation.knows.shape), self.value)
        return Reconstruction(images, torch.tensor([self.label]), 0.0)


def test_the_first_start_begins_with_what_another_attack_reads(toy: Any) -> None:
    """Where its label is; the other images, and all images of other starts, begin as they would without it."""
    seen = toy.observation(examples=3)
    starts: dict[bool, list[Tensor]] = {}
    labels: list[int] = []
    for begun in (False, True):
        solver = Scripted([1.0, 2.0], [])
        attack = Attack(OracleLabels(), (Stage(OneGradient(), Pixels(), Cosine(), solver),), restarts=2)
        labels = replace(attack, start=Read(ONCE) if begun else None).run(seen).labels.tolist()
        starts[begun] = [seen.knows.whitening.unwhiten(start[0]) for start in solver.starts]
    place = labels.index(ONCE)
    assert labels.count(ONCE) == 1
    assert torch.allclose(starts[True][0][place], torch.tensor(0.75))
    others = [i for i in range(3) if i != place]
    assert torch.equal(starts[True][0][others], starts[False][0][others])
    assert torch.equal(starts[True][1], starts[False][1])


def test_an_attack_without_a_start_keeps_its_name_and_numbers(toy: Any) -> None:
    assert " start=" not in repr(simple())
    assert "start=Read(label=0, value=0.75)" in repr(simple(start=Read(0)))
    assert identity_text(simple(start=Read(0))) != identity_text(simple())


def test_a_start_that_reads_nothing_changes_nothing(toy: Any) -> None:
    seen = toy.observation()

    @dataclass(frozen=True)
    class Nothing:
        def run(self, observation: Observation, seed: int = 0, progress: Progress = no_progress) -> Reconstruction:
            return Reconstruction(torch.zeros(0, *observation.knows.shape), torch.zeros(0, dtype=torch.int64), math.inf)

    assert torch.equal(simple(start=Nothing()).run(seen).images, simple().run(seen).images)
