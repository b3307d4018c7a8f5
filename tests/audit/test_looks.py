"""Further looks: how many, and with a prior that the private data do not choose."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fedglass.audit.looks import Effort, Experiment, cost_of, other_priors, other_starts
from fedglass.verdict.flags.search import OTHER_RUN

from fedglass.audit.audit import Job
from fedglass.audit.play import Work, play
from fedglass.audit.target import Target
from fedglass.recipes.catalogue import recipe
from fedglass.rounds.truth import Truth

STRONG = recipe("inverting_gradients", iterations=80, tv=10.0)


def target_of(job: Job) -> Target:
    target = job.sources[0].targets(lambda done, total: None)[0]
    assert isinstance(target, Target)
    return target


def looks(job: Job, target: Target) -> tuple[list[str], list[str]]:
    record = play(Work(job.cases[0], target, torch.device("cpu")), lambda done, total: None).record
    assert record.status == "done", record.error
    return record.looks, [flag.name for flag in record.flags]


@pytest.mark.parametrize("effort", Effort)
def test_no_more_is_done_than_was_announced(effort: Effort, make_job: Callable[..., Job]) -> None:
    seen = target_of(make_job()).observation
    attack = recipe("inverting_gradients", iterations=2)
    experiment = Experiment(attack, seen, attack.run(seen), None, 0, effort)
    runs = [*other_starts(attack, 0, effort), *other_priors(experiment)]
    cost = cost_of(attack, effort)
    assert len(runs) <= cost.looks <= cost.runs
    assert len({run.seed for run in runs[: effort.starts]}) == effort.starts
    assert bool(runs) is (effort is not Effort.QUICK)


def test_the_prior_is_chosen_by_decoys_and_never_by_the_truth(make_job: Callable[..., Job]) -> None:
    """With a prior far too strong the decoys ask for a much weaker one, whatever the private data are said to be."""
    job = make_job(attacks={"strong": STRONG})
    target = target_of(job)
    assert target.truth is not None
    said, flags = looks(job, target)
    chosen = ["with priors times 0.01, best of 3 on decoys", "with priors times 0.001, best of 3 on decoys"]
    assert len(said) == 1
    assert said[0].split(":")[0] in chosen
    other = torch.rand(target.truth.images.shape, generator=torch.Generator().manual_seed(5))
    lie = Truth(other, (target.truth.labels + 1) % 10, target.truth.clients)
    fooled, _ = looks(job, Target(target.observation, lie, defended=False, simulated=True))
    energies = [[words.split(", recovered")[0] for words in each] for each in (said, fooled)]
    assert energies[0] == energies[1]
    assert ("attack is blind" in flags) is (OTHER_RUN not in flags)


def test_without_decoys_the_weaker_prior_comes_first(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedglass.audit.looks.decoy_like", lambda *given: None)
    seen = target_of(make_job()).observation
    experiment = Experiment(STRONG, seen, STRONG.shortened(0.01).run(seen), None, 0, Effort.STANDARD)
    assert [run.words for run in other_priors(experiment)] == ["with priors times 0.1"]
