"""The metrics by name, all of them at once after matching, and the share of images that count as recovered.

The best pairing of reconstructions and originals, since a message has no order, and the same for labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, bincount

from fedglass.core import registry
from fedglass.core.errors import DataError, UsageError, refused
from fedglass.core.metric_scale import not_a_metric
from fedglass.core.tensors import assign, squared_distances
from fedglass.metrics.images import MOST_RANGES, Metric, batch, decibels, mse, originals

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
    reasons = {name: why_not(name, tuple(truth.shape[1:])) for name in wanted}
    return Scores(
        values={name: _figures(name, guess, truth) for name in wanted if reasons[name] is None},
        matching=pairing,
        skipped={name: reason for name, reason in reasons.items() if reason is not None},
    )


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


@dataclass(frozen=True)
class Matching:
    """The reconstruction paired with each original; None where there were too few."""

    partner: tuple[int | None, ...]

    def apply(self, reconstructed: Tensor) -> Tensor:
        """Return the reconstructions in the order of the originals, NaN where one is missing.  # -> (n, c, h, w)

        >>> Matching((1, None)).apply(torch.tensor([5.0, 7.0]).view(2, 1, 1, 1)).flatten()
        tensor([7., nan])
        """
        used = [p for p in self.partner if p is not None]
        if used and max(used) >= len(reconstructed):
            raise DataError(
                f"Expected the reconstructions that were matched, at least {max(used) + 1}, got {len(reconstructed)}."
            )
        ordered = reconstructed.new_full((len(self.partner), *reconstructed.shape[1:]), torch.nan)
        for i, p in enumerate(self.partner):
            if p is not None:
                ordered[i] = reconstructed[p]
        return ordered


def match(reconstructed: Tensor, original: Tensor) -> Matching:
    """Return the one-to-one pairing with the least total MSE, as SME reports it.  # (m, c, h, w), (n, c, h, w)

    With fewer reconstructions than originals, some originals have no partner; with more, the worst have none.

    >>> a, b = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
    >>> match(torch.cat([b, a]), torch.cat([a, b])).partner
    (1, 0)
    """
    return _optimal(lambda noise: noise, reconstructed, original)


def match_by_psnr(reconstructed: Tensor, original: Tensor) -> Matching:
    """Return the one-to-one pairing with the greatest total PSNR, not clipped, as DLFA reports it.

    It prefers one very good pair to two fair ones more than `match` does.
    """
    return _optimal(lambda noise: -decibels(noise), reconstructed, original)


def _optimal(cost: Callable[[Tensor], Tensor], reconstructed: Tensor, original: Tensor) -> Matching:
    """Return the pairing of least total cost, which is a function of the MSE."""
    guess, truth = batch("reconstructed", reconstructed), originals(original)
    if guess.shape[1:] != truth.shape[1:]:
        raise DataError(
            f"Expected reconstructions of shape {tuple(truth.shape[1:])} as the originals have, got "
            f"{tuple(guess.shape[1:])}."
        )
    if len(guess) == 0:
        return Matching((None,) * len(truth))
    return Matching(_partners(cost(_errors(guess, truth))))


def _errors(guess: Tensor, truth: Tensor) -> Tensor:
    """Return `mse` of every pair: by one product for sound images, image by image if pixels are broken.

    # (m, c, h, w), (n, c, h, w) -> (m, n)
    """
    sound = torch.isfinite(guess).flatten(1).all(1)
    table = truth.new_empty(len(guess), len(truth))
    table[sound] = squared_distances(guess[sound].clamp(-MOST_RANGES, MOST_RANGES), truth)
    for i in (~sound).nonzero().flatten().tolist():
        table[i] = mse(guess[i].expand_as(truth), truth)
    return table


def _partners(table: Tensor) -> tuple[int | None, ...]:
    """Return the row chosen for each column.  # (m, n) -> n entries"""
    m, n = table.shape
    if m >= n:
        return tuple(int(p) for p in assign(table.T))
    partner: list[int | None] = [None] * n
    for row, column in enumerate(assign(table).tolist()):
        partner[column] = row
    return tuple(partner)


def label_errors(recovered: Tensor, true: Tensor, classes: int) -> int:
    """Count the labels that an attack got wrong, in any order [Dimitrov et al., 2022].  # (n,), (n,) -> 0..n

    It is half the L1 distance of the label counts. For lists of different lengths it is max(lengths) - overlap: each
    label that is missing, superfluous or exchanged counts once. A recovered label of -1 is one that the attack could
    not read.

    >>> from torch import tensor
    >>> label_errors(tensor([3, 1, 1]), tensor([1, 2, 3]), classes=5)
    1
    >>> label_errors(tensor([1]), tensor([1, 2, 3]), 5), label_errors(tensor([1, -1]), tensor([1, 2]), 5)
    (2, 1)
    """
    if classes < 1:
        raise UsageError(f"Expected classes to be at least 1, got {classes}.")
    readable = recovered[recovered != -1] if recovered.ndim == 1 else recovered
    recovered_counts, true_counts = (_counts(n, x, classes) for n, x in (("recovered", readable), ("true", true)))
    overlap = recovered_counts.minimum(true_counts).sum()
    return max(len(recovered), len(true)) - int(overlap)


def _counts(name: str, labels: Tensor, classes: int) -> Tensor:
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
        raise DataError(
            f"Expected {name} labels as whole numbers in one dimension, got {labels.dtype} of shape "
            f"{tuple(labels.shape)}."
        )
    labels = labels.detach().cpu().long()
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise DataError(
            f"Expected {name} labels in 0..{classes - 1}, got {int(labels.min())}..{int(labels.max())}: "
            "check the number of classes."
        )
    return bincount(labels, minlength=classes)
