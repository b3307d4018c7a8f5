"""A case's key changes with everything that decides its outcome, and with nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fedglass.attack.labels.given import OracleLabels
from fedglass.audit.audit import Job
from fedglass.audit.simulated import Simulated
from fedglass.core.errors import UsageError
from fedglass.core.optimisers import SGD
from fedglass.core.types import Training
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation
from fedglass.federation.views import AggregateView, Knows, ServerView
from fedglass.recipes import recipe
from fedglass.verdict.gate import Gate

Make = Callable[..., Job]


def keys(job: Job) -> list[str]:
    return [case.key for case in job.cases]


def test_cases_are_all_combinations(make_job: Make) -> None:
    """Of each of two messages: two attacks and the exact one three times, the game and the check once."""
    job = make_job(repeats=3)
    assert len(job.cases) == 2 * (3 * 3 + 2)
    assert len(set(keys(job))) == 22


def test_the_same_audit_has_the_same_keys(make_job: Make) -> None:
    assert keys(make_job()) == keys(make_job())


def test_the_gate_is_no_part_of_the_identity(make_job: Make) -> None:
    assert make_job(gate=Gate(threshold=30.0)).digest == make_job().digest


def other(client: Client, **change: object) -> Client:
    return replace(client, **change)


CHANGES: dict[str, Callable[[Federation], Federation]] = {
    "training": lambda f: replace(f, training=Training(lr=0.2)),
    "optimiser": lambda f: replace(f, training=replace(f.training, optimiser=SGD(momentum=0.9))),
    "shuffling": lambda f: replace(f, training=replace(f.training, shuffle=False)),
    "clipping": lambda f: replace(f, training=replace(f.training, clip=1.0)),
    "seed": lambda f: replace(f, seed=1),
    "participation": lambda f: replace(f, participation=0.9),
    "image": lambda f: replace(f, clients=[other(f.clients[0], images=1 - f.clients[0].images), f.clients[1]]),
    "label": lambda f: replace(f, clients=[other(f.clients[0], labels=(f.clients[0].labels + 1) % 4), f.clients[1]]),
    "name": lambda f: replace(f, clients=[other(f.clients[0], name="x"), f.clients[1]]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_fact_of_the_federation_counts(
    change: str, make_job: Make, make_federation: Callable[..., Federation]
) -> None:
    changed = make_job(federation=CHANGES[change](make_federation()))
    assert not set(keys(make_job())) & set(keys(changed))


def test_the_weights_count(make_job: Make, make_federation: Callable[..., Federation]) -> None:
    federation = make_federation()
    with torch.no_grad():
        next(federation.model.parameters()).view(-1)[0] += 1e-6
    assert not set(keys(make_job())) & set(keys(make_job(federation=federation)))


def test_attack_view_knowledge_and_seed_count(make_job: Make) -> None:
    mine = set(keys(make_job()))
    shared = mine & set(keys(make_job(iterations=6)))
    assert {c.facts["attack"] for c in make_job().cases if c.key in shared} == {"certificate", "exact", "singling_out"}
    assert not mine & set(keys(make_job(knows=Knows(training=False))))
    assert not mine & set(keys(make_job(seed=1)))
    assert not mine & set(keys(make_job(views=(AggregateView(),))))
    alone = make_job(views=(ServerView(1),)).cases  # the game's limits are corrected over all messages
    assert {c.facts["attack"] for c in alone if c.key not in mine} == {"singling_out"}


def test_attacks_start_from_the_same_seed_and_repeats_do_not(make_job: Make) -> None:
    cases = make_job(repeats=2, views=(ServerView(0),)).cases
    seeds = {(case.facts["attack"], case.facts["repeat"]): case.seed for case in cases}
    assert seeds["idlg", 0] == seeds["inverting_gradients", 0] != seeds["idlg", 1]


def test_the_version_counts(make_job: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = set(keys(make_job()))
    monkeypatch.setattr("fedglass.audit.audit.__version__", "0.0.0")
    assert not mine & set(keys(make_job()))


class Guess:
    """An attack that does not say how it is configured."""

    def __init__(self, strength: float) -> None:
        self.strength = strength


def test_an_attack_that_can_not_be_told_from_another_is_refused(make_job: Make) -> None:
    with pytest.raises(UsageError, match=r"Attack 'mine' is of type Guess, .* make it a frozen dataclass"):
        make_job(attacks={"mine": Guess(0.5)}).digest  # noqa: B018 (it is computed when it is first asked for)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attacks": {"singling_out": recipe("dlg")}}, "No attack may be called 'singling_out'"),
        ({"repeats": 0}, "repeats must be at least 1, got 0"),
        ({"gate": Gate(metric="rmse", threshold=0.1)}, "gate.metric is 'rmse', which is not among the metrics"),
        ({"views": (ServerView(7),)}, "adversary.client must be one of 0 to 1, got 7"),
        ({"views": (ServerView(0, round=3),)}, "adversary.round must be one of 0 to 0, got 3"),
        ({"views": ()}, "at least one view"),
    ],
)
def test_an_audit_that_can_not_run_is_refused(change: dict[str, object], words: str, make_job: Make) -> None:
    with pytest.raises(UsageError, match=words):
        make_job(**change)


def test_oracle_attacks_need_an_adversary_who_knows(make_federation: Callable[..., Federation]) -> None:
    attacks = {"ig": recipe("inverting_gradients", labels=OracleLabels())}
    with pytest.raises(UsageError, match=r"'ig' needs the true labels.*adversary.knows_labels = true"):
        Job([Simulated(make_federation())], attacks)
    Job([Simulated(make_federation(), knows=Knows(labels=True))], attacks)


def test_two_sources_need_two_names(make_federation: Callable[..., Federation]) -> None:
    source = Simulated(make_federation(), name="a")
    with pytest.raises(UsageError, match="different names"):
        Job([source, source], {"idlg": recipe("idlg")})
