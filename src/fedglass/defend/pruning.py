"""Defences that set entries to zero: the smallest or random ones of an update, or those that tell most (Soteria).

Pruning removes an exact number of entries, over all parameters together or in each parameter. `RandomDrop` decides
about each entry separately, so the number of removed entries is random.

Soteria prunes the representation that enters the last dense layer, where it tells most about the input. The layer's
weight gradient is a sum of outer products of the error with that representation r = f(X). Soteria replaces r by an r'
that differs in few entries and yet leads a reconstruction far from X: with the first-order change r_i (dr_i/dX)^-1 of
the input, it zeroes the entries of largest ||r_i (dr_i/dX)^-1|| [Sun et al., 2021, Section 4]. dr_i/dX is a row vector,
whose pseudo-inverse has norm 1 / ||dr_i/dX||, so the score is |r_i| / ||dr_i/dX||. The definition was read from the
abstract and from the authors' release, jeremy313/Soteria; the wording of the paper's algorithm, and what it does with a
batch of several examples, could not be confirmed.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.core.errors import ModelError
from fedglass.core.registry import register
from fedglass.core.tensors import Update, flatten, kth_smallest, unflatten
from fedglass.core.text import DLFA, DLG
from fedglass.defend.noise import uniform
from fedglass.defend.per_example import (
    Strength,
    check_positive,
    check_share,
    example_gradients,
    refuse_mixed_examples,
    register_gradient_forms,
)
from fedglass.fl.local import MeanGradient, Step
from fedglass.fl.release import Outgoing, limits_of_zeros, smallest_kept

SOTERIA = (
    "Sun, Li, Wang, Yang, Li, Chen: Soteria: Provable Defense against Privacy Leakage in Federated Learning from "
    "Representation Perspective, CVPR 2021, https://arxiv.org/abs/2012.06043"
)
ROWS = 16
"""How many rows of the Jacobian are computed at once."""


def lowest(values: Tensor, count: int) -> Tensor:
    """Mark exactly `count` of the lowest entries; among equal ones those that come first.  # (d,) -> (d,) bool

    A threshold alone would take all or none of the entries that are equal to it.

    >>> lowest(torch.tensor([3.0, 1.0, 1.0, 2.0]), 1)
    tensor([False,  True, False, False])
    """
    if count == 0:
        return torch.zeros_like(values, dtype=torch.bool)
    threshold = kth_smallest(values, count)
    below = values < threshold
    equal = values == threshold
    return below | (equal & (equal.cumsum(0) <= count - below.sum()))


def count_of(share: float, entries: int) -> int:
    """Return the share of that many entries, to the nearest whole number.

    >>> count_of(0.7, 10), count_of(0.0, 10)
    (7, 0)
    """
    return round(share * entries)


@dataclass(frozen=True)
class _Pruning(ABC):
    """Base of the defences with an exact share of entries to prune."""

    share: float
    strength: ClassVar = Strength("share", 0.5, 0.999, origin=1)

    def __post_init__(self) -> None:
        check_share(self, "share")


@register("defences", "magnitude_pruning", summary="the update's smallest entries set to zero", paper=DLG)
@dataclass(frozen=True)
class MagnitudePruning(_Pruning):
    """Set the given share of all entries to zero: those of smallest magnitude [Zhu et al., 2019, Section 5.2].

    The threshold is over all parameters together, as in the evaluation of coarse-to-fine inversion. Exactly
    round(share * d) entries are pruned, also where several have the magnitude of the threshold.

    >>> import torch
    >>> update = {"a": torch.tensor([1.0, -4.0]), "b": torch.tensor([3.0, 2.0])}
    >>> MagnitudePruning(share=0.5).release(Outgoing(update, torch.Generator()))
    {'a': tensor([ 0., -4.]), 'b': tensor([3., 0.])}
    """

    def release(self, leaving: Outgoing) -> Update:
        return unflatten(pruned(flatten(leaving.update), self.share), leaving.update)

    def limits(self, low: Update, high: Update) -> tuple[Update, Update]:
        return limits_of_zeros(low, high, smallest_kept(low, high))


@register("defences", "layer_magnitude_pruning", summary="each layer's smallest entries set to zero", paper=DLG)
@dataclass(frozen=True)
class LayerMagnitudePruning(_Pruning):
    """Sets the given share of each parameter's entries to zero: those of smallest magnitude.

    This is what the releases of Soteria and of OUTPOST do as gradient compression, there with a percentile as
    threshold.

    >>> import torch
    >>> update = {"a": torch.tensor([1.0, -4.0]), "b": torch.tensor([9.0, 8.0])}
    >>> LayerMagnitudePruning(share=0.5).release(Outgoing(update, torch.Generator()))
    {'a': tensor([ 0., -4.]), 'b': tensor([9., 0.])}
    """

    def release(self, leaving: Outgoing) -> Update:
        return {name: pruned(t.reshape(-1), self.share).view_as(t) for name, t in leaving.update.items()}

    def limits(self, low: Update, high: Update) -> tuple[Update, Update]:
        pairs = [({name: low[name]}, {name: high[name]}) for name in low]
        widened = [limits_of_zeros(*pair, smallest_kept(*pair)) for pair in pairs]
        return {n: t for lows, _ in widened for n, t in lows.items()}, {n: t for _, h in widened for n, t in h.items()}


def pruned(values: Tensor, share: float) -> Tensor:
    """Return the vector with the share of smallest magnitude set to zero.  # (d,) -> (d,)"""
    return values.masked_fill(lowest(values.abs(), count_of(share, values.numel())), 0.0)


@register(
    "defences", "random_pruning", summary="an exact share of the update's entries set to zero at random", paper=DLFA
)
@dataclass(frozen=True)
class RandomPruning(_Pruning):
    """Sets exactly round(share * d) of all entries to zero, drawn at random over all parameters together."""

    def release(self, leaving: Outgoing) -> Update:
        return unflatten(_randomly_pruned(flatten(leaving.update), self.share, leaving.generator), leaving.update)

    def limits(self, low: Update, high: Update) -> tuple[Update, Update]:
        return limits_of_zeros(low, high)


@register("defences", "layer_random_pruning", summary="an exact share of each layer set to zero at random", paper=DLFA)
@dataclass(frozen=True)
class LayerRandomPruning(_Pruning):
    """Sets exactly round(share * d) of the d entries of each parameter to zero, drawn at random."""

    def release(self, leaving: Outgoing) -> Update:
        return {
            name: _randomly_pruned(tensor.reshape(-1), self.share, leaving.generator).view_as(tensor)
            for name, tensor in leaving.update.items()
        }

    def limits(self, low: Update, high: Update) -> tuple[Update, Update]:
        return limits_of_zeros(low, high)


@register_gradient_forms("random_drop", "random entries of each example's gradient set to zero in every local step")
@register("defences", "random_drop", summary="each entry of the update set to zero with a probability", paper=DLFA)
@dataclass(frozen=True)
class RandomDrop:
    """Sets each entry to zero with the given probability, independently [Dimitrov et al., 2022, Appendix C.1].

    The kept entries are not scaled up, as in the paper's release. How many are kept is random.
    """

    probability: float
    strength: ClassVar = Strength("probability", 0.5, 0.999, origin=1)

    def __post_init__(self) -> None:
        check_share(self, "probability")

    def release(self, leaving: Outgoing) -> Update:
        noise, dropped = leaving.generator, self.probability
        return {name: t.masked_fill(uniform(t, noise) < dropped, 0.0) for name, t in leaving.update.items()}

    def limits(self, low: Update, high: Update) -> tuple[Update, Update]:
        return limits_of_zeros(low, high)


def _randomly_pruned(values: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return the vector with a random share set to zero.  # (d,) -> (d,)"""
    order = torch.randperm(values.numel(), generator=generator, device=generator.device)
    chosen = order[: count_of(share, values.numel())].to(values.device)
    return values.index_fill(0, chosen, 0.0)


@register("defences", "soteria", summary="each example's representation pruned where it tells most", paper=SOTERIA)
@dataclass(frozen=True)
class Soteria(_Pruning):
    """Zero the share of each example's representation with the largest |r_i| / ||dr_i/dX|| [Sun et al., 2021].

    Only the weight gradient of the last dense layer changes: mean_b delta_b r'_b^T. Entries of r that do not depend
    on the input have nothing to hide and are pruned last.
    """

    def gradient(self, step: Step) -> Sequence[Tensor]:
        gradient = list(MeanGradient().gradient(step))
        features, slopes = representation(step)
        count = count_of(self.share, features.shape[1])
        if count == 0:
            return gradient
        scores = torch.where(slopes > 0, features.abs() / slopes, 0.0)
        mask = torch.stack([~lowest(-row, count) for row in scores])  # (b, features)
        head = step.network.names.index(step.network.head[0])
        gradient[head] = _masked_mean(step, head, mask)
        return gradient


@register("defences", "soteria_released", summary="the same with one mask for the batch, as released", paper=SOTERIA)
@dataclass(frozen=True)
class SoteriaReleased(_Pruning):
    """Soteria with one mask for the batch, as the authors' release has it.

    It zeroes the columns with the smallest sum_b ||dr_bi/dX_b|| / (r_bi + 0.1), the inverse of the score, with a
    shift against division by zero. The release takes a percentile as threshold, here the share is exact; plato,
    the framework of OUTPOST, leaves the shift out.
    """

    shift: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "shift")

    def gradient(self, step: Step) -> Sequence[Tensor]:
        gradient = list(MeanGradient().gradient(step))
        features, slopes = representation(step)
        count = count_of(self.share, features.shape[1])
        ratios = (slopes / (features + self.shift)).sum(0).abs()  # (features,)
        head = step.network.names.index(step.network.head[0])
        gradient[head] = gradient[head] * ~lowest(ratios, count)
        return gradient


def representation(step: Step) -> tuple[Tensor, Tensor]:
    """Return the input r of the last dense layer, and ||dr_i/dX|| for each of its entries.  # (b, features) both"""
    refuse_mixed_examples(step)
    with torch.enable_grad():
        inputs = step.inputs.detach().requires_grad_()
        _, features = step.network.features([w.detach() for w in step.weights], inputs)
        if features.ndim != 2 or not features.requires_grad:
            raise ModelError(
                "Soteria prunes the representation that enters the last dense layer, expected of shape (examples, "
                f"features) and computed from the images, got {tuple(features.shape)}: choose another network."
            )
        basis = torch.eye(features.shape[1], dtype=features.dtype, device=features.device)
        norms = [_slopes(features, inputs, rows) for rows in torch.split(basis, ROWS)]
    return features.detach(), torch.cat(norms).T


def _slopes(features: Tensor, inputs: Tensor, rows: Tensor) -> Tensor:
    """Return the norms of some rows of the Jacobian, for every example.  # (rows, features) -> (rows, b)"""
    # Examples do not mix, so one backward pass of r_i summed over the batch holds each example's own row.
    directions = rows[:, None, :].expand(-1, len(inputs), -1)
    (jacobian,) = torch.autograd.grad(features, inputs, directions, is_grads_batched=True, retain_graph=True)
    norms: Tensor = torch.linalg.vector_norm(jacobian.flatten(2), dim=2)
    return norms


def _masked_mean(step: Step, head: int, mask: Tensor) -> Tensor:
    """Return mean_b of the head's weight gradient of example b, times that example's mask.  # (classes, features)"""
    total, done = torch.zeros_like(step.weights[head]), 0
    for (chunk,) in example_gradients(step, only=[head]):  # (chunk, classes, features)
        total = total + (chunk * mask[done : done + len(chunk), None, :]).sum(0)
        done += len(chunk)
    return total / done
