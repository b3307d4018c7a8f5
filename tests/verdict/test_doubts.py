"""Every doubt is raised by what it is about, and every kind has its words."""

from __future__ import annotations

import re
from typing import Any

import pytest
from scipy.stats import spearmanr

from fedglass.verdict.collect_doubts import doubts_of, flag, flags_of, rank_correlation
from fedglass.verdict.doubts import Doubt, DoubtKind, Question, doubt
from fedglass.verdict.gate import Gate
from fedglass.verdict.records import Record
from fedglass.verdict.texts import ALLOWED, LIMITS, PROTECT, TABLE

ENERGIES = {"energy": 0.5, "energy_truth": 0.01, "energy_blind": 0.8}


def make(*psnr: float | None, **fields: Any) -> Record:
    basic: dict[str, Any] = {
        "key": "a",
        "attack": "dlg",
        "attack_repr": "dlg()",
        "view": "server sees client 0's update",
        "round": 1,
        "client": "0",
        "repeat": 0,
        "seed": 0,
        "status": "done",
        "metrics": {"psnr": list(psnr)},
        "blind": {"psnr": [5.0] * len(psnr)},
    }
    return Record(**{**basic, **fields})


def kinds(record: Record, gate: Gate | None = None) -> list[DoubtKind]:
    return [each.kind for each in doubts_of(record, gate or Gate())]


# Words


def test_every_kind_has_one_row_and_every_question_is_asked() -> None:
    assert set(TABLE) == set(DoubtKind)
    assert {row.question for row in TABLE.values()} == set(Question)
    titles = [row.name for row in TABLE.values()]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("kind", list(DoubtKind))
def test_every_sentence_is_whole_with_and_without_its_details(kind: DoubtKind) -> None:
    names = re.findall(r"(?<!\{)\{(\w+)\}", TABLE[kind].text + TABLE[kind].step)
    told = flag(doubt(kind, **dict.fromkeys(names, 0.123456)))
    assert told.advice.count("0.123") == len(names)
    assert "0.123456" not in told.advice
    for found in (told, flag(doubt(kind))):
        assert found.text
        assert not re.search(r"\{[a-z_]+\}|\(\s*\)\.\.", found.text)


def test_names_in_a_sentence_are_few_and_braces_in_them_are_no_placeholders() -> None:
    found = flag(doubt(DoubtKind.EXTRA_PAYLOAD, names=["a", "{why}", "c", "d", "e"]))
    assert "(a, {why}, c and 2 more)" in found.text


@pytest.mark.parametrize(
    "text",
    [*(f"{row.text} {row.step}" for row in TABLE.values()), ALLOWED, PROTECT, *LIMITS],
    ids=lambda text: text[:30],
)
def test_sentences_are_plain(text: str) -> None:
    """No riddles: words that the style forbids, and sentences of more than 40 words."""
    assert not re.search(r"\b(can not|beside|nobody|somebody|(?<!\.)whose|of which|by which)\b", text)
    assert max(len(sentence.split()) for sentence in re.split(r"(?<=[.!?:]) ", text)) <= 40


# Doubts that follow from the figures


def test_a_clean_recovery_has_no_doubt() -> None:
    assert kinds(make(30.0, **ENERGIES)) == []


@pytest.mark.parametrize(
    ("energies", "kind"),
    [
        ({}, DoubtKind.SEARCH_FAILED),
        ({"energy": None}, DoubtKind.SEARCH_FAILED),
        ({"energy": 0.0105}, DoubtKind.OTHER_IMAGES_FIT),
        ({"energy": 0.001}, DoubtKind.OTHER_IMAGES_FIT),
        ({"energy_truth": 0.795}, DoubtKind.ATTACK_IS_BLIND),
        ({"energy_truth": 0.9}, DoubtKind.ATTACK_IS_BLIND),
        ({"energy_truth": 0.79, "energy": 0.79}, DoubtKind.OTHER_IMAGES_FIT),
    ],
)
def test_energies_say_why_nothing_was_found(energies: dict[str, Any], kind: DoubtKind) -> None:
    assert kinds(make(10.0, **{**ENERGIES, **energies})) == [kind]
    assert kinds(make(30.0, 10.0, **{**ENERGIES, **energies})) == [kind]
    assert kinds(make(30.0, **{**ENERGIES, **energies})) == []
    assert kinds(make(10.0, **{**ENERGIES, **energies, "energy_truth": None})) == []


def test_a_search_without_an_energy_is_told_in_words() -> None:
    (found,) = flags_of(make(10.0, **{**ENERGIES, "energy": None}), Gate())
    assert "the images that the search found (not finite)" in found.text


def test_wrong_labels_are_named_as_a_cause() -> None:
    assert kinds(make(10.0, label_errors=2)) == [DoubtKind.WRONG_LABELS]
    assert kinds(make(10.0, label_errors=0)) == []
    assert kinds(make(30.0, label_errors=2)) == []


def test_notes_of_the_run() -> None:
    assert kinds(make(30.0, extra={"notes": ["non-finite", "another"]})) == [DoubtKind.NON_FINITE_STOP]
    taken: dict[str, Any] = {"extra": {"notes": ["labels taken as distinct"]}}
    assert kinds(make(30.0, **taken)) == [DoubtKind.LABELS_TAKEN_AS_DISTINCT]
    assert kinds(make(30.0, **taken, label_errors=0)) == []


def test_what_is_partly_recognisable_is_told_for_any_gate() -> None:
    for scores in (make(19.0), make(12.0, metrics={"psnr": [12.0], "ssim": [0.8]}), make(10.0, 19.5)):
        assert DoubtKind.PARTLY_RECOGNISABLE in kinds(scores)
    assert kinds(make(19.0, blind={"psnr": [19.5]})) == []
    assert kinds(make(34.0), Gate(threshold=35.0)) == [DoubtKind.PARTLY_RECOGNISABLE]


def test_what_pictures_show_besides_their_scores() -> None:
    assert kinds(make(10.0, 30.0, transformed_match=[True, True])) == [DoubtKind.TRANSFORMED_MATCH]
    assert doubts_of(make(10.0, 30.0, transformed_match=[True, True]), Gate())[0].details == {"images": 1}
    assert DoubtKind.BLEND in kinds(make(25.0, 24.0, blends=[[0, 1], [0, 1]]))
    assert DoubtKind.NO_BETTER_THAN_GUESS not in kinds(make(25.0, 24.0, blends=[[0, 1], [0, 1]]))


def test_a_guess_that_does_as_well_is_named() -> None:
    guessed = make(21.0, blind={"psnr": [21.5]}, blind_guess={"psnr": ["mean of public images"]})
    (found,) = [each for each in flags_of(guessed, Gate()) if each.kind is DoubtKind.NO_BETTER_THAN_GUESS]
    assert "(mean of public images)" in found.text


def test_refinements_that_imagine() -> None:
    imagined = make(25.0, metrics_raw={"psnr": [9.0]}, controls={"other": {"psnr": [26.0]}})
    assert DoubtKind.FAILS_CONTROLS in kinds(imagined)
    refined: dict[str, Any] = {"metrics_raw": {"psnr": [30.0]}, "energy": 0.2, "energy_blind": 0.8}
    assert DoubtKind.REFINEMENT_UNEXPLAINED in kinds(make(30.0, **refined, energy_refined=0.51))
    assert DoubtKind.REFINEMENT_UNEXPLAINED in kinds(make(30.0, **refined, energy_refined=None))
    assert kinds(make(30.0, **refined, energy_refined=0.49)) == []


@pytest.mark.parametrize(
    ("metrics", "disagree"),
    [
        ({"psnr": [25.0], "ssim": [0.1]}, True),
        ({"psnr": [25.0], "ssim": [0.5]}, False),
        ({"psnr": [25.0], "lpips": [0.7]}, True),
        ({"psnr": [10.0], "lpips": [0.05]}, True),
        ({"psnr": [25.0], "lpips": [0.05]}, False),
        ({"psnr": [21.0, 22.0, 23.0, 24.0], "ssim": [0.9, 0.8, 0.75, 0.72]}, True),
        ({"psnr": [21.0, 22.0, 23.0, 24.0], "ssim": [0.72, 0.75, 0.8, 0.9]}, False),
        ({"psnr": [21.0, 22.0, 23.0, 24.0], "lpips": [0.14, 0.12, 0.1, 0.05]}, False),
        ({"psnr": [21.0, 22.0, 23.0], "ssim": [0.9, 0.8, 0.75]}, False),
    ],
)
def test_metrics_disagree(metrics: dict[str, list[float]], disagree: bool) -> None:
    assert (DoubtKind.METRICS_DISAGREE in kinds(make(metrics=metrics))) is disagree


@pytest.mark.parametrize(
    ("left", "right"), [([3.0, 1, 2, 5], [1.0, 4, 4, 2]), ([1.0, 1, 2], [3.0, 1, 2]), ([1.0, 2, 3], [9.0, 5, 1])]
)
def test_rank_correlation_is_spearmans(left: list[float], right: list[float]) -> None:
    assert rank_correlation(left, right) == pytest.approx(spearmanr(left, right).statistic)
    assert rank_correlation([1.0, 1.0], [1.0, 2.0]) == 0


# Stored doubts


def test_stored_doubts_come_with_those_that_follow_and_the_serious_ones_first() -> None:
    stored = [doubt(DoubtKind.NO_EXACT_METHOD, reasons="r"), doubt(DoubtKind.NO_TRUTH)]
    found = flags_of(make(10.0, **ENERGIES, doubts=stored), Gate())
    assert [each.kind for each in found] == [DoubtKind.NO_TRUTH, DoubtKind.SEARCH_FAILED, DoubtKind.NO_EXACT_METHOD]


def test_games_and_certificates_have_no_doubts_about_images_and_failures_none_at_all() -> None:
    stored = [doubt(DoubtKind.NO_NOISE)]
    for kind in ("game", "certificate"):
        assert kinds(make(10.0, **ENERGIES, kind=kind, doubts=stored)) == [DoubtKind.NO_NOISE]
    assert kinds(make(10.0, **ENERGIES, doubts=stored, status="failed", error="no")) == []


def test_a_doubt_is_an_identifier_with_figures() -> None:
    assert Doubt.model_validate_json(doubt(DoubtKind.NO_CANDIDATES, found=3, least=200).model_dump_json()) == doubt(
        DoubtKind.NO_CANDIDATES, found=3, least=200
    )
    with pytest.raises(ValueError, match="kind"):
        Doubt.model_validate({"kind": "optimiser failed"})
