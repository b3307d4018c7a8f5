"""Fedglass's defences beside NVFlare's own filters: bit for bit, and in distribution where there is noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.filters import percentile_privacy, svt_privacy
from tests.integration.nvflare.test_filters import ONE, ZERO, context, payload, runs

from fedglass.core.rng import stream
from fedglass.defend.filters import PercentilePrivacy, SVTPrivacy
from fedglass.fl.release import Outgoing
from fedglass.recorders.nvflare import ReceivedFilter, SentFilter, TrainingEnds, defences_of
from fedglass.recordings.facts import EXTRA_ARRAYS, preferred
from fedglass.recordings.observed import contradictions_of
from fedglass.recordings.privacy import recorded_epsilons
from fedglass.recordings.reader import read_bundle

needs_ledger = pytest.mark.skipif(
    not hasattr(svt_privacy.SVTPrivacy, "get_privacy_ledger"), reason="another mechanism before NVFlare 2.9"
)


def update(zeros: float = 0.0) -> dict[str, torch.Tensor]:
    """Weights, a bias and a 0-d parameter; a share of the weights is exactly 0."""
    draw = stream(0, "filters")
    weight = 0.02 * torch.randn(40, 100, generator=draw)
    weight[torch.rand(40, 100, generator=draw) < zeros] = 0.0
    return {"weight": weight, "bias": 0.02 * torch.randn(100, generator=draw), "scale": torch.tensor(0.7)}


def theirs(part: Any, tensors: dict[str, torch.Tensor], **meta: Any) -> tuple[dict[str, Any], DXO]:
    arrays = {name: tensor.numpy().copy() for name, tensor in tensors.items()}
    dxo = DXO(DataKind.WEIGHT_DIFF, arrays, meta)
    result = part.process_dxo(dxo, Shareable(), FLContext())
    assert result is not None
    return result.data, result


def ours(part: Any, tensors: dict[str, torch.Tensor], seed: int = 0) -> dict[str, torch.Tensor]:
    return dict(part.release(Outgoing(tensors, stream(seed, "ours"))))


@pytest.mark.parametrize("zeros", [0.0, 0.5])
@pytest.mark.parametrize("steps", [1, 3, 7])
@pytest.mark.parametrize(("percentile", "gamma"), [(10, 0.01), (0, 0.01), (37.5, 0.02), (95, 1.0), (100, 0.001)])
def test_percentile_privacy_is_the_same_bit_for_bit(percentile: float, gamma: float, steps: int, zeros: float) -> None:
    sent, _ = theirs(
        percentile_privacy.PercentilePrivacy(percentile, gamma), update(zeros), NUM_STEPS_CURRENT_ROUND=steps
    )
    found = ours(PercentilePrivacy(percentile, gamma, steps), update(zeros))
    for name, tensor in found.items():
        assert np.array_equal(tensor.numpy(), np.asarray(sent[name]))
        assert tensor.numpy().dtype == np.asarray(sent[name]).dtype


@needs_ledger
def test_svt_privacy_is_the_same_bit_for_bit_where_its_noise_vanishes() -> None:
    tensors = update()
    tau = 0.03
    count = sum(int((tensor.abs() >= tau).sum()) for tensor in tensors.values())
    fraction = (count - 0.5) / sum(tensor.numel() for tensor in tensors.values())
    options = {"fraction": fraction, "epsilon": 1e15, "gamma": 1.0, "tau": tau, "replace": False}
    sent, _ = theirs(svt_privacy.SVTPrivacy(**options, epsilon_release=1e20), tensors)
    found = ours(SVTPrivacy(**options, epsilon_release=1e20), tensors)
    for name, tensor in found.items():
        assert np.array_equal(tensor.numpy(), sent[name])


@needs_ledger
@pytest.mark.parametrize("replace", [True, False])
def test_svt_privacy_has_the_same_distribution_and_the_same_ledger(replace: bool) -> None:
    tensors, options = update(), {"epsilon": 2.0, "gamma": 0.05, "noise_var": 5.0, "replace": replace}
    np.random.seed(0)  # noqa: NPY002
    sent, dxo = theirs(svt_privacy.SVTPrivacy(**options), tensors, NUM_STEPS_CURRENT_ROUND=2)
    part = SVTPrivacy(**options, steps=2)
    found = ours(part, tensors)
    entries = sum(tensor.numel() for tensor in tensors.values())
    assert float(found["scale"]) == float(sent["scale"]) == pytest.approx(0.7)
    counts = [int((torch.as_tensor(side["weight"]) != 0).sum()) for side in (found, sent)]
    assert abs(counts[0] - counts[1]) < 6 * entries**0.5 / 3
    values = [np.asarray(side["weight"])[np.asarray(side["weight"]) != 0] for side in (found, sent)]
    assert scipy.stats.ks_2samp(*values).pvalue > 1e-3
    budget = dxo.get_meta_prop("svt_privacy_budget")
    assert budget["epsilon_total"] == pytest.approx(part.spent(entries))
    assert budget["n_upload"] == part.uploads(entries)


@pytest.mark.parametrize("options", [{"percentile": 101}, {"percentile": -1}, {"gamma": 0.0}])
def test_a_filter_out_of_range_lets_everything_pass_which_the_recording_says(
    options: dict[str, float], tmp_path: Path
) -> None:
    part = percentile_privacy.PercentilePrivacy(**options)
    shareable = part.process(payload(ONE, kind=DataKind.WEIGHT_DIFF), context("a", peer=False))
    assert np.array_equal(from_shareable(shareable).data["w"], ONE["w"])
    (defence,) = defences_of(runs([part]), DataKind.WEIGHT_DIFF)
    assert defence["name"] == "PercentilePrivacy"
    assert "did nothing, because its options are out of range" in contradiction(tmp_path, [defence])


def test_a_filter_on_full_weights_is_said_to_be_one(tmp_path: Path) -> None:
    (defence,) = defences_of(runs([percentile_privacy.PercentilePrivacy()]), DataKind.WEIGHTS)
    text = contradiction(tmp_path, [defence])
    assert text == (
        "the filter 'PercentilePrivacy' acted on full weights, but it is made for differences of weights: "
        "let the client send DataKind.WEIGHT_DIFF"
    )


def contradiction(folder: Path, defences: list[dict[str, Any]]) -> str:
    """The one contradiction of a recorded message with these defences."""
    SentFilter(str(folder / "b"), {"defences": defences}).process(payload(ZERO), context("a", peer=True))
    reply = payload(ONE, kind=DataKind.WEIGHT_DIFF)
    ReceivedFilter(str(folder / "b")).process(reply, context("a", peer=True))
    (found,) = contradictions_of(read_bundle(folder / "b"), 0)
    return found.text


@needs_ledger
def test_filters_are_recorded_with_the_local_steps_that_they_divide_by(tmp_path: Path) -> None:
    filters = [TrainingEnds(str(tmp_path)), svt_privacy.SVTPrivacy(fraction=0.2, epsilon_release=3.0)]
    assert defences_of(runs(filters), DataKind.WEIGHT_DIFF, 4) == [
        {
            "name": "svt_privacy",
            "options": {
                "fraction": 0.2,
                "epsilon": 0.1,
                "noise_var": 0.1,
                "gamma": 1e-5,
                "tau": 1e-6,
                "replace": True,
                "epsilon_release": 3.0,
                "steps": 4,
            },
        }
    ]


@needs_ledger
def test_the_ledger_of_svt_privacy_is_recorded_and_agrees_with_its_options(tmp_path: Path) -> None:
    part = svt_privacy.SVTPrivacy()
    SentFilter(str(tmp_path / "b"), {"defences": [{"name": "svt_privacy"}]}).process(
        payload({"w": np.zeros(200, np.float32)}), context("a", peer=True)
    )
    for index in range(3):
        reply = payload({"w": np.ones(200, np.float32)}, index, DataKind.WEIGHT_DIFF)
        reply = part.process(reply, context("a", peer=False))
        ReceivedFilter(str(tmp_path / "b")).process(reply, context("a", peer=True))

    bundle = read_bundle(tmp_path / "b")
    ((declared, counted),) = recorded_epsilons(bundle).values()

    assert preferred(bundle.facts_of("a", 2), EXTRA_ARRAYS) is None
    assert (declared.declared, declared.real, declared.releases) == (0.1, pytest.approx(6.3), 3)
    assert counted.declared == pytest.approx(part.get_privacy_spent()) == pytest.approx(counted.real)
    assert declared.exceeded
    assert not counted.exceeded
