"""A refinement hides no leak, and what an attack can not represent is no failure of its search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.gradients import OneGradient
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.targets import SignRule
from fedglass.attack.parts import Bound, Refinement
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.solvers.schedules import Lowest
from fedglass.attack.terms.distance import SquaredError
from fedglass.audit.audit import Job, run
from fedglass.audit.play import Work, play_case
from fedglass.core.types import Film, Observation, Unknown
from fedglass.federation.federation import Federation
from fedglass.federation.views import ServerView
from fedglass.recipes import recipe
from fedglass.report.audit_page import write_report
from fedglass.verdict.collect_doubts import flags_of
from fedglass.verdict.directory import GAP, RecordFile
from fedglass.verdict.gate import Gate
from fedglass.verdict.records import Record

Make = Callable[..., Job]
VIEW = (ServerView(0),)
LOW = Gate(threshold=6.0)


@dataclass(frozen=True)
class Black:
    """A refinement that destroys everything, and shows how."""

    def refine(self, refinement: Refinement) -> Tensor:
        frames = torch.stack([refinement.images, 0.5 * refinement.images, 0 * refinement.images])
        refinement.film(Film((0, 5, 9), frames, (9,) * len(refinement.images)))
        return torch.zeros_like(refinement.images)


@dataclass(frozen=True)
class Blocks:
    """Images of two by two equal pixels."""

    exact: bool = False
    """Whether the nearest image is wrongly said to be the given one."""

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        knows = observation.knows
        c, h, w = knows.shape
        first = torch.randn(1, knows.examples, c, h // 2, w // 2, generator=generator)

        def decode(tensors: Sequence[Tensor]) -> Tensor:
            return tensors[0].repeat_interleave(2, -1).repeat_interleave(2, -2)

        def nearest(images: Tensor) -> Tensor:
            return decode([F.avg_pool2d(images.flatten(0, 1), 2).view(*images.shape[:-2], h // 2, w // 2)])

        return Bound((Unknown(first),), decode, (lambda images: images) if self.exact else nearest)


def attack(refine: tuple[Black, ...] = ()) -> Attack:
    found = recipe("inverting_gradients", iterations=60)
    assert isinstance(found, Attack)
    return replace(found, refine=refine)


def test_a_refinement_that_destroys_the_images_hides_no_leak(make_job: Make, tmp_path: Path) -> None:
    attacks = {"raw": attack(), "black": attack((Black(),))}
    result = run(make_job(views=VIEW, attacks=attacks, gate=LOW), tmp_path)
    raw, black = result.searches
    assert raw.metrics_raw == {}
    assert raw.energy_refined is None
    assert black.metrics["psnr"][0] != raw.metrics["psnr"][0]
    assert black.metrics_raw == raw.metrics
    assert black.energy == raw.energy
    assert black.energy_refined is not None
    assert black.energy is not None
    assert black.energy_refined > black.energy
    assert [tally.recovered for tally in LOW.tally(result.searches)] == [1, 1]
    (picture,) = black.pictures
    assert picture.raw is not None
    assert (tmp_path / picture.raw).read_bytes() == (tmp_path / raw.pictures[0].reconstruction).read_bytes()
    assert raw.pictures[0].film is None
    assert picture.film is not None
    with Image.open(tmp_path / picture.film) as film, Image.open(tmp_path / picture.raw) as still:
        assert film.size[0] == 3 * still.size[0] + 2 * GAP
        assert film.crop((0, 0, *still.size)).tobytes() == still.tobytes()
    assert picture.film_caption == "epochs 0, 5, 9 of the refinement; epoch 9 was taken"
    kept = load_file(tmp_path / "reconstructions" / f"{black.key}.safetensors")
    assert not kept["images"].any()
    assert kept["raw"].any()
    page = write_report(tmp_path).read_text()
    assert ">raw</span>" in page
    assert ">refined</span>" in page
    assert "epoch 9 was taken" in page


def flags(record: Record) -> set[str]:
    return {flag.name for flag in flags_of(record, Gate())}


@pytest.mark.parametrize(("exact", "failed"), [(False, False), (True, True)])
def test_what_can_not_be_represented_is_no_failure_of_the_search(
    exact: bool, failed: bool, make_job: Make, make_federation: Callable[..., Federation], tmp_path: Path
) -> None:
    """The true image explains the message exactly, but no image of blocks does: that is no fault of the optimiser."""
    solver = Adam(0.05, 600, keep=Lowest())
    stage = Stage(OneGradient(), Blocks(exact), SquaredError(), solver)
    job = make_job(views=VIEW, attacks={"blocks": Attack(SignRule(), (stage,))}, federation=make_federation())
    (record,) = run(job, tmp_path).searches
    assert record.energy is not None
    assert record.energy_truth is not None
    assert ("search failed" in flags(record)) is failed
    assert (record.energy_truth < 0.5 * record.energy) is failed


def test_pixels_outside_the_bounds_are_not_asked_of_pixels_inside(make_job: Make) -> None:
    target = make_job(views=VIEW).sources[0].targets(lambda done, total: None)[0]
    stage = Stage(OneGradient(), Pixels(), SquaredError(), Adam(iterations=1))
    whole = Attack(SignRule(), (stage,))
    found = whole.run(target.observation)
    assert target.truth is not None
    beyond = target.truth.images * 4 - 1
    energies = [whole.energy_of(target.observation, x, found.labels, found) for x in (beyond, beyond.clamp(0, 1))]
    assert energies[0] == pytest.approx(energies[1])


def test_without_a_truth_the_raw_images_are_kept_too(make_job: Make, tmp_path: Path) -> None:
    job = make_job(views=VIEW, attacks={"black": attack((Black(),))})
    target = job.sources[0].targets(lambda done, total: None)[0]
    work = Work(job.cases[-1], replace(target, truth=None), torch.device("cpu"))
    record, evidence = play_case(work, lambda done, total: None)
    assert evidence is not None
    record = evidence.save(tmp_path, record)
    assert record.metrics_raw == {}
    assert record.energy_refined is not None
    for kind in ("pictures_raw", "films"):
        paths = record.extra[kind]
        assert isinstance(paths, list)
        assert [(tmp_path / str(path)).is_file() for path in paths] == [True]
    RecordFile(tmp_path / "records.jsonl").append(record)
    assert "epoch 9 was taken" in write_report(tmp_path).read_text()
