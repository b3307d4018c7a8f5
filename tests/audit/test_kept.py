"""A peer that does not know whose updates got through is judged by those that did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedglass.attack.labels.given import OracleLabels
from fedglass.audit.audit import Job
from fedglass.audit.play import Work, play_case
from fedglass.federation.federation import Federation
from fedglass.federation.peer import PeerView
from fedglass.federation.views import Knows
from fedglass.fl.aggregate.selection import Krum
from fedglass.recipes import recipe
from fedglass.verdict.records import Record


def records(make_job: Callable[..., Job], make_federation: Callable[..., Federation], rule: str) -> Record:
    federation = make_federation(clients=5, aggregator=Krum(1))
    attack = recipe("maliciously_curious_client", labels=OracleLabels(), rule=rule, iterations=20)
    job = make_job((PeerView(0),), Knows(labels=True, kept=False), federation, attacks={"it": attack})  # type: ignore[arg-type]
    target = job.sources[0].targets(lambda done, total: None)[0]
    return play_case(Work(job.cases[-1], target, torch.device("cpu")), lambda done, total: None)[0]


def test_the_record_says_whom_the_attack_supposes(
    make_job: Callable[..., Job], make_federation: Callable[..., Federation]
) -> None:
    record: Any = records(make_job, make_federation, "one_client")
    assert record.error is None
    assert record.extra["rule"] == "one_client"
    assert record.extra["kept"]["own"] is False
    assert len(record.extra["kept"]["others"]) == 1
    assert record.energy_truth < 1e-2


@pytest.mark.parametrize("rule", ["mean", "median", "mean_without_own"])
def test_a_wrong_guess_is_judged_all_the_same(
    make_job: Callable[..., Job], make_federation: Callable[..., Federation], rule: str
) -> None:
    """More images are found than there are true ones; nothing of it is called safe."""
    record: Any = records(make_job, make_federation, rule)
    assert record.error is None
    assert record.energy_truth is not None
    assert len(record.metrics["psnr"]) == 1
