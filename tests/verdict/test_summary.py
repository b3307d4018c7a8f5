"""Summaries against slow obvious oracles."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedglass.core.errors import AuditError, UsageError
from fedglass.core.metric_scale import Scale
from fedglass.verdict.gate import Gate
from fedglass.verdict.images import ImageScores
from fedglass.verdict.judge import judge
from fedglass.verdict.outcomes import outcomes_of
from fedglass.verdict.records import Certificate, Picture, Record
from fedglass.verdict.summary import Summary, interval, rank, read_summary, scales_of, share_interval, summarise


def make(key: str, psnr: Sequence[float | None], **fields: Any) -> Record:
    basic: dict[str, Any] = {
        "attack": "dlg",
        "attack_repr": "dlg()",
        "view": "server sees client 0's update",
        "round": 1,
        "client": "0",
        "repeat": 0,
        "seed": 0,
        "status": "done",
        "metrics": {"psnr": list(psnr), "rmse": [None if v is None else 1 / v for v in psnr]},
    }
    return Record(key=key, **{**basic, **fields})


def slow_bootstrap(samples: Sequence[Sequence[float]]) -> tuple[float, float]:
    chance = random.Random(1)
    means = []
    for _ in range(4000):
        drawn = [v for _ in samples for v in chance.choice(samples)]
        means.append(sum(drawn) / len(drawn))
    means.sort()
    return means[100], means[3899]


def test_the_images_of_a_record_are_ranked_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    passes, once = [], ImageScores.passing

    def counted(scores: ImageScores, metric: str, scale: Scale) -> list[bool]:
        passes.append(len(scores.metrics[metric]))
        return once(scores, metric, scale)

    monkeypatch.setattr(ImageScores, "passing", counted)

    def work(images: int) -> int:
        passes.clear()
        assert len(rank([make("a", [15.0, 25.0] * (images // 2))], Gate())) == images
        return len(passes)

    assert work(40) == work(4), "the scores of all images are computed once, not once for each image"


def test_interval_draws_whole_cases() -> None:
    samples = [[10.0, 11.0, 12.0], [20.0], [30.0, 31.0], [15.0], [12.0, 25.0]]
    found = interval(samples)
    assert found.mean == pytest.approx(np.mean([v for s in samples for v in s]))
    assert (found.low, found.high) == pytest.approx(slow_bootstrap(samples), rel=0.05)
    assert (found.images, found.resampled) == (9, "cases")


def test_interval_of_one_case_draws_its_images() -> None:
    found = interval([[10.0, 20.0, 30.0, 12.0], []])
    assert found.resampled == "images"
    assert (found.low, found.high) == pytest.approx(slow_bootstrap([[10.0], [20.0], [30.0], [12.0]]), rel=0.05)
    assert interval([[7.0]]).low is None


def test_identical_cases_are_wider_than_independent_images() -> None:
    clustered = interval([[v] * 10 for v in (10.0, 20.0, 30.0)])
    independent = interval([[v] for v in (10.0, 20.0, 30.0) for _ in range(10)])
    assert clustered.high is not None
    assert independent.high is not None
    assert clustered.high - clustered.mean > 2 * (independent.high - independent.mean)


@pytest.mark.parametrize("hits", [[[True] * 5], [[False] * 5, [False] * 5], [[True, False], [False]]])
def test_share_interval_claims_no_certainty(hits: list[list[bool]]) -> None:
    found = share_interval(hits)
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= found.mean <= found.high <= 1
    assert found.high - found.low > 0.2


def test_groups() -> None:
    records = [
        make("a", [10.0, 30.0], label_errors=1, labels_true=[1, 2], seconds=2.0, utility={"acc": 0.5}),
        make("b", [22.0, None], view="server sees client 1's update", seconds=4.0, utility={"acc": 0.7}),
        make("c", [40.0], attack="idlg", oracle=True),
        make("d", [], attack="sme", status="failed", error="no", metrics={}),
    ]
    summary = summarise(records, Gate())
    assert [g.attack for g in summary.attacks] == ["idlg", "dlg", "sme"]
    dlg = summary.attacks[1]
    assert (dlg.cases, dlg.failed, dlg.images, dlg.recovered) == (2, 0, 3, 2)
    assert dlg.metrics["psnr"].mean == pytest.approx(62 / 3)
    assert (dlg.label_errors, dlg.labels, dlg.seconds) == (1, 2, 3.0)
    assert dlg.utility == {"acc": pytest.approx(0.6)}
    assert summary.attacks[2].share is None
    assert [(g.attack, g.view) for g in summary.views] == [
        ("dlg", "server sees client 0's update"),
        ("dlg", "server sees client 1's update"),
        ("idlg", "server sees client 0's update"),
        ("sme", "server sees client 0's update"),
    ]


def test_one_view_each_is_not_repeated() -> None:
    assert summarise([make("a", [1.0]), make("b", [1.0], attack="idlg")], Gate()).views == []


@pytest.mark.parametrize(("metric", "order"), [("psnr", [30.0, 22.0, 10.0]), ("rmse", [30.0, 22.0, 10.0])])
def test_rank_puts_the_greatest_leak_first(metric: str, order: list[float]) -> None:
    picture = Picture(original="o.png", reconstruction="r.png")
    cases = rank([make("a", [10.0, None, 30.0], pictures=[picture]), make("b", [22.0])], Gate(metric, 0.5))
    assert [case.scores["psnr"] for case in cases] == order
    assert [case.picture for case in cases] == [None, None, picture]
    assert [case.image for case in cases] == [2, 0, 0]


def test_a_scoreless_attack_comes_last_whichever_way_the_metric_points() -> None:
    records = [make("a", [], metrics={}), make("b", [9.0], attack="idlg")]
    for gate in (Gate(), Gate(metric="rmse", threshold=0.1)):
        assert [g.attack for g in summarise(records, gate).attacks] == ["idlg", "dlg"]


def test_summary_file_round_trip_and_determinism(tmp_path: Path) -> None:
    records = [make("a", [10.0, 30.0]), make("b", [22.0, 11.0])]
    gate = Gate(threshold=25.0, max_share=0.3)
    path = tmp_path / "summary.json"
    summarise(records, gate, planned=5).write(path)
    first = path.read_bytes()
    found = read_summary(path)
    assert (found.judged_by(), found.planned) == (gate, 5)
    assert Summary.model_validate_json(first).verdict["exit_code"] == 3
    summarise(records, gate, planned=5).write(path)
    assert path.read_bytes() == first


def test_the_verdict_in_the_file_is_that_of_judge(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    bound = Certificate(method="record", accounting="gaussian", success=[0.02])
    certified = make("c", [], metrics={}, kind="certificate", attack="certificate", certificate=bound)
    records = [make("a", [10.0, 12.0]), certified]
    summarise(records, Gate()).write(path)
    verdict, found = judge(records, Gate()), read_summary(path).verdict
    lists = {"limits": list(verdict.limits), "by_value": list(verdict.by_value)}
    assert found == {**asdict(verdict), **lists, "sentence": verdict.sentence}
    assert (found["state"], found["at_most"], found["at_least"]) == ("clear", 0.02, None)
    assert [group.attack for group in read_summary(path).attacks] == ["dlg"]  # a certificate is not an attack


def test_the_gate_in_the_file_has_every_limit(tmp_path: Path) -> None:
    gate = Gate(max_singling_out=0.2, max_success=0.01, trust_declared=True, inconclusive_fails=False)
    summarise([], gate).write(tmp_path / "summary.json")
    assert read_summary(tmp_path / "summary.json").judged_by() == gate


def test_an_image_says_which_exact_method_read_it() -> None:
    (case,) = rank([make("a", [99.0], method="division", explains=True)], Gate())
    assert (case.method, case.explains, case.recovered) == ("division", True, True)


@pytest.mark.parametrize("content", ["", "{}", '{"gate": {"metric": "x"}}'])
def test_a_damaged_summary(tmp_path: Path, content: str) -> None:
    (tmp_path / "summary.json").write_text(content)
    with pytest.raises(AuditError, match="damaged"):
        read_summary(tmp_path / "summary.json")


def test_a_summary_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"schema_version": 1}')
    with pytest.raises(UsageError, match="written by another version of fedglass"):
        read_summary(tmp_path / "summary.json")


def test_no_records() -> None:
    summary = summarise([], Gate())
    assert (summary.verdict["exit_code"], summary.attacks, summary.worst) == (3, [], [])


def test_raw_images_count_as_recovered_and_are_ranked_by_what_leaked_more() -> None:
    refined = make("b", [12.0, 11.0], metrics_raw={"psnr": [13.0, 28.0]})
    records = [make("a", [22.0, 15.0]), refined]
    (group,) = summarise(records, Gate()).attacks
    assert (group.recovered, group.images) == (2, 4)
    assert group.metrics["psnr"].mean == pytest.approx(15.0)  # of what was handed over
    ranked = rank(records, Gate())
    assert [(case.key, case.image) for case in ranked] == [("b", 1), ("a", 0), ("a", 1), ("b", 0)]
    assert ranked[0].scores["psnr"] == 11.0
    assert ranked[0].scores_raw == {"psnr": 28.0}
    assert ranked[1].scores_raw == {}


def test_the_scale_of_a_metric_of_others_is_kept_with_the_verdict(tmp_path: Path) -> None:
    blur = Scale("Blur", "px", 2, higher_leaks=False, range=(0.0, None))
    gate = Gate("blur", 3.0, scales={"blur": blur})
    records = [make("a", [], metrics={"blur": [2.0, 5.0], "psnr": [10.0, 30.0]})]
    path = tmp_path / "summary.json"
    summarise(records, gate, scales={"psnr": Scale("PSNR")}).write(path)
    found = read_summary(path)
    assert (found.judged_by(), found.judged_by().scale) == (gate, blur)
    verdict = judge(records, found.judged_by())
    assert verdict.lead == "dlg recovered 1 of 2 private images (Blur below 3 px; best 2.00 px)."
    assert scales_of(records, found.scales) == {"blur": blur, "psnr": Scale("PSNR")}


def test_a_scale_that_was_not_told_is_looked_up() -> None:
    records = [make("a", [], metrics={"psnr": [1.0], "gone": [2.0]})]
    found = scales_of(records, {})
    assert (found["psnr"].unit, found["gone"]) == ("dB", Scale("gone"))


def test_the_best_image_is_a_recovered_one() -> None:
    """A flat colour scores 27.9 dB against the second image, so 27 dB show nothing of it."""
    record = make("a", [21.0, 27.0], blind={"psnr": [10.0, 27.9]})
    assert [(case.image, case.recovered) for case in rank([record], Gate())] == [(0, True), (1, False)]
    assert "recovered 1 of 2 private images (PSNR above 20 dB; best 21.0 dB)" in judge([record], Gate()).lead
    (outcome,) = outcomes_of([record], Gate())
    assert "best 21.0 dB" in outcome.sentence
    assert "its best was 27.0 dB" in judge([make("a", [19.0, 27.0], blind=record.blind)], Gate()).lead
