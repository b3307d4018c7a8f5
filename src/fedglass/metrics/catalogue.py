"""The metrics by name, and all of them at once after matching."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedglass.core.errors import DataError, unknown_name
from fedglass.metrics import lpips, ssim
from fedglass.metrics.images import originals
from fedglass.metrics.lpips import Lpips
from fedglass.metrics.matching import Matching, match
from fedglass.metrics.psnr import psnr
from fedglass.metrics.rmse import rmse

SSIM_PAPER = (
    "Wang, Bovik, Sheikh, Simoncelli: Image Quality Assessment: From Error Visibility to Structural Similarity, IEEE "
    "TIP 2004, https://doi.org/10.1109/TIP.2003.819861"
)
LPIPS_PAPER = (
    "Zhang, Isola, Efros, Shechtman, Wang: The Unreasonable Effectiveness of Deep Features as a Perceptual Metric, "
    "CVPR 2018, https://arxiv.org/abs/1801.03924"
)


class Leaks(enum.Enum):
    """Which end of a metric means that more was recovered."""

    HIGHER = "higher"
    LOWER = "lower"


@dataclass(frozen=True)
class Metric:
    """A per-image figure, how to read it, and when it can not be had."""

    name: str
    title: str
    unit: str
    leaks: Leaks
    compute: Callable[[Tensor, Tensor], Tensor]
    why_not: Callable[[tuple[int, ...]], str | None]
    """From the shape (c, h, w) of one image: why there is no such figure, or None."""
    paper: str = ""

    def ranked(self, values: Sequence[float]) -> tuple[int, ...]:
        """Positions of the values, those that leaked most first.

        >>> metric("psnr").ranked([10.0, 30.0, 20.0]), metric("rmse").ranked([0.1, 0.3, 0.2])
        ((1, 2, 0), (0, 2, 1))
        """
        sign = -1.0 if self.leaks is Leaks.HIGHER else 1.0
        return tuple(sorted(range(len(values)), key=lambda i: sign * values[i]))


@dataclass(frozen=True)
class Scores:
    """Figures of each original, in the order of the originals."""

    values: Mapping[str, tuple[float, ...]]
    matching: Matching
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Metrics asked for but not computed, and why."""
    non_finite: tuple[int, ...] = ()
    """Originals whose reconstruction holds NaN or infinity."""

    def as_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and text for JSON."""
        return {
            "values": {name: list(v) for name, v in self.values.items()},
            "partner": list(self.matching.partner),
            "missing": list(self.matching.missing),
            "non_finite": list(self.non_finite),
            "skipped": dict(self.skipped),
        }


def score(
    reconstructed: Tensor,
    original: Tensor,
    names: Iterable[str] = ("psnr", "ssim", "rmse", "lpips"),
    matching: Matching | None = None,
) -> Scores:
    """Match on MSE (or take the given matching), then compute every named metric.

    Reconstructions are (m, c, h, w), originals (n, c, h, w). Missing reconstructions score as the worst,
    broken pixels as `images` says. LPIPS without weights, or a metric that such images do not have, is left
    out and explained in `skipped`.

    >>> image = torch.full((1, 1, 4, 4), 0.5)
    >>> score(image + 0.1, image, names=["rmse"]).values["rmse"][0]  # doctest: +ELLIPSIS
    0.1...
    """
    wanted = [metric(name) for name in dict.fromkeys(names)]
    truth = originals(original)
    pairing = match(reconstructed, truth) if matching is None else matching
    if len(pairing.partner) != len(truth):
        raise DataError(f"Expected a matching of the {len(truth)} originals, got one of {len(pairing.partner)}.")
    guess = pairing.apply(reconstructed.detach().cpu())
    reasons = {m.name: m.why_not(tuple(truth.shape[1:])) for m in wanted}
    return Scores(
        values={m.name: tuple(m.compute(guess, truth).tolist()) for m in wanted if reasons[m.name] is None},
        matching=pairing,
        skipped={name: reason for name, reason in reasons.items() if reason is not None},
        non_finite=_non_finite(guess, pairing),
    )


def names() -> tuple[str, ...]:
    """The metrics that `score` knows.

    >>> names()
    ('psnr', 'ssim', 'rmse', 'lpips')
    """
    return tuple(METRICS)


def metric(name: str) -> Metric:
    """The metric of that name.

    >>> metric("lpips").leaks
    <Leaks.LOWER: 'lower'>
    """
    if name not in METRICS:
        raise unknown_name("metric", name, METRICS)
    return METRICS[name]


def _non_finite(guess: Tensor, pairing: Matching) -> tuple[int, ...]:
    broken = (~torch.isfinite(guess.flatten(1))).any(1).tolist()
    return tuple(i for i, bad in enumerate(broken) if bad and pairing.partner[i] is not None)


def _always(shape: tuple[int, ...]) -> str | None:
    return None


def _lpips(reconstructed: Tensor, original: Tensor) -> Tensor:
    path = lpips.find_weights()
    if path is None:
        raise DataError(lpips.HOW_TO_PROVIDE)
    return _loaded(path, path.stat().st_mtime_ns)(reconstructed, original)


def _why_no_lpips(shape: tuple[int, ...]) -> str | None:
    return lpips.why_not(shape) if lpips.find_weights() else lpips.HOW_TO_PROVIDE


@functools.lru_cache(maxsize=1)
def _loaded(path: Path, changed: int) -> Lpips:
    """Weights are read once; `changed` makes a replaced file be read again."""
    return Lpips.load(path)


METRICS: Mapping[str, Metric] = {
    m.name: m
    for m in (
        Metric("psnr", "Peak signal-to-noise ratio", "dB", Leaks.HIGHER, psnr, _always),
        Metric("ssim", "Structural similarity", "", Leaks.HIGHER, ssim.ssim, ssim.why_not, SSIM_PAPER),
        Metric("rmse", "Root mean squared error", "", Leaks.LOWER, rmse, _always),
        Metric("lpips", "Learned perceptual distance", "", Leaks.LOWER, _lpips, _why_no_lpips, LPIPS_PAPER),
    )
}
