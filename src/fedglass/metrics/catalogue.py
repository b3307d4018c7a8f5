"""The metrics by name, and all of them at once after matching."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedglass.core import registry
from fedglass.core.errors import DataError, UsageError
from fedglass.core.foreign import refused
from fedglass.core.scale import not_a_metric
from fedglass.metrics.images import Metric, originals
from fedglass.metrics.matching import Matching, match

USUAL = ("psnr", "ssim", "rmse", "lpips")
"""What is measured where nobody says what: installing a package with a metric changes no audit."""


@dataclass(frozen=True)
class Scores:
    """Figures of each original, in the order of the originals."""

    values: Mapping[str, tuple[float, ...]]
    matching: Matching
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Metrics asked for but not computed, and why."""
    non_finite: tuple[int, ...] = ()
    """Originals whose reconstruction holds NaN or infinity."""


def score(
    reconstructed: Tensor,
    original: Tensor,
    names: Iterable[str] = USUAL,
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
    wanted = {name: metric(name) for name in names}
    truth = originals(original)
    pairing = match(reconstructed, truth) if matching is None else matching
    if len(pairing.partner) != len(truth):
        raise DataError(f"Expected a matching of the {len(truth)} originals, got one of {len(pairing.partner)}.")
    guess = pairing.apply(reconstructed.detach().cpu())
    reasons = {name: why_not(name, tuple(truth.shape[1:])) for name in wanted}
    return Scores(
        values={name: _figures(name, guess, truth) for name in wanted if reasons[name] is None},
        matching=pairing,
        skipped={name: reason for name, reason in reasons.items() if reason is not None},
        non_finite=_non_finite(guess, pairing),
    )


def names() -> tuple[str, ...]:
    """The metrics that `score` knows.

    >>> names()
    ('rmse', 'psnr', 'ssim', 'lpips')
    """
    return registry.names("metrics")


def metric(name: str) -> Metric:
    """The metric of that name.

    >>> metric("lpips").scale.higher_leaks
    False
    """
    found = registry.find("metrics", name).value
    if not isinstance(found, Metric):
        raise not_a_metric(name, found)
    return found


def why_not(name: str, shape: tuple[int, ...]) -> str | None:
    """Why images (c, h, w) do not have the metric of that name, or None where they do."""
    with refused(lambda words: _failed(name, words)):
        return metric(name).why_not(shape)


def _figures(name: str, guess: Tensor, truth: Tensor) -> tuple[float, ...]:
    compute = metric(name).compute
    if registry.find("metrics", name).built_in:
        return tuple(compute(guess, truth).tolist())
    # Copies: the code of others may write into what it is given.
    with refused(lambda words: _failed(name, words)):
        found = compute(guess.clone(), truth.clone())
    if not isinstance(found, Tensor) or tuple(found.shape) != (len(truth),):
        got = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise UsageError(f"The metric {name!r} returned {got}, expected a tensor of one figure for each image.")
    return tuple(map(float, found.tolist()))


def _failed(name: str, words: str) -> UsageError:
    return UsageError(f"The metric {name!r} failed: {words}.")


def _non_finite(guess: Tensor, pairing: Matching) -> tuple[int, ...]:
    broken = (~torch.isfinite(guess.flatten(1))).any(1).tolist()
    return tuple(i for i, bad in enumerate(broken) if bad and pairing.partner[i] is not None)


# The share of images that count as recovered.


DLFA_FEMNIST_DB, DLFA_CIFAR100_DB = 20.0, 19.0
"""PSNR above which DLFA calls an image recovered."""


def share_above(values: Sequence[float], threshold: float) -> float:
    """Share of values strictly above the threshold: PSNR or SSIM. NaN is never above.

    >>> share_above([19.0, 20.0, 25.0, 31.0], threshold=20.0)
    0.5
    """
    if not values:
        raise DataError("Expected at least one value to take the recovered share of, got none.")
    return sum(value > threshold for value in values) / len(values)
