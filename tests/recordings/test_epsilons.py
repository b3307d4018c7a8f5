"""Declared epsilons of a recording, and those that ledgers and accountants count, next to the real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tests.recordings.federations import Real

from fedglass.cli.main import cli
from fedglass.plan.bundles import open_bundle, recorded_bundle
from fedglass.plan.schema import AdversaryTable
from fedglass.plan.tables import BundleTable
from fedglass.recordings import BundleWriter
from fedglass.recordings.privacy import LEDGER, SPENT, recorded_epsilons, svt_ledger
from fedglass.recordings.reader import read_bundle
from fedglass.verdict.doubts import DoubtKind

FLIP = {
    "name": "flower_local_dp",
    "options": {"clipping_norm": 1.0, "sensitivity": 1e-4, "epsilon": 10.0, "delta": 1e-5},
}
EPSILON = 6.572970
"""Of mu = sqrt(2) at delta 1e-5: the root of Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu) = delta, by mpmath."""
SVT: dict[str, Any] = {"name": "svt_privacy", "options": {}}


def written(folder: Path, defences: list[dict[str, Any]] | None, rounds: int = 1, **ledger: Any) -> Path:
    """A bundle of one client, which sends 1,000 entries in each round."""
    writer = BundleWriter(folder, facts={} if defences is None else {"defences": defences})
    for index in range(rounds):
        round_ = writer.round(index)
        round_.sent({"w": torch.zeros(1000)})
        round_.received("a", {"w": torch.full((1000,), 1e-4)}, form="update")
        if ledger:
            writer.training("a", index, {LEDGER: ledger}, source="read")
    return folder


@pytest.mark.parametrize(("declared", "real"), [(10.0, 10.394), (20.0, 25.443), (1.0, 0.751), (5.0, 4.540)])
def test_a_calibrated_local_dp_is_counted_exactly(declared: float, real: float, tmp_path: Path) -> None:
    options = {"clipping_norm": 0.3, "sensitivity": 0.3, "epsilon": declared, "delta": 1e-5}
    ((found,),) = recorded_epsilons(
        read_bundle(written(tmp_path / "b", [{"name": "flower_local_dp", "options": options}]))
    ).values()
    assert found.real == pytest.approx(real, abs=1e-3)
    assert found.exceeded == (real > declared)


def test_flips_defaults_declare_ten_and_have_two_hundred_million(tmp_path: Path) -> None:
    ((once,),) = recorded_epsilons(read_bundle(written(tmp_path / "once", [FLIP]))).values()
    ((thrice,),) = recorded_epsilons(read_bundle(written(tmp_path / "thrice", [FLIP], rounds=3))).values()
    assert (once.declared, once.releases, thrice.releases) == (10.0, 1, 3)
    assert once.real == pytest.approx(2.131e8, rel=1e-3)
    assert thrice.real == pytest.approx(3 * 2.130e8, rel=1e-3)

    said = CliRunner().invoke(cli, ["record-info", str(tmp_path / "thrice")]).output
    assert "declares epsilon 10 at delta 1e-05; over 3 releases it is 6.39e+08" in said
    answer = json.loads(CliRunner().invoke(cli, ["record-info", str(tmp_path / "thrice"), "--json"]).stdout)
    assert answer["epsilons"][0]["declared"] == 10.0


def test_the_ledger_of_svt_privacy_is_compared(tmp_path: Path) -> None:
    """1,000 entries, 100 of which are sent at 0.1 each, and 0.1 for their choice: 10.1 in each round."""
    ((declared, counted),) = recorded_epsilons(
        read_bundle(written(tmp_path / "b", [SVT], rounds=2, epsilon=20.2, releases=2, last=10.1))
    ).values()
    assert (declared.declared, declared.real) == (0.1, pytest.approx(20.2))
    assert declared.exceeded
    assert (counted.declared, counted.real) == (20.2, pytest.approx(20.2))
    assert not counted.exceeded

    ((_, reset),) = recorded_epsilons(
        read_bundle(written(tmp_path / "c", [SVT], rounds=2, epsilon=10.1, releases=1, last=10.1))
    ).values()
    assert reset.exceeded
    assert str(reset).startswith("the ledger of SVTPrivacy declares epsilon 10.1 at delta 0; over 2 releases")


@pytest.mark.parametrize("epsilon", [8.0, 1.0])
def test_the_accountant_of_flower_is_compared(epsilon: float, tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b", facts={"defences": []})
    options = {"noise_multiplier": 1.0, "clipping_norm": 0.1, "num_sampled_clients": 5}
    for index in range(2):
        round_ = writer.round(index)
        round_.sent({"w": torch.full((3,), float(index))})
        round_.received("a", {"w": torch.ones(3)}, form="update")
        round_.aggregated({"w": torch.full((3,), index + 1.0)})
        rule = {"name": "DifferentialPrivacyServerSideFixedClipping", "options": options}
        round_.facts({SPENT: {"epsilon": epsilon, "delta": 1e-5, "num_releases": index + 1}, "rule": rule})
    ((client, (found,)),) = recorded_epsilons(read_bundle(tmp_path / "b")).items()
    assert (client, found.releases) == ("", 2)
    assert found.real == pytest.approx(EPSILON, abs=1e-4)
    assert found.exceeded == (epsilon == 1.0)


@pytest.mark.parametrize(
    "part",
    [
        {"name": "flower_local_dp", "options": {"epsilon": 10**400}},
        {"name": "flower_local_dp", "options": {"clipping_norm": "x"}},
        {"name": "svt_privacy", "options": {"fraction": [1], "steps": {}}},
        {"name": "dpsgd", "options": {"clip": "x", "noise_multiplier": 1.0}},
        {"name": "dpsgd_poisson", "options": {"clip": 1.0, "noise_multiplier": 10**400, "sample_rate": 2}},
        {"name": "os:system", "options": {"command": "false"}},
        {"name": "nobodys.module:Defence", "options": {}},
    ],
)
def test_what_a_hostile_bundle_declares_runs_no_code_and_has_no_epsilon(part: dict[str, Any], tmp_path: Path) -> None:
    assert recorded_epsilons(read_bundle(written(tmp_path / "b", [part, SVT]))) == {}


@pytest.mark.parametrize("ledger", [None, {}, {"epsilon_total": "much", "calls": 1}, {"epsilon_total": -1, "calls": 1}])
def test_what_is_no_ledger_is_none(ledger: Any) -> None:
    assert svt_ledger({"epsilon_total": 1.0}, ledger) is None


def test_an_audit_doubts_a_declared_epsilon_that_does_not_hold(tmp_path: Path) -> None:
    Real().record(tmp_path / "b", defences=[FLIP])
    table = BundleTable(bundle=str(tmp_path / "b"))
    (source,) = recorded_bundle(table, AdversaryTable(), tmp_path, open_bundle(table, tmp_path))
    for target in source.targets(lambda done, total: None):
        (found,) = [each for each in target.doubts if each.kind is DoubtKind.EPSILON_NOT_AS_DECLARED]
        assert found.details["declared"] == 10.0


def test_the_epsilon_of_adaptive_clipping_is_not_computed(tmp_path: Path) -> None:
    adaptive = {"name": "flower_fixed_clipping", "options": {"clipping_norm": 0.1, "adaptive": True}}
    folder = str(written(tmp_path / "b", [adaptive]))
    said = CliRunner().invoke(cli, ["record-info", folder]).output
    assert "Clipping is adaptive: its epsilon is not computed." in said
    fixed = str(written(tmp_path / "c", [{"name": "flower_fixed_clipping", "options": {"clipping_norm": 0.1}}]))
    assert "Clipping is adaptive" not in CliRunner().invoke(cli, ["record-info", fixed]).output
