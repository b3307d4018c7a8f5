"""The best pairing of reconstructions and originals, since a message has no order, and the same for labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, bincount

from fedglass.core.errors import DataError, UsageError
from fedglass.core.tensors import assign, squared_distances
from fedglass.metrics.images import MOST_RANGES, batch, decibels, mse, originals


@dataclass(frozen=True)
class Matching:
    """The reconstruction paired with each original; None where there were too few."""

    partner: tuple[int | None, ...]

    @property
    def missing(self) -> tuple[int, ...]:
        """The originals without a reconstruction."""
        return tuple(i for i, p in enumerate(self.partner) if p is None)

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
