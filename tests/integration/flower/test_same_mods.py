"""Fedglass's defences beside Flower's own mods: bit for bit, and in distribution where there is noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideAdaptiveClipping, FedAvg
from tests.integration.flower.conftest import MORE

from fedglass.core.rng import stream
from fedglass.defend.filters import FlowerFixedClipping, FlowerLocalDP
from fedglass.fl.release import Outgoing
from fedglass.recorders.flower import recorded, recording_mod
from fedglass.recordings.facts import preferred
from fedglass.recordings.observed import contradictions_of
from fedglass.recordings.reader import read_bundle

Make = Callable[..., Any]
ALL = {"fraction_evaluate": 0.0, "min_available_nodes": 5, "min_train_nodes": 5}


def weights(seed: int) -> dict[str, torch.Tensor]:
    draw = stream(seed, "mods")
    shapes = {"conv": (8, 3, 5, 5), "bias": (8,), "head": (10, 500), "scale": ()}
    return {name: 0.1 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}


BEFORE, AFTER = weights(0), weights(1)
UPDATE = {name: AFTER[name] - BEFORE[name] for name in BEFORE}


def theirs(mod: Any, norm: float) -> dict[str, Any]:
    """What Flower's mod sends of the new weights."""
    records = {"arrays": ArrayRecord(BEFORE), "config": ConfigRecord({"clipping_norm": norm})}
    message = Message(RecordDict(records), dst_node_id=1, message_type="train")
    context = Context(1, 1, {}, RecordDict(), {}, **MORE)

    def client(request: Message, context: Context) -> Message:
        content = {"arrays": ArrayRecord(AFTER), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=request)

    reply = mod(message, context, client)
    return {name: array.numpy() for name, array in reply.content["arrays"].items()}


@pytest.mark.parametrize("mod", [fixedclipping_mod, adaptiveclipping_mod])
@pytest.mark.parametrize("norm", [0.01, 0.5, 3.0, 1e6])
def test_clipping_is_the_same_bit_for_bit(mod: Any, norm: float) -> None:
    sent = theirs(mod, norm)
    released = FlowerFixedClipping(norm).release(Outgoing(UPDATE, stream(0, "ours")))
    for name, tensor in released.items():
        assert np.array_equal((BEFORE[name] + tensor).numpy(), sent[name])


def test_local_dp_is_the_same_bit_for_bit_without_noise_and_in_distribution_with_it() -> None:
    quiet = {"clipping_norm": 0.5, "sensitivity": 0.0, "epsilon": 1.0, "delta": 1e-5}
    sent = theirs(LocalDpMod(**quiet), 1.0)
    released = FlowerLocalDP(**quiet).release(Outgoing(UPDATE, stream(0, "ours")))
    assert all(np.array_equal((BEFORE[name] + tensor).numpy(), sent[name]) for name, tensor in released.items())

    loud = {**quiet, "sensitivity": 0.3}
    np.random.seed(0)  # noqa: NPY002
    sent = theirs(LocalDpMod(**loud), 1.0)
    noisy = FlowerLocalDP(**loud).release(Outgoing(UPDATE, stream(0, "ours")))
    residuals = [
        np.concatenate(
            [np.ravel(np.asarray(side[name]) - released[name].numpy()) for name in BEFORE if name != "scale"]
        )
        for side in ({name: sent[name] - BEFORE[name].numpy() for name in BEFORE}, noisy)
    ]
    std = FlowerLocalDP(**loud).std
    for residual in residuals:
        assert scipy.stats.kstest(residual / std, "norm").pvalue > 1e-3
    assert scipy.stats.ks_2samp(*residuals).pvalue > 1e-3
    # Neither clips or noises a 0-d parameter.
    assert float(noisy["scale"]) == float(UPDATE["scale"])
    assert float(sent["scale"]) == float(BEFORE["scale"] + UPDATE["scale"])


def test_adaptive_clipping_is_recorded_as_such_by_client_and_server(federation: Make, tmp_path: Path) -> None:
    wrapped = DifferentialPrivacyClientSideAdaptiveClipping(FedAvg(**ALL), 0.1, 5, initial_clipping_norm=0.25)
    mods = [recording_mod(tmp_path / "clients"), adaptiveclipping_mod]
    federation(mods).play(recorded(wrapped, tmp_path / "bundle", clients=tmp_path / "clients"), rounds=2)

    bundle = read_bundle(tmp_path / "bundle")
    first, second = (preferred(bundle.facts_of("client-0", index), "defences") for index in (1, 2))

    assert first == [{"name": "flower_fixed_clipping", "options": {"clipping_norm": 0.25, "adaptive": True}}]
    assert second[0]["options"]["clipping_norm"] != 0.25
    assert not any("sources disagree on defences" in found.text for found in contradictions_of(bundle, 1))
