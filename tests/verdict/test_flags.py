"""Every flag is raised by what it is about, and by nothing else; absence is shown in two ways, and no third."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from scipy.stats import spearmanr

from fedglass.verdict.disagreement import rank_correlation
from fedglass.verdict.findings import Findings, Look
from fedglass.verdict.flags import flags_of
from fedglass.verdict.gate import CHOICE, HIDDEN, Gate
from fedglass.verdict.images import ImageScores

LOW = ImageScores({"psnr": [10.0], "ssim": [0.1]}, blind={"psnr": [9.0], "ssim": [0.05]})
HIGH = ImageScores({"psnr": [30.0], "ssim": [0.9]}, blind={"psnr": [9.0], "ssim": [0.05]})
MISSED = Findings(
    Gate(), scores=LOW, energy=0.5, energy_truth=0.01, energy_decoys=(0.6, 0.7), energy_blind=0.8, label_errors=0
)
RECOVERED = replace(MISSED, scores=HIGH)
BLIND = replace(MISSED, energy=0.9, energy_truth=0.8, energy_decoys=(0.795, 0.9))
"""The true data fit no better than others do."""
SHIELDED = replace(BLIND, defended=True, read_without=True)
REACHED = Look("from start 2", 0.01, 0.01, 0.6, 0)
FREE = replace(MISSED, energy=0.01, looks=(REACHED, REACHED), asked=2)


def names(found: Findings) -> list[str]:
    return [flag.name for flag in flags_of(found)]


def serious(found: Findings) -> list[str]:
    return [flag.name for flag in flags_of(found) if flag.severity == "serious"]


def psnr(*values: float, blind: float = 5.0, **others: list[float]) -> ImageScores:
    return ImageScores({"psnr": list(values), **others}, blind={"psnr": [blind] * len(values)})


def test_a_clean_recovery_has_no_flag() -> None:
    assert names(RECOVERED) == []


def test_true_images_of_lower_energy_mean_that_the_optimiser_failed() -> None:
    (flag,) = flags_of(MISSED)
    assert (flag.name, flag.severity) == ("optimiser failed", "serious")
    assert "absence of leakage is not shown" in flag.text


def test_the_optimiser_is_not_blamed_when_it_reached_the_truths_energy() -> None:
    assert serious(replace(MISSED, energy=0.0105)) == ["other images fit as well"]
    assert serious(replace(MISSED, energy=0.001)) == ["other images fit as well"]


def test_an_attack_without_a_finite_energy_failed_too() -> None:
    assert serious(replace(MISSED, energy=float("nan"))) == ["optimiser failed"]


def test_absence_is_shown_by_a_defence_without_which_the_attack_reads() -> None:
    assert (SHIELDED.absence, names(SHIELDED)) == (HIDDEN, ["defence hides it"])
    # A lead of less than one per cent is noise, and a larger one is not.
    assert names(replace(SHIELDED, energy_decoys=(0.805, 0.9), energy_blind=0.9)) == ["defence hides it"]
    assert serious(replace(SHIELDED, energy_decoys=(0.9, 0.95), energy_blind=0.9)) == ["optimiser failed"]


@pytest.mark.parametrize(
    ("defended", "read_without", "words"),
    [
        (True, False, "does not read it either"),
        (True, None, "was not tried"),
        (None, None, "write recording.defended"),
        (None, True, "write recording.defended"),
        (False, None, "although nothing protects it"),
        (False, True, "although nothing protects it"),
    ],
)
def test_a_defence_is_credited_only_by_comparison(defended: bool | None, read_without: bool | None, words: str) -> None:
    blind = replace(BLIND, defended=defended, read_without=read_without)
    (flag,) = flags_of(blind)
    assert (flag.name, flag.severity, blind.absence) == ("attack is blind", "serious", None)
    assert words in flag.text


def test_a_grey_image_that_fits_as_well_is_another_image() -> None:
    liked = replace(MISSED, energy_truth=0.5, energy_decoys=(2.0, 2.0), energy_blind=0.1, energy=0.1)
    assert names(liked) == ["attack is blind"]


def test_absence_is_shown_by_a_choice_that_further_looks_confirm() -> None:
    assert (FREE.absence, names(FREE)) == (CHOICE, ["message leaves a choice"])


@pytest.mark.parametrize(
    "change",
    [
        {"looks": (), "asked": 0},
        {"looks": (REACHED,), "asked": 2},
        {"looks": (REACHED, replace(REACHED, energy=0.5))},
        {"looks": (REACHED, replace(REACHED, energy=math.nan))},
        {"looks": (REACHED, replace(REACHED, energy_truth=0.2))},
        {"looks": (REACHED, replace(REACHED, recovered=1))},
        {"energy_truth": 0.13, "energy": 0.13},
        {"energy_decoys": (), "energy_blind": None},
        {"looks": (REACHED, replace(REACHED, energy_others=math.inf))},
    ],
    ids=[
        "no look",
        "too few",
        "not reached",
        "not finite",
        "weaker prior is blind",
        "another reads",
        "unfaithful",
        "nothing beside",
        "no other",
    ],
)
def test_a_choice_needs_every_look(change: dict[str, Any]) -> None:
    found = replace(FREE, **change)
    assert found.absence is None
    assert len(serious(found)) == 1


def test_another_run_that_recovers_is_named() -> None:
    assert names(replace(FREE, looks=(replace(REACHED, recovered=1),))) == ["recovered by another run"]


@pytest.mark.parametrize("found", [SHIELDED, FREE], ids=["hidden", "choice"])
@pytest.mark.parametrize("explained", [True, None, False])
def test_a_message_that_contradicts_its_declaration_shows_no_absence(found: Findings, explained: bool | None) -> None:
    odd = replace(found, explained=explained, contradictions=("statistics moved", "sizes are equal"))
    assert odd.absence is None
    (flag,) = [flag for flag in flags_of(odd) if flag.name == "training not as declared"]
    assert flag.severity == "serious"
    assert "statistics moved; sizes are equal" in flag.text


def test_contradictions_are_told_without_truth_and_not_of_what_was_recovered() -> None:
    odd = Findings(Gate(), truth=False, contradictions=("statistics moved",))
    assert serious(odd) == ["training not as declared", "no truth"]
    assert names(replace(RECOVERED, contradictions=("statistics moved",))) == []


@pytest.mark.parametrize("found", [SHIELDED, FREE], ids=["hidden", "choice"])
def test_a_message_that_is_not_explained_shows_no_absence(found: Findings) -> None:
    for explained, name in ((None, "message not explained"), (False, "training not as declared")):
        unsure = replace(found, explained=explained, replay="momentum = 0.9")
        assert unsure.absence is None
        assert name in serious(unsure)
        assert "momentum = 0.9" in flags_of(unsure)[0].text


@pytest.mark.parametrize("found", [SHIELDED, FREE], ids=["hidden", "choice"])
def test_what_is_partly_recognisable_shows_no_absence(found: Findings) -> None:
    for scores in (psnr(19.0), psnr(12.0, ssim=[0.8]), psnr(10.0, 19.5)):
        near = replace(found, scores=scores)
        assert near.absence is None
        assert "partly recognisable" in serious(near)
    assert "partly recognisable" not in names(replace(found, scores=psnr(19.0, blind=19.5)))


@pytest.mark.parametrize("found", [SHIELDED, FREE], ids=["hidden", "choice"])
def test_what_a_guess_reaches_is_not_recovered(found: Findings) -> None:
    guessed = replace(found, scores=psnr(21.0, blind=21.5))
    assert not any(guessed.recovered)
    assert guessed.absence is None
    assert "no better than guessing" in serious(guessed)


def test_what_was_recovered_was_not_hidden() -> None:
    assert names(replace(BLIND, scores=HIGH)) == []


def test_one_image_that_is_not_recovered_is_enough() -> None:
    assert names(replace(MISSED, scores=psnr(30.0, 10.0))) == ["optimiser failed"]


def test_wrong_labels_are_named_as_a_cause() -> None:
    (flag,) = flags_of(replace(MISSED, label_errors=2))
    assert "2 of the labels are wrong" in flag.text
    wrong = replace(FREE, label_errors=2, energy_labels=0.3)
    assert wrong.absence is None
    assert serious(wrong)[0] == "labels are wrong"
    assert serious(replace(FREE, label_errors=2, energy_labels=math.nan))[0] == "labels are wrong"
    assert replace(FREE, label_errors=2, energy_labels=0.01).absence == CHOICE


def _all_findings() -> Iterator[Findings]:
    """Every combination of what the rules look at."""
    table: dict[str, tuple[Any, ...]] = {
        "scores": (LOW, HIGH, psnr(19.0), psnr(21.0, blind=22.0), psnr(30.0, 10.0)),
        "energy": (0.01, 0.5, math.nan),
        "energy_truth": (0.01, 0.3, 0.8, math.nan, None),
        "energy_labels": (None, 0.9),
        "label_errors": (0, 1),
        "defended": (True, False, None),
        "read_without": (True, False, None),
        "explained": (True, False, None),
        "looks": ((), (REACHED,), (REACHED, REACHED), (REACHED, replace(REACHED, recovered=1))),
        "notes": ((), ("non-finite",)),
    }
    for values in itertools.product(*table.values()):
        yield replace(MISSED, asked=2, **dict(zip(table, values, strict=True)))


def test_absence_is_never_given_beside_a_serious_flag_nor_missing_without_one() -> None:
    """The law of the verdict, over all combinations: something not recovered is either shown to be safe or flagged."""
    for found in _all_findings():
        if found.absence is not None:
            assert not serious(found), found
        elif not found.all_recovered and found.energy_truth is not None:
            assert serious(found), found


def test_absence_needs_an_explained_message_and_one_of_the_two_ways() -> None:
    for found in _all_findings():
        if found.absence == HIDDEN:
            assert all((found.explained, found.hidden, found.defended, found.read_without))
        if found.absence == CHOICE:
            assert all((found.explained, found.faithful, found.reached, len(found.looks) == 2))
            assert not any(look.recovered for look in found.looks)


@pytest.mark.parametrize("state", ["zero", "non-finite"])
def test_an_empty_message_is_the_only_thing_that_matters_then(state: str) -> None:
    (flag,) = flags_of(replace(MISSED, update=state))  # type: ignore[arg-type]  # parametrised
    assert (flag.name, flag.severity) == (f"{state} update", "serious")


def test_a_non_finite_stop_is_serious_unless_the_images_were_recovered() -> None:
    (flag, _) = flags_of(replace(MISSED, notes=("non-finite",)))
    assert (flag.name, flag.severity) == ("non-finite stop", "serious")
    (flag,) = flags_of(replace(RECOVERED, notes=("non-finite",)))
    assert flag.severity == "info"


def test_oracle_facts_are_named() -> None:
    (flag,) = flags_of(replace(RECOVERED, oracle=frozenset({"batch_labels"})))
    assert flag.name == "oracle knowledge used"
    assert "the true labels of each local batch" in flag.text


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
    assert ("metrics disagree" in names(replace(RECOVERED, scores=ImageScores(metrics)))) is disagree


def test_without_truth_nothing_is_claimed() -> None:
    (flag,) = flags_of(Findings(Gate(), truth=False, energy=0.1))
    assert (flag.name, flag.severity) == ("no truth", "serious")


@pytest.mark.parametrize(
    ("left", "right"), [([3.0, 1, 2, 5], [1.0, 4, 4, 2]), ([1.0, 1, 2], [3.0, 1, 2]), ([1.0, 2, 3], [9.0, 5, 1])]
)
def test_rank_correlation_is_spearmans(left: list[float], right: list[float]) -> None:
    assert rank_correlation(left, right) == pytest.approx(spearmanr(left, right).statistic)
    assert rank_correlation([1.0, 1.0], [1.0, 2.0]) == 0


def test_images_that_were_recovered_before_they_were_refined_are_recovered() -> None:
    refined, energies = {"psnr": [10.0, 11.0]}, {"energy": 1.0, "energy_truth": 0.1, "energy_decoys": (2.0,)}
    for raw, failed in (({}, True), ({"psnr": [25.0, 12.0]}, True), ({"psnr": [25.0, 26.0]}, False)):
        found = replace(RECOVERED, scores=ImageScores(refined, raw), **energies)  # type: ignore[arg-type]  # as named
        assert ("optimiser failed" in names(found)) is failed


@pytest.mark.parametrize("found", [MISSED, SHIELDED, FREE])
def test_batch_statistics_are_named_and_absence_is_not_shown_with_them(found: Findings) -> None:
    normalised = replace(found, batch_statistics=True)
    assert "batch statistics" in serious(normalised)
    assert normalised.absence is None
    assert "batch statistics" not in names(found)
    assert "batch statistics" not in names(replace(RECOVERED, batch_statistics=True))


def test_labels_taken_as_distinct_are_mentioned_unless_they_are_known_to_be_right() -> None:
    noted = ("labels taken as distinct",)
    for found in (replace(MISSED, notes=noted, label_errors=None), replace(MISSED, notes=noted, label_errors=1)):
        assert [flag.severity for flag in flags_of(found) if flag.name == noted[0]] == ["warning"]
    assert names(replace(FREE, notes=noted)) == names(FREE)
    assert replace(FREE, notes=noted).absence == CHOICE
    assert replace(FREE, notes=("another",)).absence is None


@pytest.mark.parametrize("found", [SHIELDED, FREE], ids=["hidden", "choice"])
def test_what_is_shown_in_another_contrast_or_place_shows_no_absence(found: Findings) -> None:
    altered = replace(found, otherwise=(True,))
    assert found.absence is not None
    assert altered.absence is None
    assert "recognisable otherwise" in serious(altered)
    assert names(replace(RECOVERED, otherwise=(True,))) == []


def test_another_run_that_comes_near_shows_no_absence() -> None:
    near = replace(FREE, looks=(REACHED, replace(REACHED, doubtful=1)))
    assert FREE.absence == CHOICE
    assert near.absence is None
    assert "another run comes near" in serious(near)


def test_a_defence_that_leaves_a_tensor_as_it_was_hides_nothing() -> None:
    bared = replace(SHIELDED, remains=("conv.weight",))
    assert SHIELDED.absence == HIDDEN
    assert bared.absence is None
    (flag,) = [flag for flag in flags_of(bared) if flag.name == "attack is blind"]
    assert "conv.weight" in flag.text


def test_noise_that_repeats_hides_nothing() -> None:
    repeated = replace(SHIELDED, repeats=("as of client 1 in round 1",))
    assert repeated.absence is None
    (flag,) = [flag for flag in flags_of(repeated) if flag.name == "attack is blind"]
    assert "as of client 1 in round 1" in flag.text
    assert flag.severity == "serious"


def test_examples_that_the_truth_lacks_are_not_taken_for_hidden() -> None:
    other = replace(SHIELDED, strangers=("conv.weight",))
    assert other.absence is None
    (flag,) = [flag for flag in flags_of(other) if flag.name == "attack is blind"]
    assert "that the truth lacks" in flag.text


def test_statistics_in_clear_are_hidden_by_no_noise_whatever_the_attack_reads() -> None:
    clear = replace(SHIELDED, in_clear=True)
    assert clear.absence is None
    assert serious(clear) == ["batch statistics"]
    assert replace(FREE, in_clear=True).absence == CHOICE, "an attack that reads them has seen them"
    assert "batch statistics" not in names(replace(FREE, in_clear=True))


@pytest.mark.parametrize("threshold", [20.0, 30.0, 60.0, 99.0])
def test_no_threshold_makes_a_sure_recovery_pass(threshold: float) -> None:
    high = replace(FREE, gate=Gate(threshold=threshold), scores=psnr(20.5))
    assert high.absence is None
    assert ("partly recognisable" in serious(high)) is (threshold > 20.5)


def test_images_that_some_tensor_tells_from_the_truth_are_no_choice() -> None:
    told = replace(FREE, apart=("conv.weight",))
    assert FREE.absence == CHOICE
    assert told.absence is None
    (flag,) = [flag for flag in flags_of(told) if flag.name == "other images fit as well"]
    assert "conv.weight" in flag.text
    assert replace(FREE, looks=(REACHED, replace(REACHED, apart=("conv.weight",)))).absence is None


@pytest.mark.parametrize("found", [SHIELDED, FREE])
def test_one_message_shows_nothing_of_what_several_rounds_tell(found: Findings) -> None:
    assert found.absence is not None
    more = replace(found, further=3)
    assert more.absence is None
    assert serious(more) == ["more rounds of the same data"]
    assert "more rounds of the same data" not in names(replace(RECOVERED, further=3))
    assert "more rounds of the same data" not in names(replace(MISSED, further=3))


@pytest.mark.parametrize(
    ("doubt", "flag"),
    [
        ({"overlooked": ("b", "c")}, "clients not looked at"),
        ({"miscounted": True}, "number of examples is wrong"),
        ({"unread": ("seen",)}, "more was sent than was read"),
    ],
)
def test_absence_is_not_shown_of_other_clients_or_of_another_number(doubt: dict[str, Any], flag: str) -> None:
    """What nobody looked at may leak, and another number of images may fit whatever the true ones are."""
    for shown in (FREE, SHIELDED):
        assert replace(shown, **doubt).absence is None
        assert flag in serious(replace(shown, **doubt))
        assert flag not in names(shown)
    assert flag not in names(replace(RECOVERED, **doubt))
