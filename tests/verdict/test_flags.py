"""Every flag is raised by what it is about, and by nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scipy.stats import spearmanr

from fedglass.verdict.flags import Findings, flags_of, rank_correlation
from fedglass.verdict.gate import Gate

MISSED = Findings(
    Gate(),
    metrics={"psnr": [10.0], "ssim": [0.1]},
    energy=0.5,
    energy_truth=0.01,
    energy_decoys=(0.6, 0.7),
    label_errors=0,
)
RECOVERED = replace(MISSED, metrics={"psnr": [30.0], "ssim": [0.9]})


def names(found: Findings) -> list[str]:
    return [flag.name for flag in flags_of(found)]


def test_a_clean_recovery_has_no_flag() -> None:
    assert names(RECOVERED) == []


def test_true_images_of_lower_energy_mean_that_the_optimiser_failed() -> None:
    (flag,) = flags_of(MISSED)
    assert (flag.name, flag.severity) == ("optimiser failed", "serious")
    assert "absence of leakage is not shown" in flag.text


def test_the_optimiser_is_not_blamed_when_it_reached_the_truths_energy() -> None:
    assert names(replace(MISSED, energy=0.0105)) == ["other images fit as well"]
    assert names(replace(MISSED, energy=0.001)) == ["other images fit as well"]


def test_an_attack_without_a_finite_energy_failed_too() -> None:
    assert names(replace(MISSED, energy=float("nan"))) == ["optimiser failed"]


def test_a_truth_that_fits_no_better_than_decoys_is_hidden() -> None:
    hidden = replace(MISSED, energy=0.9, energy_truth=0.8, energy_decoys=(0.795, 0.9))
    assert names(hidden) == ["defence hides it"]
    # A lead of less than one per cent is noise.
    assert names(replace(hidden, energy_decoys=(0.805, 0.9))) == ["defence hides it"]
    assert names(replace(hidden, energy_decoys=(0.9, 0.95))) == ["optimiser failed"]


def test_what_nothing_protects_is_not_hidden_by_a_defence() -> None:
    hidden = replace(MISSED, energy=0.9, energy_truth=0.8, energy_decoys=(0.795, 0.9))
    (flag,) = flags_of(replace(hidden, undefended=True))
    assert (flag.name, flag.severity) == ("attack is blind", "serious")
    assert "absence of leakage is not shown" in flag.text
    assert names(replace(RECOVERED, energy_truth=0.8, energy_decoys=(0.7,), undefended=True)) == []


def test_what_was_recovered_was_not_hidden() -> None:
    assert names(replace(RECOVERED, energy_truth=0.8, energy_decoys=(0.7,))) == []


def test_one_image_that_is_not_recovered_is_enough() -> None:
    assert names(replace(MISSED, metrics={"psnr": [30.0, 10.0]})) == ["optimiser failed"]


def test_wrong_labels_are_named_as_a_cause() -> None:
    (flag,) = flags_of(replace(MISSED, label_errors=2))
    assert "2 of the labels are wrong" in flag.text


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
    assert "batch labels" in flag.text


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
    assert ("metrics disagree" in names(replace(RECOVERED, metrics=metrics))) is disagree


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
    missed = replace(RECOVERED, metrics={"psnr": [10.0, 11.0]}, energy=1.0, energy_truth=0.1, energy_decoys=(2.0,))
    assert "optimiser failed" in names(missed)
    assert "optimiser failed" in names(replace(missed, metrics_raw={"psnr": [25.0, 12.0]}))
    assert "optimiser failed" not in names(replace(missed, metrics_raw={"psnr": [25.0, 26.0]}))
