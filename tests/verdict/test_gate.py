"""The verdict: a leak is never passed over, and an audit that can not tell never passes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedglass.core.errors import UsageError
from fedglass.ledger.records import Flag, Record
from fedglass.verdict.gate import CHOICE, Gate
from fedglass.verdict.images import ImageScores

SERIOUS = Flag(name="optimiser failed", severity="serious", text="The true data has lower energy.")


def make(attack: str, values: Sequence[float | None], metric: str = "psnr", **fields: Any) -> Record:
    basic: dict[str, Any] = {
        "key": f"{attack}-{fields.get('repeat', 0)}",
        "attack_repr": f"{attack}()",
        "view": "server sees client 0's update",
        "round": 1,
        "client": "0",
        "repeat": 0,
        "seed": 0,
        "status": "done",
        "metrics": {metric: list(values)},
        "absence": "a defence hides it",
    }
    return Record(attack=attack, **{**basic, **fields})


def failed(attack: str = "dlg") -> Record:
    return make(attack, [], status="failed", error="out of memory.\nmore", metrics={})


def test_the_worst_attack_is_named() -> None:
    records = [
        make("inverting_gradients", [25.0, 31.2]),
        make("idlg", [21.0, 3.0]),
        make("dlg", [5.0, 6.0]),
        make("inverting_gradients", [22.0, 20.5], repeat=1),
    ]
    verdict = Gate().judge(records)
    assert verdict.sentence == (
        "2 of 3 attacks recovered private images: the worst, inverting_gradients, recovered 4 of 4 images "
        "(PSNR above 20 dB; best 31.2 dB)."
    )
    assert (verdict.passed, verdict.exit_code, verdict.state) == (False, 1, "leak")


def test_one_attack_alone() -> None:
    assert Gate().judge([make("dlg", [25.0])]).sentence == (
        "dlg recovered 1 of 1 private image (PSNR above 20 dB; best 25.0 dB)."
    )
    assert Gate().judge([make("dlg", [15.0])]).sentence == (
        "dlg recovered no private image (PSNR above 20 dB); its best was 15.0 dB. That protection hides them is shown "
        "against dlg alone."
    )
    choice = make("dlg", [15.0], absence=CHOICE)
    assert Gate().judge([choice]).sentence.endswith("its best was 15.0 dB.")


def test_a_pass_names_the_closest() -> None:
    verdict = Gate().judge([make("dlg", [5.0]), make("idlg", [12.9, 1.0])])
    assert verdict.sentence == (
        "None of the 2 attacks recovered a private image (PSNR above 20 dB); the closest, idlg, reached 12.9 dB. "
        "That protection hides them is shown against dlg and idlg alone."
    )
    assert (verdict.passed, verdict.exit_code, verdict.state) == (True, 0, "clear")


def test_what_hides_from_some_attacks_is_a_leak_where_one_reads_it() -> None:
    """A defence is credited against the attack that was played, and by no number of these."""
    hidden = [make(name, [7.0]) for name in ("dlg", "idlg", "sme")]
    assert Gate().judge(hidden).state == "clear"
    verdict = Gate().judge([*hidden, make("inverting_gradients", [25.0], absence=None)])
    assert (verdict.state, verdict.exit_code) == ("leak", 1)
    assert "shown against" not in verdict.sentence


@given(
    values=st.lists(st.floats(0.01, 0.99), min_size=1, max_size=9),
    threshold=st.floats(0.01, 0.99),
    max_share=st.floats(0, 0.99),
    metric=st.sampled_from(["psnr", "ssim", "lpips", "rmse"]),
)
def test_the_rule(values: list[float], threshold: float, max_share: float, metric: str) -> None:
    hits = [v > threshold if metric in ("psnr", "ssim") else v < threshold for v in values]
    gate = Gate(metric=metric, threshold=threshold, max_share=max_share)
    record = make("dlg", values, metric)
    near = any(ImageScores.of(record).near(metric, gate.scale, threshold))
    assert gate.judge([record]).exit_code == (1 if sum(hits) / len(values) > max_share else 3 if near else 0)


def test_what_comes_near_does_not_pass() -> None:
    """Whatever gate the audit was run with: its flags do not say what another gate calls near."""
    assert Gate().judge([make("a", [19.9])]).state == "inconclusive"
    assert Gate(threshold=35.0).judge([make("a", [34.0])]).state == "inconclusive"


def test_one_leaking_attack_is_not_diluted_by_others() -> None:
    records = [make("harmless", [1.0] * 99), make("bad", [30.0, 1.0])]
    assert Gate(max_share=0.4).judge(records).exit_code == 1
    assert Gate(max_share=0.5).judge(records).exit_code == 0


def test_an_allowed_share_is_said() -> None:
    records = [make("dlg", [30.0, 1.0, 1.0, 1.0])]
    assert "No attack recovered more than the 25% of images" in Gate(max_share=0.25).judge(records).sentence
    assert "more than the 20% that the gate allows" in Gate(max_share=0.2).judge(records).sentence


INCOMPLETE = {
    "no records": ([], "no case has run"),
    "a failure": ([make("a", [1.0]), failed()], r"1 of 2 cases failed \(dlg: out of memory. more\)"),
    "no metric": ([make("a", [1.0], "ssim")], r"PSNR is missing in 1 of 1 case"),
    "a skipped metric": (
        [make("a", [1.0], "ssim", skipped_metrics={"psnr": "no weights"})],
        r"PSNR is missing in 1 of 1 case \(no weights\)",
    ),
    "a null": ([make("a", [1.0, None])], "PSNR is missing"),
    "no images": ([make("a", [])], "PSNR is missing"),
}


@pytest.mark.parametrize("name", INCOMPLETE)
def test_what_is_not_complete_does_not_pass(name: str) -> None:
    records, words = INCOMPLETE[name]
    verdict = Gate().judge(records)
    assert (verdict.passed, verdict.exit_code, verdict.state) == (None, 3, "incomplete")
    assert re.search(words, verdict.sentence)


@pytest.mark.parametrize(("missing", "words"), [(2, "2 planned cases not run yet"), (None, "stopped")])
def test_cases_that_have_not_run(missing: int | None, words: str) -> None:
    verdict = Gate().judge([make("a", [1.0])], missing=missing)
    assert verdict.exit_code == 3
    assert words in verdict.sentence


def test_no_mixture_of_troubles_passes() -> None:
    """Every subset of good, failed, scoreless and flagged records: only the good ones alone pass cleanly."""
    good, bad, blank = make("a", [1.0]), failed("b"), make("c", [], metrics={})
    for size in range(4):
        for records in itertools.combinations([good, bad, blank], size):
            assert (Gate().judge(records).exit_code == 0) == (records == (good,))


def test_a_leak_outranks_a_failure() -> None:
    verdict = Gate().judge([make("a", [30.0]), failed()])
    assert (verdict.passed, verdict.exit_code) == (False, 1)
    assert "The audit is also incomplete: 1 of 2 cases failed" in verdict.sentence


def test_a_serious_flag_makes_a_pass_inconclusive() -> None:
    records = [make("a", [1.0], flags=[SERIOUS]), make("b", [1.0])]
    verdict = Gate().judge(records)
    assert (verdict.passed, verdict.exit_code, verdict.state) == (None, 3, "inconclusive")
    assert verdict.sentence.endswith("Yet absence of leakage is not shown in 1 of 2 cases (optimiser failed).")
    lenient = Gate(inconclusive_fails=False).judge(records)
    assert (lenient.passed, lenient.exit_code, lenient.state) == (True, 0, "inconclusive")


def test_a_pass_of_which_absence_was_not_shown_is_none() -> None:
    """No flag is no evidence: a record says in which way absence was shown, or the audit can not tell."""
    verdict = Gate().judge([make("a", [1.0], absence=None), make("b", [1.0])])
    assert (verdict.passed, verdict.exit_code, verdict.state) == (None, 3, "inconclusive")
    assert verdict.caveat == "Yet absence of leakage is not shown in 1 of 2 cases (absence not shown)."
    assert Gate(max_share=0.5).judge([make("a", [30.0, 1.0], absence=None)]).exit_code == 3


def test_what_a_guess_reaches_does_not_count_as_recovered() -> None:
    flat = make("a", [21.0], blind={"psnr": [21.0]})
    assert [t.recovered for t in Gate().tally([flat])] == [0]
    assert Gate().judge([make("a", [21.0], blind={"psnr": [19.9]})]).state == "leak"


def test_a_lead_over_guesses_that_is_not_clear_is_neither_a_leak_nor_a_pass() -> None:
    """A picture that is all but flat is not recovered by what is all but its mean colour."""
    near = make("a", [21.0], blind={"psnr": [20.5]})
    assert Gate().guessed(ImageScores.of(near)) == 1
    assert Gate().judge([near]).state == "inconclusive"


def test_lesser_flags_do_not() -> None:
    mild = Flag(name="oracle", severity="warning", text="")
    assert Gate().judge([make("a", [1.0], flags=[mild])]).state == "clear"


def test_a_serious_flag_does_not_excuse_a_leak() -> None:
    assert Gate().judge([make("a", [30.0], flags=[SERIOUS])]).state == "leak"


def test_oracle_knowledge_is_said() -> None:
    assert "oracle knowledge" in Gate().judge([make("a", [30.0], oracle=True)]).sentence


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


def test_an_image_that_a_refinement_destroyed_stays_recovered() -> None:
    destroyed = make("fedleak", [12.0, 9.0], metrics_raw={"psnr": [25.0, 8.0]})
    assert [(t.recovered, t.images, t.best) for t in Gate().tally([destroyed])] == [(1, 2, 25.0)]
    verdict = Gate().judge([destroyed])
    assert (verdict.passed, verdict.exit_code, verdict.state) == (False, 1, "leak")
    assert "recovered 1 of 2 private images (PSNR above 20 dB; best 25.0 dB)" in verdict.lead


def test_an_image_that_a_refinement_recovered_counts_and_a_broken_one_is_judged_by_the_raw() -> None:
    assert Gate().judge([make("fedleak", [25.0], metrics_raw={"psnr": [12.0]})]).state == "leak"
    assert Gate().judge([make("fedleak", [None], metrics_raw={"psnr": [12.0]})]).state == "clear"
    assert Gate().judge([make("fedleak", [None], metrics_raw={"psnr": [None]})]).state == "incomplete"
    low = Gate("lpips", 0.2)
    assert low.judge([make("fedleak", [0.9], "lpips", metrics_raw={"lpips": [0.1]})]).state == "leak"
    assert low.judge([make("fedleak", [0.9], "lpips", metrics_raw={"lpips": [0.8]})]).state == "clear"


def test_absence_that_was_shown_for_another_gate_is_not_shown() -> None:
    """Further runs were judged by the gate of that time: what they showed may be a leak by a stricter one."""
    for then, now in ((20.0, 15.0), (30.0, 20.0)):
        record = make("a", [10.0], absence=CHOICE, extra={"gate": {"metric": "psnr", "threshold": then}})
        assert Gate(threshold=then).judge([record]).exit_code == 0
        assert Gate(threshold=then + 5).judge([record]).exit_code == 0
        verdict = Gate(threshold=now).judge([record])
        assert verdict.exit_code == 3
        assert "audit again in a new directory" in verdict.caveat
    both = {"metrics": {"psnr": [10.0], "ssim": [0.1]}}
    record = make("a", [10.0], absence=CHOICE, extra={"gate": {"metric": "psnr", "threshold": 20.0}}, **both)
    assert Gate(metric="ssim", threshold=0.5).judge([record]).exit_code == 3


def test_images_that_are_in_several_messages_are_told_to_count_in_each() -> None:
    told = "counts in each"

    def record(owners: list[str], labels: list[int]) -> Record:
        return make("dlg", [30.0] * len(owners), owners=owners, labels_true=labels)

    again = [record(["a", "b"], [1, 2]), record(["a"], [1])]
    assert told in Gate().judge(again).sentence
    others = [record(["a", "b"], [1, 2]), record(["a"], [3])]  # of another federation
    assert told not in Gate().judge(others).sentence
