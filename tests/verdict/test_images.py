"""Raw and refined images: which of them counts, and why."""

from __future__ import annotations

from fedglass.core.metric_scale import scale_of
from fedglass.verdict.gate import Gate
from fedglass.verdict.images import ImageScores

PSNR, LPIPS = scale_of("psnr"), scale_of("lpips")
REFINED, RAW = {"psnr": [25.0, 25.0, 25.0]}, {"psnr": [15.0, 22.0, 15.0]}


def test_without_controls_whatever_leaked_more_counts() -> None:
    scores = ImageScores(REFINED, RAW)
    assert scores.values("psnr", PSNR) == [25.0, 25.0, 25.0]
    assert scores.by_refinement("psnr", PSNR, 20.0) == [True, False, True]


def test_a_refined_image_must_beat_every_control() -> None:
    for controls in ({"a": {"psnr": [24.9, 10.0, 10.0]}}, {"a": {"psnr": [1.0] * 3}, "b": {"psnr": [30.0, 1.0, 1.0]}}):
        scores = ImageScores(REFINED, RAW, controls=controls)
        assert scores.values("psnr", PSNR) == [15.0, 25.0, 25.0]
        assert scores.imagined("psnr", PSNR, 20.0) == [True, False, False]
        assert Gate().imagined(scores) == 1


def test_a_refined_image_must_show_what_the_raw_one_shows() -> None:
    scores = ImageScores(REFINED, RAW, controls={"a": {"psnr": [1.0] * 3}}, identity_preserved=[True, False, False])
    assert scores.values("psnr", PSNR) == [25.0, 22.0, 15.0]
    # The second is recovered by its raw image: nothing is made up about that.
    assert scores.imagined("psnr", PSNR, 20.0) == [False, False, True]


def test_lower_is_better_where_the_metric_says_so() -> None:
    refined, raw = {"lpips": [0.05, 0.05]}, {"lpips": [0.4, 0.4]}
    scores = ImageScores(refined, raw, controls={"a": {"lpips": [0.04, 0.5]}})
    assert scores.values("lpips", LPIPS) == [0.4, 0.05]


def test_what_a_control_could_not_be_scored_by_holds_nothing_back() -> None:
    scores = ImageScores(REFINED, RAW, controls={"a": {"psnr": [None, None, None]}, "b": {"ssim": [1.0] * 3}})
    assert scores.values("psnr", PSNR) == [25.0, 25.0, 25.0]


def test_of_blends_of_the_same_images_the_best_counts() -> None:
    scores = ImageScores({"psnr": [22.0, 25.0, 23.0, 24.0]}, blends=[[0, 1], [0, 1], [], [2, 3]])
    assert scores.ahead("psnr", PSNR, 20.0) == [True] * 4
    assert scores.recovered("psnr", PSNR, 20.0) == [False, True, True, True]
    assert scores.near("psnr", PSNR, 20.0) == [True, False, False, False]
    low = ImageScores({"lpips": [0.05, 0.01]}, blends=[[0, 1], [0, 1]])
    assert low.recovered("lpips", LPIPS, 0.1) == [False, True]


def test_a_blend_that_is_not_recovered_takes_nothing_from_others() -> None:
    scores = ImageScores({"psnr": [12.0, 25.0]}, blends=[[0, 1], [1, 2]])
    assert scores.recovered("psnr", PSNR, 20.0) == [False, True]
