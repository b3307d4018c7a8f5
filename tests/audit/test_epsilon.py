"""Epsilon by canaries: honest mechanisms are consistent, broken ones are refuted, and the rest is undecided."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedglass.audit.epsilon import (
    Accounted,
    CanaryScores,
    EpsilonAudit,
    audited_clients,
    describe,
    judge_scores,
    pooled,
    simulated_epsilon,
)
from fedglass.bounds.success import gdp_epsilon
from fedglass.core.rng import stream
from fedglass.core.types import Training
from fedglass.defend.dpsgd import DPSGD, PoissonDPSGD
from fedglass.defend.filters import FlowerLocalDP
from fedglass.defend.noise import Clip, GaussianNoise, LaplacianNoise
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation
from fedglass.fl.local import GradientFn, Step
from fedglass.fl.release import AsIs, Chain, Release

ROOT = Path(__file__).parents[2]
DELTA = 1e-5


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("measure_epsilon", ROOT / "tools" / "measure_epsilon.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["measure_epsilon"] = module  # which its dataclass looks up
    spec.loader.exec_module(module)
    return module


def audit(
    *, gradient: GradientFn | None = None, release: Release | None = None, canaries: int = 300, **options: Any
) -> EpsilonAudit:
    federation: Federation = tool().federation_of("example", 1.0)
    client = federation.clients[0]
    if gradient is not None:
        client = replace(client, gradient=gradient)
    if release is not None:
        client = replace(federation.clients[0], gradient=tool().federation_of("update", 1.0).clients[0].gradient)
        client = replace(client, release=release)
    training = options.pop("training", federation.training)
    federation = replace(federation, clients=[client], training=training)
    return simulated_epsilon(federation, client, canaries, seed=0, delta=DELTA, **options)


def test_lower_bounds_are_rarely_above_the_truth_and_then_by_little() -> None:
    """The target of docs/epsilon.md, on the grid of tools/measure_epsilon.py."""
    measured = list(tool().measure("example"))
    above = [m.audit.lower / m.truth for m in measured if m.audit.lower > m.truth]

    assert len(measured) == 36
    assert len(above) <= 4
    assert max(above, default=1.0) <= 1.1
    assert all(m.audit.lower > 0.15 * m.truth for m in measured if m.count == 1000)
    assert all(m.audit.finding != "not as declared" for m in measured if m.audit.lower <= m.truth)


@pytest.mark.parametrize("mu", [1.0, 4.0])
def test_updates_of_canary_clients_show_less_than_the_truth_but_not_nothing(mu: float) -> None:
    federation: Federation = tool().federation_of("update", mu)
    found = simulated_epsilon(federation, federation.clients[0], 400, seed=1, delta=DELTA)

    assert 0.15 * gdp_epsilon(mu, DELTA) < found.lower < gdp_epsilon(mu, DELTA)


@dataclass(frozen=True)
class NoiseLeftOut(DPSGD):
    """DP-SGD that clips and forgets its noise."""

    def noisy_mean(self, step: Step, size: int) -> list[Tensor]:
        return [total / size for total in self.clipped_sum(step)]


@dataclass(frozen=True)
class ClippingLeftOut(DPSGD):
    """DP-SGD that adds its noise to the plain sum."""

    def clipped_sum(self, step: Step) -> list[Tensor]:
        return DPSGD(1e9, 0.0).clipped_sum(step)


def test_noise_that_is_left_out_is_refuted() -> None:
    declared = gdp_epsilon(1.0, DELTA)
    broken = audit(gradient=NoiseLeftOut(1.0, 1.0), declared=declared, gaussian=True)
    unassuming = audit(gradient=NoiseLeftOut(1.0, 1.0), declared=2.0)

    assert broken.finding == "not as declared"
    assert broken.lower == pytest.approx(broken.ceiling)
    assert unassuming.finding == "not as declared"
    assert unassuming.lower == unassuming.lower_any


def test_clipping_that_is_left_out_is_refuted() -> None:
    assert (
        audit(gradient=ClippingLeftOut(1.0, 1.0), declared=gdp_epsilon(1.0, DELTA), gaussian=True).finding
        == "not as declared"
    )


def test_the_same_mechanism_with_its_noise_is_consistent() -> None:
    honest = audit(gradient=DPSGD(1.0, 1.0))

    assert honest.finding == "consistent"
    assert 0 < honest.lower_any < honest.lower < gdp_epsilon(1.0, DELTA) == honest.accounted.upper


def test_defaults_of_a_platform_that_do_not_keep_their_epsilon_are_refuted() -> None:
    """FLIP's LocalDpMod: clipped to 1, and noise for a sensitivity of 1e-4 at a declared epsilon of 10."""
    found = audit(release=FlowerLocalDP(clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0, delta=DELTA))

    assert found.finding == "not as declared"
    assert found.accounted.declared == 10
    assert found.accounted.upper is not None
    assert found.accounted.upper > 1e8
    assert "10 is declared" in found.sentence


def test_the_same_mod_with_an_honest_sensitivity_is_consistent() -> None:
    found = audit(release=FlowerLocalDP(clipping_norm=1.0, sensitivity=1.0, epsilon=8.0, delta=DELTA))

    assert found.finding == "consistent"
    assert 1 < found.lower < 8


@pytest.mark.parametrize(
    ("gradient", "training"),
    [
        (DPSGD(1.0, 0.5), Training(lr=0.1, epochs=3, batch_size=3)),
        (DPSGD(1.0, 2.0), Training(lr=0.1, steps=4)),
        (PoissonDPSGD(1.0, 1.0, 0.5), Training(lr=0.1, steps=2)),
    ],
)
def test_several_steps_stay_below_the_accountant(gradient: DPSGD, training: Training) -> None:
    found = audit(gradient=gradient, training=training)

    assert found.accounted.upper is not None
    assert 0 < found.lower < found.accounted.upper
    assert found.accounted.gaussian is (type(gradient) is DPSGD)


def test_too_few_canaries_are_no_consistency() -> None:
    few = audit(gradient=DPSGD(1.0, 0.1), canaries=20)

    assert few.finding == "too few canaries"
    assert few.exit_code == 3
    assert "20 canaries show epsilon of at most" in few.sentence


def test_what_is_not_accounted_has_nothing_to_compare_with() -> None:
    unclipped = audit(release=GaussianNoise(1.0), canaries=20)
    laplacian = audit(release=Chain((Clip(1.0), LaplacianNoise(1.0))), canaries=20)

    assert unclipped.finding == laplacian.finding == "nothing declared"
    assert unclipped.accounted.upper is laplacian.accounted.upper is None
    assert audit(release=GaussianNoise(1.0), declared=3.0, canaries=200).finding == "not as declared"


def test_each_kind_of_client_is_audited_once_and_undefended_ones_are_not() -> None:
    federation: Federation = tool().federation_of("example", 1.0)
    first: Client = federation.clients[0]
    clients: Sequence[Client] = [
        first,
        replace(first, name="b"),
        replace(first, name="c", gradient=DPSGD(2.0, 1.0)),
        replace(tool().federation_of("update", 1.0).clients[0], name="d"),
        replace(tool().federation_of("update", 1.0).clients[0], name="e", release=AsIs()),
    ]

    assert [c.name for c in audited_clients(replace(federation, clients=clients))] == ["a", "c", "d"]


def test_canaries_that_share_a_message_count_together() -> None:
    """Four canaries at half the length each are one message at full length."""
    coins = torch.rand(400, generator=stream(0, "coins")) < 0.5
    scores = torch.randn(400, generator=stream(0, "scores"), dtype=torch.float64) + coins
    accounted = Accounted(gdp_epsilon(2.0, DELTA), None, gaussian=True)
    alone = judge_scores("", CanaryScores(scores, coins), accounted, DELTA)
    shared = judge_scores("", CanaryScores(scores, coins, per_message=4), accounted, DELTA)

    assert alone.lower < shared.lower < gdp_epsilon(2.0, DELTA)
    assert shared.lower_any == alone.lower_any
    assert pooled([CanaryScores(scores, coins, 4), CanaryScores(scores, coins, 2)]).per_message == 2


def test_an_audit_is_json_even_where_epsilon_is_infinite() -> None:
    found = audit(release=FlowerLocalDP(clipping_norm=1.0, sensitivity=0.0, epsilon=10.0, delta=DELTA), canaries=300)

    assert found.accounted.upper == math.inf
    assert json.loads(json.dumps(found.as_json(), allow_nan=False))["upper"] is None
    assert found.finding == "not as declared"
    assert any("infinite" in line for line in describe(found))
