"""The verdict: a leak needs a demonstration, a pass needs a certificate of every message, and nothing else passes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from fedglass.bounds.success import Game, gdp_success
from fedglass.core.errors import UsageError
from fedglass.verdict.collect_doubts import RARE, flag, with_refutations
from fedglass.verdict.doubts import Doubt, DoubtKind, doubt
from fedglass.verdict.gate import Gate
from fedglass.verdict.judge import Verdict, judge
from fedglass.verdict.records import BASE_RATE, Certificate, Record
from fedglass.verdict.texts import ALLOWED, LIMITS, PROTECT, TABLE

VIEW = "the server sees client 0's update"
TRUSTING = Gate(trust_declared=True)


def record(kind: str, **fields: Any) -> Record:
    basic: dict[str, Any] = {
        "attack": {"game": "singling_out", "certificate": "certificate"}.get(kind, "dlg"),
        "attack_repr": "attack()",
        "view": VIEW,
        "round": 1,
        "client": "client 0",
        "repeat": 0,
        "seed": 0,
        "status": "done",
    }
    named = {**basic, **fields}
    key = f"{kind}-{named['attack']}-{abs(hash((named['view'], named['round'], named['repeat'])))}"
    return Record(**{"key": key, "kind": kind, **named})


def attack(*psnr: float | None, **fields: Any) -> Record:
    return record("attack", **{"metrics": {"psnr": list(psnr)}, **fields})


def failed() -> Record:
    return attack(attack="sme", status="failed", error="out of memory.\nmore", metrics={})


def game(wins: int = 29, records: int = 32, **fields: Any) -> Record:
    """A game with a control of as many records, none of them named, and exact ranks."""
    ranks = [0.001] * wins + [0.5] * (records - wins)
    rate = wins / records
    told: dict[str, Any] = {
        "records": records,
        "candidates": 1000,
        "top1": rate,
        "low": max(0.0, rate - 0.15),
        "high": min(1.0, rate + 0.1),
        "control": "held_out",
        "control_top1": 0.0,
        "control_low": 0.0,
        "control_high": 0.1,
        "rank_p": ranks,
        "control_rank_p": [0.5] * records,
    }
    return record("game", game=Game(**{**told, **fields}))


def certified(*mus: float, doubts: Sequence[Doubt] = (), told: dict[str, Any] | None = None, **fields: Any) -> Record:
    """The check of a message with Gaussian noise at these distances; without any, there is no certificate."""
    success = [gdp_success(BASE_RATE, mu) for mu in mus]
    basic: dict[str, Any] = {"method": "record", "accounting": "gaussian", "success": success, "mu": list(mus)}
    found = Certificate(**{**basic, **(told or {})}) if mus else None
    return record("certificate", certificate=found, doubts=list(doubts), **fields)


LEAKING, MISSED, ORACLE = attack(25.0), attack(9.0), attack(30.0, attack="given", oracle=True)
EXPOSING, HARMLESS = game(29), game(0)
CERTIFIED, NO_NOISE = certified(0.4, 1.0), certified(doubts=[doubt(DoubtKind.NO_NOISE)])


def state(*records: Record, gate: Gate | None = None, missing: int | None = 0) -> tuple[str, int]:
    verdict = judge(records, gate or Gate(), missing)
    return verdict.state, verdict.exit_code


def reason(verdict: Verdict, kind: DoubtKind) -> bool:
    """Whether a verdict's step is the one of that kind."""
    return bool(TABLE[kind].step) and verdict.step == TABLE[kind].step


def test_precedence() -> None:
    """Each verdict where everything that outranks it is left out."""
    bad = failed()
    assert state(LEAKING, EXPOSING, bad, CERTIFIED) == ("leak", 1)
    assert state(MISSED, EXPOSING, bad, CERTIFIED) == ("exposed", 1)
    assert state(MISSED, HARMLESS, bad, CERTIFIED) == ("incomplete", 3)
    assert state(MISSED, HARMLESS, CERTIFIED) == ("clear", 0)
    assert state(MISSED, HARMLESS, NO_NOISE) == ("inconclusive", 3)
    assert state(MISSED, HARMLESS, NO_NOISE, gate=Gate(inconclusive_fails=False)) == ("inconclusive", 0)


@pytest.mark.parametrize(("missing", "words"), [(2, "2 planned cases not run yet"), (None, "stopped")])
def test_cases_that_have_not_run_do_not_pass_and_do_not_hide_a_leak(missing: int | None, words: str) -> None:
    verdict = judge([MISSED, CERTIFIED], Gate(), missing)
    assert (verdict.state, verdict.exit_code, verdict.passed) == ("incomplete", 3, None)
    assert words in verdict.sentence
    leak = judge([LEAKING, CERTIFIED], Gate(), missing)
    assert (leak.state, leak.exit_code) == ("leak", 1)
    assert "The audit is also incomplete: " in leak.caveat
    assert words in leak.caveat


INCOMPLETE = {
    "no records": ([], "no case has run"),
    "a failure": ([MISSED, failed()], "1 of 2 cases failed (sme: out of memory. more)"),
    "no metric": ([attack(metrics={"ssim": [1.0]})], "PSNR is missing in 1 of 1 case"),
    "a skipped metric": (
        [attack(metrics={"ssim": [1.0]}, skipped_metrics={"psnr": "no weights"})],
        "PSNR is missing in 1 of 1 case (no weights)",
    ),
    "a null": ([attack(1.0, None)], "PSNR is missing"),
    "no images": ([attack()], "PSNR is missing"),
    "a zero update": (
        [attack(9.0, doubts=[doubt(DoubtKind.ORACLE_USED, facts=["labels"]), doubt(DoubtKind.ZERO_UPDATE)])],
        "there was nothing to attack in 1 of 1 case (zero update)",
    ),
}


@pytest.mark.parametrize("name", INCOMPLETE)
def test_what_is_not_complete_does_not_pass(name: str) -> None:
    records, words = INCOMPLETE[name]
    verdict = judge(records, Gate())
    assert (verdict.passed, verdict.exit_code, verdict.state) == (None, 3, "incomplete")
    assert words in verdict.sentence


def test_no_mixture_of_troubles_passes() -> None:
    """Every subset of these records passes only where each of its messages is certified and all cases ran."""
    blank = attack(attack="blank", metrics={})
    other = certified(view="another", doubts=[doubt(DoubtKind.NO_NOISE)])
    everything = [MISSED, CERTIFIED, HARMLESS, failed(), blank, other]
    for size in range(len(everything) + 1):
        for records in itertools.combinations(everything, size):
            sound = CERTIFIED in records and not {id(each) for each in records} & {id(each) for each in everything[3:]}
            assert (judge(records, Gate()).exit_code == 0) == sound


# LEAK


def test_the_worst_attack_is_named() -> None:
    records = [
        attack(25.0, 31.2, attack="inverting_gradients"),
        attack(21.0, 3.0, attack="idlg"),
        attack(5.0, 6.0),
        attack(22.0, 20.5, attack="inverting_gradients", repeat=1),
    ]
    verdict = judge(records, Gate())
    assert verdict.sentence == (
        "2 of 3 attacks recovered private images: the worst, inverting_gradients, recovered 4 of 4 images "
        "(PSNR above 20 dB; best 31.2 dB)."
    )
    assert (verdict.passed, verdict.exit_code, verdict.state, verdict.step) == (False, 1, "leak", PROTECT)
    assert judge([LEAKING], Gate()).sentence == "dlg recovered 1 of 1 private image (PSNR above 20 dB; best 25.0 dB)."


def test_one_leaking_attack_is_not_diluted_by_others() -> None:
    records = [attack(*[1.0] * 99, attack="harmless"), attack(30.0, 1.0, attack="bad")]
    assert judge(records, Gate(max_share=0.4)).exit_code == 1
    assert judge(records, Gate(max_share=0.5)).exit_code == 0


def test_a_share_that_the_plan_allows_is_a_leak_that_passes() -> None:
    records = [attack(30.0, 1.0, 1.0, 1.0), NO_NOISE]
    allowed = judge(records, Gate(max_share=0.25))
    assert (allowed.state, allowed.exit_code, allowed.passed) == ("leak", 0, True)
    assert allowed.caveat == ALLOWED
    assert "no more than the 25 % that the gate allows" in allowed.lead
    beyond = judge(records, Gate(max_share=0.2))
    assert (beyond.state, beyond.exit_code, beyond.caveat) == ("leak", 1, "")
    assert "more than the 20 % that the gate allows" in beyond.lead
    unfinished = judge(records, Gate(max_share=0.25), missing=1)
    assert (unfinished.state, unfinished.exit_code, unfinished.passed) == ("leak", 3, None)


@given(
    values=st.lists(st.floats(0.01, 0.99), min_size=1, max_size=9),
    threshold=st.floats(0.01, 0.99),
    max_share=st.floats(0, 0.99),
    metric=st.sampled_from(["psnr", "ssim", "lpips", "rmse"]),
)
def test_the_rule(values: list[float], threshold: float, max_share: float, metric: str) -> None:
    hits = sum(v > threshold if metric in ("psnr", "ssim") else v < threshold for v in values)
    gate = Gate(metric=metric, threshold=threshold, max_share=max_share)
    verdict = judge([attack(metrics={metric: values}), CERTIFIED], gate)
    assert verdict.state == ("leak" if hits else "clear")
    assert verdict.exit_code == (1 if hits / len(values) > max_share else 0)


def test_oracle_attacks_decide_nothing() -> None:
    assert state(ORACLE, CERTIFIED) == ("clear", 0)
    assert state(ORACLE, EXPOSING, NO_NOISE) == ("exposed", 1)
    verdict = judge([ORACLE, NO_NOISE], Gate())
    assert (verdict.state, verdict.exit_code) == ("inconclusive", 3)
    assert "given recovered 1 of 1 image with oracle knowledge" in verdict.caveat
    read = attack(attack="exact", metrics={}, method="division", explains=True, oracle=True, labels_recovered=[1])
    assert state(read, NO_NOISE) == ("inconclusive", 3)


def test_a_serious_doubt_does_not_excuse_a_leak() -> None:
    assert state(attack(30.0, doubts=[doubt(DoubtKind.NO_TRUTH)]), NO_NOISE) == ("leak", 1)


def test_what_a_guess_reaches_does_not_count_as_recovered() -> None:
    assert state(attack(21.0, blind={"psnr": [19.9]})) == ("leak", 1)
    # A picture that is all but flat is not recovered by what is all but its mean colour.
    for guess in (21.0, 20.5):
        assert state(attack(21.0, blind={"psnr": [guess]})) == ("inconclusive", 3)


def test_a_blend_counts_at_most_once() -> None:
    blended = attack(25.0, 24.0, 9.0, 9.0, blends=[[0, 1], [0, 1], [], []])
    assert "recovered 1 of 4" in judge([blended], Gate()).lead
    assert state(blended, gate=Gate(max_share=0.25)) == ("leak", 0)
    assert "recovered 2 of 4" in judge([attack(25.0, 24.0, 9.0, 9.0)], Gate()).lead


def test_images_that_a_refinement_destroyed_stay_recovered_and_broken_ones_are_judged_raw() -> None:
    destroyed = attack(12.0, 9.0, metrics_raw={"psnr": [25.0, 8.0]})
    assert "recovered 1 of 2 private images (PSNR above 20 dB; best 25.0 dB)" in judge([destroyed], Gate()).lead
    assert state(attack(None, metrics_raw={"psnr": [12.0]}), CERTIFIED) == ("clear", 0)
    assert state(attack(None, metrics_raw={"psnr": [None]}), CERTIFIED) == ("incomplete", 3)


def test_images_that_are_in_several_messages_are_told_to_count_in_each() -> None:
    def several(owners: list[str], labels: list[int]) -> Record:
        return attack(*[30.0] * len(owners), owners=owners, labels_true=labels)

    again = [several(["a", "b"], [1, 2]), several(["a"], [1])]
    assert "counts once in each" in judge(again, Gate()).sentence
    others = [several(["a", "b"], [1, 2]), several(["a"], [3])]  # of another federation
    assert "counts once in each" not in judge(others, Gate()).sentence


# Without the true examples


UNSCORED: dict[str, Any] = {
    "metrics": {},
    "doubts": [doubt(DoubtKind.NO_TRUTH)],
    "skipped_metrics": {"psnr": "no truth"},
}


def test_an_exact_attack_that_explains_the_message_is_a_leak_without_truth() -> None:
    told = {**UNSCORED, "attack": "exact", "method": "division", "labels_recovered": [3, 4]}
    verdict = judge([attack(**told, explains=True), NO_NOISE], Gate())
    assert (verdict.state, verdict.exit_code) == ("leak", 1)
    assert verdict.lead == (
        "exact (division) read 2 images from the message of client 0, and they explain the message."
    )
    assert verdict.caveat == "The true examples are not needed for this."
    assert state(attack(**told, explains=False), NO_NOISE) == ("inconclusive", 3)


def test_without_truth_nothing_else_decides() -> None:
    verdict = judge(
        [attack(**UNSCORED), certified(doubts=[doubt(DoubtKind.NO_NOISE), doubt(DoubtKind.NO_TRUTH)])], Gate()
    )
    assert (verdict.state, verdict.exit_code) == ("inconclusive", 3)
    assert verdict.lead == "No attack could be scored."
    assert reason(verdict, DoubtKind.NO_TRUTH)


def test_images_that_explain_the_message_and_are_not_the_truth_are_a_leak_that_no_share_allows() -> None:
    other = attack(9.0, attack="exact", method="division", explains=True, labels_recovered=[3])
    allowed = attack(25.0, 9.0, 9.0, 9.0)
    verdict = judge([other], Gate(max_share=0.5))
    assert (verdict.state, verdict.exit_code) == ("leak", 1)
    assert "the truth is wrong, or the network sees only a part" in verdict.caveat
    assert state(allowed, gate=Gate(max_share=0.5)) == ("leak", 0)
    assert state(allowed, other, gate=Gate(max_share=0.5)) == ("leak", 1)


def test_what_an_exact_attack_could_not_read_is_no_gap() -> None:
    nothing = attack(
        attack="exact", metrics={}, doubts=[doubt(DoubtKind.NO_EXACT_METHOD, reasons="division: no layer")]
    )
    assert state(nothing, CERTIFIED) == ("clear", 0)
    late = attack(attack="slow", metrics={}, doubts=[doubt(DoubtKind.OUT_OF_TIME, seconds=60)])
    assert state(nothing, late, MISSED, NO_NOISE) == ("inconclusive", 3)


# EXPOSED


def test_the_sentence_of_an_exposed_message() -> None:
    verdict = judge([MISSED, EXPOSING, NO_NOISE], Gate())
    assert verdict.lead == (
        "No image was recovered, but the message of client 0 singles out its records: among 1,000 similar images it "
        "names 29 of 32 records used in training, and 0 % of records that were not used."
    )
    assert (verdict.step, verdict.caveat) == (PROTECT, "")
    again = game(20).model_copy(update={"view": "another"})
    assert "The same holds for 1 other message." in judge([EXPOSING, again], Gate()).caveat


@pytest.mark.parametrize(
    ("fields", "exposed"),
    [
        ({}, True),
        ({"low": 0.1}, False),
        ({"low": 0.1000001}, True),
        ({"low": 0.3, "control_high": 0.3}, False),
        ({"low": 0.3, "control_high": 0.2}, True),
        ({"same_source": False}, False),
        ({"control": "", "control_top1": None, "control_low": None, "control_high": None}, False),
        ({"control_high": None}, False),
        ({"candidates": 199}, False),
        ({"candidates": 200}, True),
    ],
)
def test_many_records_are_exposed_by_the_lower_limit_beyond_gate_and_control(
    fields: dict[str, Any], exposed: bool
) -> None:
    assert (state(MISSED, game(29, **fields), NO_NOISE)[0] == "exposed") is exposed


def test_the_gate_says_how_much_singling_out_is_too_much() -> None:
    middle = game(13)  # a lower limit of 0.256
    assert state(middle, gate=Gate(max_singling_out=0.25)) == ("exposed", 1)
    assert state(middle, gate=Gate(max_singling_out=0.26)) == ("inconclusive", 3)


@pytest.mark.parametrize(
    ("ranks", "control", "exposed"),
    [
        ([1 / 1000], [0.4], True),
        ([1 / 999], [0.4], False),
        ([1 / 1000], [1 / 1000], False),
        ([1 / 1000], [1 / 500], True),
        ([0.3, 1 / 1001, 0.8], [0.4, 0.6, 0.2], True),
        ([1 / 1000], [], False),
        ([], [0.4], False),
    ],
)
def test_few_records_are_exposed_by_their_rank(ranks: list[float], control: list[float], exposed: bool) -> None:
    """A single record that is named has a rate of 1 with a lower limit of 0.025: the rank decides."""
    few = game(1, max(1, len(ranks)), low=0.025, rank_p=ranks, control_rank_p=control)
    assert (state(few, NO_NOISE)[0] == "exposed") is exposed
    # The limits, which decide for many records, do not decide for few.
    wide = game(7, 7, low=0.9, control_high=0.0, rank_p=[0.5] * 7, control_rank_p=[0.5] * 7)
    assert state(wide, NO_NOISE)[0] == "inconclusive"


# CLEAR


def test_the_sentence_of_a_certified_audit_and_what_it_does_not_say() -> None:
    verdict = judge([MISSED, HARMLESS, CERTIFIED], Gate())
    assert verdict.lead == (
        "A certificate covers every audited record of 1 message: no adversary names a record among 1,000 with a chance "
        "above 1.83 % over 1 round."
    )
    assert (verdict.limits, verdict.caveat, verdict.passed) == (LIMITS, "", True)
    assert judge([MISSED, NO_NOISE], Gate()).limits == ()


def test_a_certificate_is_needed_for_every_message() -> None:
    elsewhere: dict[str, Any] = {"view": "another", "client": "client 1"}
    for other in (attack(9.0, **elsewhere), game(0).model_copy(update=elsewhere), attack(9.0, round=2)):
        assert state(MISSED, CERTIFIED, other) == ("inconclusive", 3)
        bound = certified(0.5, view=other.view, round=other.round)
        assert state(MISSED, CERTIFIED, other, bound) == ("clear", 0)
        refused = certified(view=other.view, round=other.round, doubts=[doubt(DoubtKind.NO_NOISE)])
        assert state(MISSED, CERTIFIED, other, refused) == ("inconclusive", 3)
    assert state(MISSED) == ("inconclusive", 3)


def test_two_checks_of_one_message_must_agree() -> None:
    doubted = certified(0.5, repeat=1, doubts=[doubt(DoubtKind.STATISTICS_SENT)])
    assert state(MISSED, CERTIFIED, doubted) == ("inconclusive", 3)
    assert state(MISSED, doubted, CERTIFIED) == ("inconclusive", 3)


def test_the_worst_record_decides() -> None:
    """Phi(Phi^-1(1/1000) + mu) <= 0.05 as long as mu <= 1.4453."""
    assert state(certified(*[0.1] * 99, 1.445)) == ("clear", 0)
    verdict = judge([certified(*[0.1] * 99, 1.446)], Gate())
    assert (verdict.state, verdict.exit_code) == ("inconclusive", 3)
    assert reason(verdict, DoubtKind.WEAK_CERTIFICATE)
    assert verdict.at_most == pytest.approx(gdp_success(BASE_RATE, 1.446))
    assert state(certified(*[0.1] * 99, 1.446), gate=Gate(max_success=0.06)) == ("clear", 0)


def test_planned_rounds_decide_and_not_only_those_that_were_looked_at() -> None:
    more = {"planned": 9, "success_planned": 0.06}
    verdict = judge([certified(0.5, told=more)], Gate())
    assert (verdict.state, verdict.at_most) == ("inconclusive", 0.06)
    few = judge([certified(0.5, told={**more, "success_planned": 0.04})], Gate())
    assert few.state == "clear"
    assert "above 4 % over 9 rounds" in few.lead


def test_a_certificate_of_no_record_is_none() -> None:
    empty = certified(1.0, told={"success": [], "mu": []})
    assert state(empty) == ("inconclusive", 3)


@pytest.mark.parametrize("kind", [kind for kind in DoubtKind if TABLE[kind].severity == "serious"])
def test_every_serious_doubt_at_a_certificate_blocks_it(kind: DoubtKind) -> None:
    verdict = judge([MISSED, certified(0.5, doubts=[doubt(kind)])], Gate())
    expected = "incomplete" if kind in (DoubtKind.ZERO_UPDATE, DoubtKind.NON_FINITE_UPDATE) else "inconclusive"
    assert (verdict.state, verdict.exit_code) == (expected, 3)
    assert expected == "incomplete" or verdict.step == flag(doubt(kind)).step


@pytest.mark.parametrize("kind", [kind for kind in DoubtKind if TABLE[kind].severity != "serious"])
def test_no_other_doubt_blocks_it(kind: DoubtKind) -> None:
    assert state(MISSED, certified(0.5, doubts=[doubt(kind)])) == ("clear", 0)


def test_doubts_of_attacks_and_games_block_nothing() -> None:
    said = [doubt(DoubtKind.NO_TRUTH), doubt(DoubtKind.NOT_REPLAYED)]
    assert state(attack(**{**UNSCORED, "doubts": said}), CERTIFIED) == ("clear", 0)


# Trust


TRUSTED = (DoubtKind.NOISE_NOT_TESTABLE, DoubtKind.NO_TRUTH, DoubtKind.NOT_REPLAYED)


@pytest.mark.parametrize("kind", [kind for kind in DoubtKind if TABLE[kind].severity == "serious"])
def test_trust_in_the_declaration_lifts_what_could_not_be_tested_and_nothing_else(kind: DoubtKind) -> None:
    records = [MISSED, certified(0.5, doubts=[doubt(kind)])]
    verdict = judge(records, TRUSTING)
    assert (verdict.state == "clear") is (kind in TRUSTED)
    if kind in TRUSTED:
        assert "gate.trust_declared = true" in verdict.caveat
        assert judge(records, Gate()).state == "inconclusive"


def test_trust_needs_a_certificate_and_does_not_excuse_a_refutation() -> None:
    unbounded = certified(doubts=[doubt(DoubtKind.NO_TRUTH)])
    assert state(unbounded, gate=TRUSTING) == ("inconclusive", 3)
    both = certified(0.5, doubts=[doubt(DoubtKind.NO_TRUTH), doubt(DoubtKind.NOT_AS_DECLARED, found="sizes differ")])
    verdict = judge([both], TRUSTING)
    assert (verdict.state, verdict.exit_code) == ("inconclusive", 3)
    assert reason(verdict, DoubtKind.NOT_AS_DECLARED)
    weak = certified(2.0, doubts=[doubt(DoubtKind.NO_TRUTH)])
    assert state(weak, gate=TRUSTING) == ("inconclusive", 3)
    assert judge([CERTIFIED], TRUSTING).caveat == ""


# A game against a certificate


def refuted(*records: Record) -> bool:
    """Whether some certificate carries the doubt."""
    return any(
        each.kind is DoubtKind.CERTIFICATE_REFUTED for found in with_refutations(records) for each in found.doubts
    )


@pytest.mark.parametrize("mu", [0.5, 1.0, 1.4])
def test_a_game_refutes_a_certificate_where_so_many_wins_are_rarer_than_1e_3(mu: float) -> None:
    bound, played = certified(mu), 32
    allowed = gdp_success(BASE_RATE, mu)
    for wins in range(6):
        tail = sum(binom.pmf(k, played, allowed) for k in range(wins, played + 1))
        assert refuted(game(wins, played), bound) is bool(tail < RARE)


def test_a_refuted_certificate_bounds_nothing() -> None:
    # Too few wins to be EXPOSED, but more than the certificate allows.
    records = [MISSED, game(7, low=0.09), certified(0.5)]
    verdict = judge(records, Gate())
    assert (verdict.state, verdict.exit_code, verdict.at_most) == ("inconclusive", 3, None)
    assert "names its records more often (7 of 32) than its certificate allows (0.0048)" in verdict.caveat
    assert reason(verdict, DoubtKind.CERTIFICATE_REFUTED)
    assert state(MISSED, game(7, low=0.09), certified(0.5), gate=TRUSTING) == ("inconclusive", 3)


def test_a_game_refutes_only_what_it_can() -> None:
    bound = certified(0.5)
    assert refuted(game(7), bound)
    assert not refuted(game(7, same_source=False), bound)
    assert not refuted(game(7, control=""), bound)
    # Where the control wins as well, the game finds likeness.
    assert not refuted(game(7, control_top1=7 / 32), bound)
    assert not refuted(game(7), certified(0.5, view="another"))
    assert not refuted(game(7), certified(0.5, round=2))


def test_among_fewer_candidates_the_certificate_allows_more() -> None:
    allowed = gdp_success(1 / 200, 0.5)  # 0.0190 and not 0.0048
    wins = next(k for k in range(33) if binom.sf(k - 1, 32, allowed) < RARE)
    assert wins > next(k for k in range(33) if binom.sf(k - 1, 32, gdp_success(BASE_RATE, 0.5)) < RARE)
    assert refuted(game(wins, candidates=200), certified(0.5))
    assert not refuted(game(wins - 1, candidates=200), certified(0.5))
    # Without mu nothing says how much more.
    assert not refuted(game(wins, candidates=200), certified(0.5, told={"mu": []}))


def test_a_refutation_is_found_once() -> None:
    once = with_refutations([game(7), certified(0.5)])
    assert with_refutations(once) == once


# The interval


def test_the_interval_is_in_one_unit() -> None:
    unit = "Success in naming a record among 1,000: "
    both = judge([MISSED, game(0, low=0.012), CERTIFIED], Gate())
    assert both.at_least == 0.012
    assert both.at_most == pytest.approx(0.018298, abs=1e-6)
    assert both.interval == f"{unit}at least 1.2 % (candidate game); at most 1.83 % (certificate)."
    neither = judge([MISSED, NO_NOISE], Gate())
    assert (neither.at_least, neither.at_most) == (None, None)
    assert neither.interval == f"{unit}not measured; no certificate: nothing bounds it."
    fewer = judge([game(29, candidates=400, low=0.5), NO_NOISE], Gate())
    assert (
        fewer.interval
        == f"{unit}at least 50 % among 400 (candidate game; a guess reaches 0.25 %); no certificate: nothing bounds it."
    )


def test_games_that_decide_nothing_are_not_quoted() -> None:
    for fields in ({"same_source": False}, {"control": ""}):
        assert judge([game(29, **fields), NO_NOISE], Gate()).at_least is None


def test_one_message_without_a_bound_leaves_the_audit_without_one() -> None:
    assert judge([CERTIFIED, certified(0.5, view="b")], Gate()).at_most == pytest.approx(0.018298, abs=1e-6)
    assert judge([CERTIFIED, certified(view="b", doubts=[doubt(DoubtKind.NO_NOISE)])], Gate()).at_most is None
    assert judge([CERTIFIED, certified(2.0, view="b")], Gate()).at_most == pytest.approx(0.137805, abs=1e-6)


# INCONCLUSIVE


def test_an_inconclusive_audit_says_how_near_attacks_came_why_and_what_to_do() -> None:
    verdict = judge([attack(5.0), attack(12.9, 1.0, attack="idlg"), NO_NOISE], Gate())
    assert verdict.lead == (
        "None of the 2 attacks recovered a private image (PSNR above 20 dB); the closest, idlg, reached 12.9 dB."
    )
    assert verdict.caveat == flag(doubt(DoubtKind.NO_NOISE)).text
    assert reason(verdict, DoubtKind.NO_NOISE)
    lenient = judge([attack(5.0), NO_NOISE], Gate(inconclusive_fails=False))
    assert (lenient.state, lenient.exit_code, lenient.passed) == ("inconclusive", 0, True)


def test_what_is_wrong_is_told_before_what_is_missing() -> None:
    said = [
        doubt(DoubtKind.NO_NOISE),
        doubt(DoubtKind.STATISTICS_SENT),
        doubt(DoubtKind.NO_TRUTH),
        doubt(DoubtKind.NOISE_REFUTED),
    ]
    for first in (DoubtKind.NOISE_REFUTED, DoubtKind.NO_TRUTH, DoubtKind.STATISTICS_SENT, DoubtKind.NO_NOISE):
        assert reason(judge([MISSED, certified(0.5, doubts=said)], Gate()), first)
        said = [each for each in said if each.kind is not first]


def test_a_message_that_was_not_checked_is_counted() -> None:
    assert judge([MISSED, attack(9.0, round=2)], Gate()).caveat == "No certificate was computed for 2 messages."


@pytest.mark.parametrize("name", ["max_singling_out", "max_success"])
@pytest.mark.parametrize("value", [0.0, 0.00099, 1.0, 5.0, -0.1, float("nan")])
def test_limits_below_a_guess_or_beyond_all_success_are_refused(name: str, value: float) -> None:
    limits: dict[str, Any] = {name: value}
    with pytest.raises(UsageError, match=f"gate.{name} must be at least 0.001"):
        Gate(**limits)
    least: dict[str, Any] = {name: BASE_RATE}
    assert getattr(Gate(**least), name) == BASE_RATE


def test_a_sweep_is_answered_value_by_value() -> None:
    def at(std: float, psnr: float, accuracy: float) -> Record:
        return attack(psnr, key=f"std-{round(100 * std)}", swept={"std": std}, utility={"test accuracy": accuracy})

    records = [at(0.0, 30.0, 0.92), at(0.01, 31.0, 0.91), at(0.1, 9.0, 0.8), at(1.0, 8.0, 0.7)]
    assert judge(records, Gate()).by_value == (
        "std 0 to 0.01: recovered (1 of 1 image); test accuracy 92 % to 91 %.",
        "std 0.1 to 1: not recovered, not certified; test accuracy 80 % to 70 %.",
    )
    assert judge(records[:1], Gate()).by_value == ()


def test_a_detail_that_is_a_sentence_ends_once() -> None:
    text = flag(doubt(DoubtKind.NOT_AS_DECLARED, found="The optimiser carried its state over.")).text
    assert text == "The declared training does not produce this message: The optimiser carried its state over."


def test_noise_that_was_not_tested_bounds_the_success_only_if_it_was_added() -> None:
    untested = certified(0.5, doubts=[doubt(DoubtKind.NOISE_NOT_TESTABLE, why="")])
    verdict = judge([MISSED, HARMLESS, untested], Gate())
    assert (verdict.state, verdict.at_most) == ("inconclusive", None)
    assert verdict.interval.endswith("if the declared noise was added, which was not tested.")
    refuted_too = certified(
        0.5, doubts=[doubt(kind) for kind in (DoubtKind.NOISE_NOT_TESTABLE, DoubtKind.NOISE_REFUTED)]
    )
    for records in ([MISSED, HARMLESS, refuted_too], [MISSED, HARMLESS, untested, attack(9.0, round=2)]):
        assert judge(records, Gate()).interval.endswith("nothing bounds it.")


def test_a_game_without_candidates_asks_for_public_images() -> None:
    without = record("game", doubts=[doubt(DoubtKind.NO_CANDIDATES, found=3, least=20)])
    assert "--public" in judge([MISSED, without, NO_NOISE], Gate()).step
    assert "--public" not in judge([MISSED, without, HARMLESS, NO_NOISE], Gate()).step
