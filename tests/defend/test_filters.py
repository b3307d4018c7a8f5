"""The filters of NVFlare and the mods of Flower: their options, what they bound, and what they leave out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Training
from fedglass.defend import defence
from fedglass.defend.filters import FlowerFixedClipping, FlowerLocalDP, PercentilePrivacy, SVTPrivacy
from fedglass.defend.noise import GaussianNoise
from fedglass.defend.noise_model import NoBound, NoiseModel, noise_model
from fedglass.fl.release import Chain, Outgoing, Protection

FLIP = FlowerLocalDP(clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0, delta=1e-5)


def released(part: object, **tensors: torch.Tensor) -> dict[str, torch.Tensor]:
    return dict(part.release(Outgoing(tensors, stream(0, "filters"))))  # type: ignore[attr-defined]


def model_of(*parts: object) -> NoiseModel | NoBound:
    return noise_model(Protection(release=Chain(tuple(parts))), Training(lr=0.1), 8)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: defence("percentile_privacy", percentile=101), r"percentile must be in \[0, 100\], got 101"),
        (lambda: defence("percentile_privacy", percentile=-1), r"percentile must be in \[0, 100\], got -1"),
        (lambda: defence("percentile_privacy", gamma=0), "gamma must be a finite number above 0, got 0"),
        (lambda: defence("percentile_privacy", gamma=-0.01), "gamma must be a finite number above 0"),
        (lambda: defence("percentile_privacy", gamma=10**400), "gamma must be a finite number above 0"),
        (lambda: defence("svt_privacy", gamma=0), "gamma must be a finite number above 0"),
        (lambda: defence("svt_privacy", fraction=1.1), r"fraction must be in \[0, 1\]"),
        (lambda: defence("svt_privacy", epsilon=1.0, epsilon_query=2.0), "must be above 0 and sum to epsilon"),
        (lambda: defence("svt_privacy", epsilon_release=0.0), "epsilon_release must be a finite number above 0"),
        (
            lambda: defence("flower_local_dp", clipping_norm=1, sensitivity=1, epsilon=0, delta=0.1),
            "epsilon must be a finite number above 0",
        ),
        (
            lambda: defence("flower_local_dp", clipping_norm=1, sensitivity=1, epsilon=1, delta=1),
            r"delta must be in \[0, 1\)",
        ),
        (lambda: defence("flower_fixed_clipping", clipping_norm=0), "clipping_norm must be a finite number above 0"),
    ],
)
def test_options_out_of_range_are_refused_in_one_sentence(call: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        call()
    assert str(error.value).count(". ") == 0


def test_percentile_privacy_takes_one_percentile_over_all_tensors_and_divides_by_the_steps() -> None:
    weight, bias = torch.tensor([0.1, -0.2, 0.3, -0.4]), torch.tensor([5.0, -6.0, 0.0, 7.0])
    found = released(PercentilePrivacy(percentile=50, gamma=0.5, steps=2), weight=weight, bias=bias)
    assert found["weight"].tolist() == pytest.approx([0.0, 0.0, 0.0, -0.4])
    assert found["bias"].tolist() == [1.0, -1.0, 0.0, 1.0]


def test_percentile_privacy_removes_nothing_where_enough_entries_are_zero() -> None:
    weight = torch.cat([torch.zeros(20), torch.linspace(1e-6, 1e-3, 80)])
    found = released(PercentilePrivacy(), weight=weight)
    assert torch.equal(found["weight"], weight)


def test_scalars_pass_every_filter() -> None:
    scalar, weight = torch.tensor(100.0), torch.full((50,), 3.0)
    for part in (PercentilePrivacy(), SVTPrivacy(), FlowerFixedClipping(1.0), FLIP):
        assert float(released(part, weight=weight, scalar=scalar)["scalar"]) == 100.0


def test_svt_privacy_sends_a_fraction_and_counts_the_release() -> None:
    weight = 1e-3 * torch.randn(5000, generator=stream(1, "weights"))
    found = released(SVTPrivacy(fraction=0.1, replace=False), weight=weight)["weight"]
    assert int((found != 0).sum()) == 500
    assert SVTPrivacy().spent(7_033_290) == pytest.approx(703_329 * 0.1 + 0.1)
    assert SVTPrivacy(epsilon_release=2.0).spent(5000) == pytest.approx(2.1)
    assert SVTPrivacy(fraction=0.0).spent(5000) == 0
    assert not released(SVTPrivacy(fraction=0.0), weight=weight)["weight"].any()


def test_svt_privacy_does_not_wait_for_ever() -> None:
    quiet = SVTPrivacy(epsilon=1e12, gamma=1e-5, tau=1.0)
    with pytest.raises(UsageError, match="lower tau or fraction"):
        released(quiet, weight=torch.ones(10))


def test_local_dp_is_bounded_by_its_clip_and_its_noise() -> None:
    found = model_of(FLIP)
    assert isinstance(found, NoiseModel)
    assert found.std == pytest.approx(4.8448e-5, rel=1e-4)
    assert found.per_round == pytest.approx(20_640.66, rel=1e-5)
    assert found.plain.release == Chain((FlowerFixedClipping(1.0),))


def test_filters_after_the_noise_keep_the_bound() -> None:
    for part in (PercentilePrivacy(), SVTPrivacy(), FlowerFixedClipping(1.0)):
        found = model_of(FlowerFixedClipping(2.0), GaussianNoise(0.5), part)
        assert isinstance(found, NoiseModel)
        assert (found.per_round, found.testable) == (4.0, False)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ((PercentilePrivacy(),), ""),
        ((FlowerFixedClipping(1.0),), ""),
        ((SVTPrivacy(),), "place"),
        ((SVTPrivacy(), GaussianNoise(1.0)), "mixed"),
        ((FlowerFixedClipping(1.0, adaptive=True),), "adaptive"),
        ((FlowerFixedClipping(1.0, adaptive=True), GaussianNoise(1.0)), "adaptive"),
    ],
)
def test_filters_without_a_bound(parts: tuple[object, ...], why: str) -> None:
    found = model_of(*parts)
    assert isinstance(found, NoBound)
    assert found.why == why
