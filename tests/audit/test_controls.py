"""A picture that a learned model has refined counts only where the model did not make it up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedglass.attack.attack import Attack
from fedglass.attack.parts import Refine, Refinement
from fedglass.audit.assessment import ANOTHER, UNTRAINED, other_picture, refinement_controls
from fedglass.audit.audit import Job, run
from fedglass.audit.target import Target
from fedglass.core.types import Reconstruction
from fedglass.federation.truth import Truth
from fedglass.federation.views import ServerView
from fedglass.metrics.catalogue import score
from fedglass.recipes import recipe
from fedglass.report.audit_page import write_report
from fedglass.verdict.collect_doubts import flags_of
from fedglass.verdict.gate import Gate
from fedglass.verdict.judge import judge
from fedglass.verdict.records import Record

Make = Callable[..., Job]
VIEW = (ServerView(0),)
LOW = Gate(threshold=6.0)


@dataclass(frozen=True)
class Grey:
    """Draws grey from everything, trained or not."""

    def refine(self, refinement: Refinement) -> Tensor:
        return torch.full_like(refinement.images, 0.5)

    def untrained(self) -> Refine:
        return self


@dataclass(frozen=True)
class Faithful:
    """Draws what it is given; untrained it draws grey."""

    def refine(self, refinement: Refinement) -> Tensor:
        return refinement.images.clone()

    def untrained(self) -> Refine:
        return Grey()


@dataclass(frozen=True)
class Mirrors:
    """Draws something else than it is given."""

    def refine(self, refinement: Refinement) -> Tensor:
        return 1 - refinement.images

    def untrained(self) -> Refine:
        return Grey()


def attack(*refine: Refine, iterations: int = 60) -> Attack:
    found = recipe("inverting_gradients", iterations=iterations)
    assert isinstance(found, Attack)
    return replace(found, refine=refine)


def flags(record: Record) -> set[str]:
    return {flag.name for flag in flags_of(record, LOW)}


@pytest.fixture
def target(make_job: Make) -> Target:
    return make_job(views=VIEW).sources[0].targets(lambda done, total: None)[0]


def truth_of(target: Target, images: Tensor) -> Truth:
    assert target.truth is not None
    return replace(target.truth, images=images, labels=torch.zeros(len(images)).long())


@pytest.mark.parametrize("count", [1, 3])
def test_a_model_that_draws_the_same_from_everything_does_as_well_from_another_image(
    target: Target, count: int
) -> None:
    shape = target.observation.knows.shape
    truth = truth_of(target, torch.rand(count, *shape, generator=torch.Generator().manual_seed(0)))
    for part, wins in ((Grey(), False), (Faithful(), True)):
        shown = part.refine(Refinement(truth.images, truth.labels, target.observation.knows, torch.Generator()))
        found = Reconstruction(shown, truth.labels, 0.0, raw=truth.images)
        scores = score(shown, truth.images, ["psnr", "rmse"])
        controls, _ = refinement_controls(attack(part), target.observation, found, truth, scores, seed=0)
        assert set(controls) == {ANOTHER, UNTRAINED}
        for control in controls.values():
            pairs = zip(scores.values["rmse"], control["rmse"], strict=True)
            assert all((own < 0.1 * other) is wins for own, other in pairs)
            assert len(control["psnr"]) == count


def test_identity_is_kept_where_the_nearest_true_image_is(target: Target) -> None:
    shape = target.observation.knows.shape
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    truth = truth_of(target, images)
    swapped = Reconstruction(images.flip(0), truth.labels, 0.0, raw=images)
    same = Reconstruction(0.5 * images + 0.2, truth.labels, 0.0, raw=images)
    # Matched as the raw ones were: the first refined picture belongs to the first truth, and shows the second.
    scores = score(images, images, ["psnr"])
    kept = [
        refinement_controls(attack(Faithful()), target.observation, f, truth, scores, 0)[1] for f in (swapped, same)
    ]
    assert kept == [(False, False), (True, True)]


def test_refinements_that_have_learned_nothing_have_no_controls(target: Target) -> None:
    truth = target.truth
    assert truth is not None
    found = Reconstruction(truth.images, truth.labels, 0.0, raw=truth.images)
    fedleak = recipe("fedleak", iterations=1)
    scores = score(truth.images, truth.images)
    assert refinement_controls(fedleak, target.observation, found, truth, scores, 0) == ({}, ())


def test_another_picture_shows_something_else(target: Target) -> None:
    seen = target.observation
    halves = torch.zeros(1, 1, 8, 8)
    halves[..., :4] = 1.0
    assert float((other_picture(halves, seen) - halves).abs().mean()) > 0.4
    checks = (torch.arange(8) // 4 + torch.arange(8)[:, None] // 4).remainder(2).float()[None, None]
    assert torch.equal(checks.roll((4, 4), (-2, -1)), checks)
    assert torch.equal(other_picture(checks, seen), 1 - checks)


def test_what_a_model_made_up_does_not_count_and_the_raw_picture_does(make_job: Make, tmp_path: Path) -> None:
    attacks = {"raw": attack(), "faithful": attack(Faithful()), "grey": attack(Grey()), "mirror": attack(Mirrors())}
    result = run(make_job(views=VIEW, attacks=attacks, gate=LOW), tmp_path)
    raw, faithful, grey, mirror = result.searches
    assert raw.controls == {}
    assert set(faithful.controls) == {ANOTHER, UNTRAINED}
    assert (faithful.identity_preserved, mirror.identity_preserved) == ([True], [False])
    assert LOW.scores(faithful) == LOW.scores(raw) == LOW.scores(grey) == LOW.scores(mirror)
    assert {tally.attack: tally.recovered for tally in LOW.tally(result.searches)} == dict.fromkeys(attacks, 1)
    assert "refinement is invented" in flags(mirror)
    assert "refinement is invented" not in flags(faithful)
    page = write_report(tmp_path).read_text()
    assert "the refinement of another image" in page


def test_a_message_that_only_imagination_reads_is_not_green(make_job: Make, tmp_path: Path) -> None:
    """Where the limit lies between the raw picture and what the model drew from nothing, neither leak nor absence."""
    (record,) = run(make_job(views=VIEW, attacks={"grey": attack(Grey(), iterations=1)}, gate=LOW), tmp_path).searches
    (raw,), (drawn,) = record.metrics_raw["psnr"], record.metrics["psnr"]
    assert raw is not None
    assert drawn is not None
    assert raw < drawn
    gate = Gate(threshold=(raw + drawn) / 2)
    assert gate.scores(record) == [raw]
    assert "refined image fails its controls" in {flag.name for flag in flags_of(record, gate)}
    assert judge([record], gate).exit_code == 3
