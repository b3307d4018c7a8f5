"""The gate: what counts as recovered, and which limits would pass everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fedglass.core.errors import UsageError
from fedglass.verdict.doubts import DoubtKind, doubt
from fedglass.verdict.gate import Gate
from fedglass.verdict.images import ImageScores
from fedglass.verdict.records import Certificate, Record


def make(attack: str, values: Sequence[float | None], **fields: Any) -> Record:
    basic: dict[str, Any] = {
        "key": attack,
        "attack_repr": f"{attack}()",
        "view": "server sees client 0's update",
        "round": 1,
        "client": "0",
        "repeat": 0,
        "seed": 0,
        "status": "done",
        "metrics": {"psnr": list(values)},
    }
    return Record(attack=attack, **{**basic, **fields})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"metric": "pnsr"}, "did you mean 'psnr'"),
        ({"metric": "ssim"}, "gate.threshold must lie between -1 and 1 for ssim, got 20"),
        ({"metric": "ssim", "threshold": 1.0}, "gate.threshold"),
        ({"metric": "lpips", "threshold": 0.0}, "gate.threshold"),
        ({"threshold": float("nan")}, "gate.threshold"),
        ({"max_share": 25}, "write 25 % as 0.25"),
        ({"max_share": -0.1}, "gate.max_share"),
    ],
)
def test_gates_that_could_never_fail_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Gate(**fields)


def test_the_attack_that_leaked_most_comes_first() -> None:
    records = [
        make("a", [25.0, 1.0]),
        make("b", [21.0, 22.0]),
        make("c", [30.0, 1.0], oracle=True),
        make("mute", [90.0], doubts=[doubt(DoubtKind.ZERO_UPDATE)]),
        make("broken", [], status="failed", error="no", metrics={}),
        make("played", [90.0], kind="game"),
    ]
    found = [(tally.attack, tally.recovered, tally.images, tally.best, tally.oracle) for tally in Gate().tally(records)]
    assert found == [("b", 2, 2, 22.0, False), ("c", 1, 2, 30.0, True), ("a", 1, 2, 25.0, False)]


def test_images_that_a_refinement_recovered_are_counted_apart() -> None:
    refined = make("fedleak", [25.0, 12.0, 9.0], metrics_raw={"psnr": [12.0, 25.0, 8.0]})
    assert [(t.recovered, t.refined, t.images) for t in Gate().tally([refined])] == [(2, 1, 3)]
    low = Gate("lpips", 0.2)
    kept = make("fedleak", [], metrics={"lpips": [0.9]}, metrics_raw={"lpips": [0.1]})
    assert [t.recovered for t in low.tally([kept])] == [1]


def test_a_blend_is_no_guess() -> None:
    """Two images that one reconstruction shows count once, and the other is not said to be as good as guessed."""
    scores = ImageScores({"psnr": [25.0, 24.0]}, blind={"psnr": [5.0, 5.0]}, blends=[[0, 1], [0, 1]])
    assert (Gate().hits(scores), Gate().guessed(scores)) == ([True, False], 0)
    flat = ImageScores({"psnr": [25.0, 24.0]}, blind={"psnr": [5.0, 23.5]})
    assert (Gate().hits(flat), Gate().guessed(flat)) == ([True, False], 1)


@pytest.mark.parametrize("threshold", [20.0, 30.0, 60.0, 99.0])
def test_no_threshold_hides_a_sure_recovery(threshold: float) -> None:
    scores = ImageScores({"psnr": [20.5]}, blind={"psnr": [5.0]})
    gate = Gate(threshold=threshold)
    assert (gate.hits(scores), gate.partly(scores)) == ([threshold < 20.5], [threshold > 20.5])


def test_what_a_certificate_allows_is_the_worst_record_at_the_latest_planned_round() -> None:
    def bound(**fields: Any) -> Record:
        told = Certificate(method="record", accounting="gaussian", **fields)
        return make("certificate", [], kind="certificate", certificate=told, metrics={})

    gate = Gate()
    assert gate.allowed(bound(success=[0.01, 0.04, 0.02])) == 0.04
    assert gate.allowed(bound(success=[0.01], success_planned=0.5, planned=9)) == 0.5
    assert gate.allowed(bound(success=[0.3], success_planned=0.2, planned=1)) == 0.3
    assert gate.allowed(bound(success=[])) == gate.allowed(make("certificate", [], kind="certificate")) == 1.0
    assert [gate.certifies(bound(success=[value])) for value in (0.05, 0.0500001)] == [True, False]


def of_public(metric: str, values: Sequence[float]) -> Record:
    return make("certificate", [], kind="certificate", metrics={}, blind_public={metric: list(values)})


def test_a_threshold_that_a_guess_passes_is_too_low_and_another_is_proposed() -> None:
    """35 of 100 chest X-rays are guessed at 20 dB: at the proposed threshold at most 5 of 100 are."""
    values = [14.0] * 65 + [20.5 + i / 10 for i in range(35)]
    found = Gate().proposed_threshold(of_public("psnr", values))
    assert found == (0.35, 23.4)
    assert sum(value > found[1] for value in values) <= 5 < sum(value > found[1] - 0.1 for value in values)
    (told,) = Gate().doubts_of_certificate(of_public("psnr", values))
    assert told.kind is DoubtKind.LOW_THRESHOLD
    assert Gate(threshold=23.4).proposed_threshold(of_public("psnr", values)) is None


def test_where_less_is_more_the_proposed_threshold_lies_lower() -> None:
    values = [0.4] * 50 + [0.05 + i / 1000 for i in range(50)]
    found = Gate("rmse", 0.1).proposed_threshold(of_public("rmse", values))
    assert found is not None
    assert found == (0.5, 0.055)
    assert sum(value < found[1] for value in values) <= 5


def test_a_few_public_images_propose_nothing() -> None:
    assert Gate().proposed_threshold(of_public("psnr", [30.0] * 19)) is None
