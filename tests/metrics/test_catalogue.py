"""Scores after matching: in the order of the originals, JSON-able, and open about what was left out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fedglass.core.errors import DataError, UsageError
from fedglass.core.registry import built_in, names
from fedglass.core.rng import stream
from fedglass.metrics.catalogue import DEFAULT_METRICS, Matching, metric, score
from fedglass.metrics.images import psnr, rmse, ssim
from fedglass.metrics.lpips import ALEX, HOW_TO_PROVIDE, Lpips


def images(n: int, *name: str | int, side: int = 16) -> Tensor:
    return torch.rand(n, 1, side, side, generator=stream(4, *name))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No weights but those of the test."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FEDGLASS_LPIPS", raising=False)
    return tmp_path


@pytest.fixture
def weights(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    generator = stream(0, "weights")
    tensors = {n: torch.rand(s, generator=generator) - 0.4 for n, s in ALEX.shapes().items()}
    save_file(tensors, home / "w.safetensors")
    monkeypatch.setenv("FEDGLASS_LPIPS", str(home / "w.safetensors"))
    return home / "w.safetensors"


def test_each_figure_is_that_of_the_matched_pair(weights: Path):
    truth = images(4, "t")
    guess = truth + 0.1 * images(4, "n")
    order = [3, 1, 0, 2]
    found = score(guess[order], truth)
    assert found.matching.partner == (2, 1, 3, 0)
    assert found.skipped == {}
    alone = {"psnr": psnr, "ssim": ssim, "rmse": rmse, "lpips": Lpips.load(weights)}
    assert tuple(found.values) == DEFAULT_METRICS == tuple(alone)
    assert set(DEFAULT_METRICS) == set(names("metrics"))
    for name, function in alone.items():
        assert found.values[name] == pytest.approx(function(guess, truth).tolist(), rel=1e-5)


def test_without_weights_lpips_is_left_out_and_the_reason_given():
    truth = images(2, "t")
    found = score(truth, truth)
    assert set(found.values) == {"psnr", "ssim", "rmse"}
    assert found.skipped == {"lpips": HOW_TO_PROVIDE}
    assert "FEDGLASS_LPIPS" in HOW_TO_PROVIDE


def test_images_too_small_for_ssim_still_get_the_other_figures():
    truth = images(2, "t", side=8)
    found = score(truth, truth, names=["ssim", "psnr"])
    assert found.values == {"psnr": (100.0, 100.0)}
    assert "at least 11 x 11" in found.skipped["ssim"]


def test_replaced_weights_are_read_again(weights: Path):
    truth, guess = images(1, "t"), images(1, "g")
    before = score(guess, truth, names=["lpips"]).values["lpips"]
    save_file({n: torch.zeros(s) for n, s in ALEX.shapes().items()}, weights)
    assert before[0] != 0
    assert score(guess, truth, names=["lpips"]).values["lpips"] == (0.0,)


def test_damaged_weights_are_an_error_and_not_a_silent_gap(weights: Path):
    weights.write_bytes(b"x" * 100)
    with pytest.raises(DataError, match="damaged"):
        score(images(1, "t"), images(1, "t"))


def test_missing_and_broken_reconstructions_score_worst_and_are_listed():
    truth = images(3, "t")
    guess = torch.stack([truth[2], torch.full_like(truth[0], torch.nan)])
    found = score(guess, truth, names=["psnr", "ssim", "rmse"])
    broken = next(i for i, p in enumerate(found.matching.partner) if p == 1)
    missing = 1 - broken
    assert found.matching.partner[2] == 0
    assert [i for i, p in enumerate(found.matching.partner) if p is None] == [missing]
    assert found.values["psnr"][2] == 100.0
    for i in (broken, missing):
        assert found.values["psnr"][i] <= psnr(1 - truth[[i]], truth[[i]]).item()
    assert set(score(truth[:0], truth).matching.partner) == {None}


def test_a_given_matching_is_used():
    truth = images(2, "t")
    swapped = score(truth, truth, names=["psnr"], matching=Matching((1, 0)))
    assert swapped.values["psnr"] == pytest.approx(psnr(truth.flip(0), truth).tolist())
    with pytest.raises(DataError, match="matching of the 2 originals, got one of 1"):
        score(truth, truth, matching=Matching((0,)))


def test_unknown_metrics_are_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="Unknown metric 'pnsr': did you mean 'psnr'"):
        score(images(1), images(1), names=["pnsr"])


@pytest.mark.parametrize("name", built_in("metrics"))
def test_the_stated_direction_is_right(weights: Path, name: str):
    truth = images(2, "t")
    near, far = (score(truth + s * images(2, "n"), truth, names=[name]).values[name] for s in (0.01, 1.0))
    better = metric(name).scale.best
    for pair in zip(near, far, strict=True):
        assert better(pair) == pair[0] != pair[1]


OWN = """
import torch
from fedglass.core.metric_scale import Scale
from fedglass.metrics.images import Metric

scale = Scale("Own")
writes = Metric(lambda a, b: a.zero_().sum((1, 2, 3)), scale)
single = Metric(lambda a, b: (a - b).mean(), scale)
raises = Metric(lambda a, b: {}["width"], scale)
never = Metric(lambda a, b: a.sum((1, 2, 3)), scale, lambda shape: "never")
function = torch.mean
"""


def test_a_metric_of_others_is_computed_and_what_is_wrong_with_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "metrics_of_others.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    truth = images(2, "t")
    found = score(truth, truth, names=["metrics_of_others:writes", "psnr", "metrics_of_others:never"])
    assert found.values["metrics_of_others:writes"] == (0.0, 0.0)
    assert found.values["psnr"] == (100.0, 100.0), "it wrote into a copy"
    assert found.skipped == {"metrics_of_others:never": "never"}
    for name, said in {
        "single": r"returned shape \(\), expected a tensor of one figure for each image",
        "raises": "failed: KeyError: 'width'",
        "function": r"expected a fedglass\.Metric: wrap the function",
    }.items():
        with pytest.raises(UsageError, match=said):
            score(truth, truth, names=[f"metrics_of_others:{name}"])
