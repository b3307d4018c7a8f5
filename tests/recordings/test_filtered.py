"""Bundles of messages that passed filters of NVFlare or mods of Flower: an audit runs these again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.recordings.federations import CLASSES, SHAPE, Real, State
from torch import nn

from fedglass.audit.check_message import CheckMessage
from fedglass.audit.recorded import Recorded
from fedglass.defend.filters import FlowerFixedClipping, FlowerLocalDP, PercentilePrivacy
from fedglass.models.catalogue import build
from fedglass.plan.bundles import open_bundle, recorded_bundle
from fedglass.plan.schema import AdversaryTable
from fedglass.plan.tables import BundleTable
from fedglass.recordings import BundleWriter
from fedglass.verdict.doubts import Doubt, DoubtKind

PERCENTILE = {"name": "percentile_privacy", "options": {"percentile": 40, "gamma": 0.002, "steps": 1}}
DP = {"clipping_norm": 0.05, "sensitivity": 0.05, "epsilon": 5.0, "delta": 1e-5}
REFUTING = {
    DoubtKind.NOT_AS_DECLARED,
    DoubtKind.NOISE_REFUTED,
    DoubtKind.NOISE_NOT_TESTABLE,
    DoubtKind.DEFENCE_NOT_NAMED,
}


def filtered(before: State, after: State) -> State:
    """As NVFlare does it, on the difference."""
    update = {name: (after[name] - before[name]).numpy() for name in after}
    cutoff = np.percentile(np.concatenate([np.abs(array).ravel() for array in update.values()]), 40)
    kept = {n: np.clip(np.where(np.abs(array) < cutoff, 0, array), -0.002, 0.002) for n, array in update.items()}
    return {name: before[name] + torch.from_numpy(array) for name, array in kept.items()}


def noised(before: State, after: State) -> State:
    """As Flower does it, on the new weights."""
    update = {name: after[name] - before[name] for name in after}
    length = float(torch.cat([tensor.flatten() for tensor in update.values()]).norm())
    std, factor = 0.05 * np.sqrt(2 * np.log(1.25e5)) / 5.0, min(1.0, 0.05 / length)
    return {name: before[name] + factor * t + std * torch.randn(t.shape) for name, t in update.items()}


def source_of(folder: Path) -> Recorded:
    table = BundleTable(bundle=str(folder), truth=f"{folder}-truth")
    (source,) = recorded_bundle(table, AdversaryTable(), folder.parent, open_bundle(table, folder.parent))
    return source


def doubts_of(source: Recorded) -> list[Doubt]:
    target = source.targets(lambda done, total: None)[0]
    found: list[Doubt] = CheckMessage().measure(target, 0, lambda *given: None).record["doubts"]
    return found


def test_a_filter_of_nvflare_explains_the_message(tmp_path: Path) -> None:
    Real(leaves=filtered, form="update", rounds=1).record(tmp_path / "b", defences=[PERCENTILE])
    source = source_of(tmp_path / "b")
    assert source.defences["client 0"].release == PercentilePrivacy(40, 0.002, 1)
    assert not REFUTING & {each.kind for each in doubts_of(source)}

    other = {"name": "percentile_privacy", "options": {"percentile": 90, "gamma": 0.002}}
    Real(leaves=filtered, form="update", rounds=1).record(tmp_path / "c", defences=[other])
    assert DoubtKind.NOT_AS_DECLARED in {each.kind for each in doubts_of(source_of(tmp_path / "c"))}


def test_the_noise_of_flower_is_tested_and_its_epsilon_compared(tmp_path: Path) -> None:
    torch.manual_seed(987_654_321_987)  # of a small seed the noise is known
    Real(leaves=noised, rounds=1).record(tmp_path / "b", defences=[{"name": "flower_local_dp", "options": DP}])
    source = source_of(tmp_path / "b")
    assert source.defences["client 0"].release == FlowerLocalDP(**DP)
    found = {each.kind for each in doubts_of(source)}
    assert not REFUTING & found
    assert DoubtKind.EPSILON_NOT_AS_DECLARED not in found

    half = {**DP, "sensitivity": 0.1}
    Real(leaves=noised, rounds=1).record(tmp_path / "c", defences=[{"name": "flower_local_dp", "options": half}])
    assert REFUTING & {each.kind for each in doubts_of(source_of(tmp_path / "c"))}


def test_clipping_that_no_message_reaches_is_a_doubt(tmp_path: Path) -> None:
    clip = {"name": "flower_fixed_clipping", "options": {"clipping_norm": 50.0}}
    Real(rounds=1).record(tmp_path / "b", defences=[clip])
    source = source_of(tmp_path / "b")
    assert source.defences["client 0"].release == FlowerFixedClipping(50.0)
    found = {each.kind for each in doubts_of(source)}
    assert DoubtKind.IDLE_FILTER in found
    assert not REFUTING & found


def adaptive(norm: float) -> dict[str, Any]:
    return {"name": "flower_fixed_clipping", "options": {"clipping_norm": norm, "adaptive": True}}


def test_adaptive_clipping_is_run_again_only_where_its_norm_stays(tmp_path: Path) -> None:
    writer: BundleWriter = Real(rounds=2).record(tmp_path / "b", defences=None)
    for index, norm in ((1, 50.0), (2, 60.0)):
        writer.training("client 0", index, {"defences": [adaptive(norm)]})
        writer.training("client 1", index, {"defences": [adaptive(50.0)]})
    source = source_of(tmp_path / "b")
    assert list(source.defences) == ["client 1"]
    assert source.transcript.terms.defences is not None
    assert source.transcript.terms.defences["client 0"][0].endswith("and its epsilon is not computed.")


@pytest.mark.parametrize("name", ["percentile_privacy", "svt_privacy"])
def test_filters_that_count_running_statistics_are_not_run_again(name: str, tmp_path: Path) -> None:
    def model() -> nn.Module:
        return build("resnet8", shape=SHAPE, classes=CLASSES)

    Real(sizes=(3,), rounds=1, model=model).record(tmp_path / "b", defences=[{"name": name}], model="resnet8")
    assert source_of(tmp_path / "b").defences == {}
