"""The metrics by name, all of them at once after matching, and the share of images that count as recovered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedglass.core import registry
from fedglass.core.errors import DataError, UsageError
from fedglass.core.metric_scale import not_a_metric
from fedglass.core.user_code import refused
from fedglass.metrics.images import Metric, originals
from fedglass.metrics.matching import Matching, match

DEFAULT_METRICS = ("psnr", "ssim", "rmse", "lpips")
"""The metrics that are measured by default: installing a package with a metric changes no audit."""
DLFA_FEMNIST_DB, DLFA_CIFAR100_DB = 20.0, 19.0
"""PSNR above which DLFA calls an image recovered."""


@dataclass(frozen=True)
class Scores:
    """Figures of each original, in the order of the originals."""

    values: Mapping[str, tuple[float, ...]]
    matching: Matching
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Requested metrics that were not computed, with the reason."""
    non_finite: tuple[int, ...] = ()
    """Originals with a reconstruction that holds NaN or infinity."""


def score(
    reconstructed: Tensor,
    original: Tensor,
    names: Iterable[str] = DEFAULT_METRICS,
    matching: Matching | None = None,
) -> Scores:
    """Match on MSE (or take the given matching), then compute every named metric.

    Reconstructions are (m, c, h, w), originals (n, c, h, w). Missing reconstructions get the worst score, broken pixels
    count as described in `images`. LPIPS without weights, or a metric that does not exist for such images, is left out
    and explained in `skipped`.

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
    broken = (~torch.isfinite(guess.flatten(1))).any(1).tolist()
    reasons = {name: why_not(name, tuple(truth.shape[1:])) for name in wanted}
    return Scores(
        values={name: _figures(name, guess, truth) for name in wanted if reasons[name] is None},
        matching=pairing,
        skipped={name: reason for name, reason in reasons.items() if reason is not None},
        non_finite=tuple(i for i, bad in enumerate(broken) if bad and pairing.partner[i] is not None),
    )


def names() -> tuple[str, ...]:
    """Return the metrics that `score` knows.

    >>> names()
    ('rmse', 'psnr', 'ssim', 'lpips')
    """
    return registry.names("metrics")


def metric(name: str) -> Metric:
    """Return the metric of that name.

    >>> metric("lpips").scale.higher_leaks
    False
    """
    part = registry.find("metrics", name).value
    if not isinstance(part, Metric):
        raise not_a_metric(name, part)
    return part


def why_not(name: str, shape: tuple[int, ...]) -> str | None:
    """Return why images (c, h, w) do not have the metric of that name, or None if they do."""
    with refused(lambda reason: _failed(name, reason)):
        return metric(name).why_not(shape)


def _figures(name: str, guess: Tensor, truth: Tensor) -> tuple[float, ...]:
    compute = metric(name).compute
    if registry.find("metrics", name).built_in:
        return tuple(compute(guess, truth).tolist())
    # Copies, since foreign code may write into its arguments.
    with refused(lambda reason: _failed(name, reason)):
        figures = compute(guess.clone(), truth.clone())
    if not isinstance(figures, Tensor) or tuple(figures.shape) != (len(truth),):
        got = f"shape {tuple(figures.shape)}" if isinstance(figures, Tensor) else type(figures).__name__
        raise UsageError(f"The metric {name!r} returned {got}, expected a tensor of one figure for each image.")
    return tuple(map(float, figures.tolist()))


def _failed(name: str, reason: str) -> UsageError:
    return UsageError(f"The metric {name!r} failed: {reason}.")


def share_above(values: Sequence[float], threshold: float) -> float:
    """Return the share of values strictly above the threshold: PSNR or SSIM. NaN is never above.

    >>> share_above([19.0, 20.0, 25.0, 31.0], threshold=20.0)
    0.5
    """
    if not values:
        raise DataError("Expected at least one value to take the recovered share of, got none.")
    return sum(value > threshold for value in values) / len(values)
