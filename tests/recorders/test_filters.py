"""The defences of other frameworks are recorded under the names of fedglass, where it can run them again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fedglass.recorders.defences import flower_clipping, flower_defences, is_adaptive, nvflare_defence
from fedglass.recordings.privacy import filter_problems, local_dp_std, same_filter


def part(name: str, **methods: Any) -> object:
    """A filter of NVFlare by its class's name."""
    return type(name, (), methods)()


def test_an_older_svt_privacy_is_another_mechanism() -> None:
    assert nvflare_defence(part("SVTPrivacy"), {"epsilon": 0.1}, "WEIGHT_DIFF", 1)["name"] == "SVTPrivacy"
    newer = part("SVTPrivacy", get_privacy_ledger=None)
    assert nvflare_defence(newer, {"epsilon": 0.1}, "WEIGHT_DIFF", 1)["name"] == "svt_privacy"


def test_a_filter_of_differences_has_our_name_and_its_steps() -> None:
    found = nvflare_defence(
        part("PercentilePrivacy"), {"percentile": 10, "gamma": 0.01, "data_kinds": []}, "WEIGHT_DIFF", 5
    )
    assert found == {"name": "percentile_privacy", "options": {"percentile": 10, "gamma": 0.01, "steps": 5}}
    assert list(filter_problems([found])) == []
    assert same_filter("PercentilePrivacy", [found["name"]])
    assert not same_filter("SVTPrivacy", [found["name"]])


def test_a_filter_of_full_weights_keeps_its_own_name_and_is_a_contradiction() -> None:
    found = nvflare_defence(part("SVTPrivacy", get_privacy_ledger=None), {"epsilon": 0.1}, "WEIGHTS", 1)
    assert found == {"name": "SVTPrivacy", "options": {"epsilon": 0.1, "data_kind": "WEIGHTS"}}
    (text,) = filter_problems([found])
    assert text == (
        "the filter 'SVTPrivacy' acted on full weights, but it is made for differences of weights: "
        "let the client send DataKind.WEIGHT_DIFF"
    )


@pytest.mark.parametrize("options", [{"percentile": 101}, {"gamma": 0}, {"gamma": -1.0}, {"gamma": 10**400}])
def test_a_filter_out_of_range_keeps_its_own_name_and_is_a_contradiction(options: dict[str, Any]) -> None:
    found = nvflare_defence(part("PercentilePrivacy"), options, "WEIGHT_DIFF", 1)
    assert found["name"] == "PercentilePrivacy"
    (text,) = filter_problems([found])
    assert "did nothing, because its options are out of range" in text


def test_other_filters_are_as_they_are() -> None:
    found = nvflare_defence(part("ExcludeVars"), {"exclude_vars": "h.*"}, "WEIGHTS", 1)
    assert found == {"name": "ExcludeVars", "options": {"exclude_vars": "h.*"}}


def test_mods_of_flower_have_our_names() -> None:
    options = {"clipping_norm": 1.0, "sensitivity": 1e-4, "epsilon": 10.0, "delta": 1e-5}
    noisy = type("LocalDpMod", (), options)()
    fixed = SimpleNamespace(__name__="fixedclipping_mod")
    adaptive = SimpleNamespace(__name__="adaptiveclipping_mod")
    found = flower_defences([noisy, fixed, adaptive], {"clipping_norm": 0.5})
    assert found == [
        {"name": "flower_local_dp", "options": options},
        {"name": "flower_fixed_clipping", "options": {"clipping_norm": 0.5}},
        {"name": "flower_fixed_clipping", "options": {"clipping_norm": 0.5, "adaptive": True}},
    ]
    assert local_dp_std(found) == pytest.approx(4.8448e-5, rel=1e-4)
    assert flower_clipping({"clipping_norm": "much"}, adaptive=False) is None


def test_hostile_options_are_no_noise() -> None:
    assert local_dp_std([{"name": "flower_local_dp", "options": {"epsilon": [1]}}]) == 0
    assert local_dp_std([{"name": "clip", "options": {}}]) == 0


def test_a_wrapper_is_adaptive_by_its_class() -> None:
    wrapper = type("DifferentialPrivacyClientSideAdaptiveClipping", (), {})
    assert is_adaptive([wrapper(), object()])
    assert not is_adaptive([object()])
