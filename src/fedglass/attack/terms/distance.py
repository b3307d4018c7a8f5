"""Distances between the observed message and the message of a candidate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.parts import Binding, BoundTerm, Evaluation
from fedglass.attack.terms.term import Term
from fedglass.core.facts import Fact

Weights = Sequence[float] | None
"""A weight for each tensor of the message; None if all have the same."""


def products(predicted: Iterable[Tensor], target: Sequence[Tensor], weights: Weights = None) -> tuple[Tensor, Tensor]:
    """Return sum_l w_l <g_l, y_l> and sum_l w_l |g_l|^2 over the tensors of a message, given as vectors.

    This is the one loop behind every term that compares directions.

    >>> g, y = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])], [torch.tensor([1.0, 1.0]), torch.tensor([2.0])]
    >>> products(g, y), products(g, y, [1.0, 0.5])
    ((tensor(9.), tensor(14.)), (tensor(6.), tensor(9.5000)))
    """
    product: Tensor | float = 0.0
    square: Tensor | float = 0.0
    # A dot product of vectors needs no temporary of their size.
    for g, y, w in zip(predicted, target, _weights_or_none(weights, len(target)), strict=True):
        if w is None:
            product = product + torch.dot(g, y)
            square = square + torch.dot(g, g)
        else:
            product = product + w * torch.dot(g, y)
            square = square + w * torch.dot(g, g)
    return torch.as_tensor(product), torch.as_tensor(square)


def norm(target: Sequence[Tensor], weights: Weights = None) -> Tensor:
    """Return the square root of sum_l w_l |y_l|^2, the tensors given as vectors."""
    rows = zip(target, _weights_or_none(weights, len(target)), strict=True)
    return torch.stack([torch.dot(y, y) if w is None else w * torch.dot(y, y) for y, w in rows]).sum().sqrt()


def cosine_distance(target: Sequence[Tensor], weights: Weights = None) -> Callable[[Iterable[Tensor]], Tensor]:
    """Return the distance 1 - <g, y>_w / (|g|_w |y|_w) as a function of g, all tensors given as vectors."""
    length = norm(target, weights)

    def distance(predicted: Iterable[Tensor]) -> Tensor:
        product, square = products(predicted, target, weights)
        return 1 - product / (torch.sqrt(square) * length)

    return distance


def _weights_or_none(weights: Weights, tensors: int) -> Iterable[float | None]:
    return repeat(None, tensors) if weights is None else weights


@dataclass(frozen=True)
class SquaredError(Term):
    """sum_l |g_l - y_l|^2 [Zhu et al., 2019, Eq. 4]."""

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.SIZE})

    def bind(self, binding: Binding) -> BoundTerm:
        target = binding.target

        def value(at: Evaluation) -> Tensor:
            pairs = zip(at.predicted, target, strict=True)
            return torch.stack([(g - y).square().sum() for g, y in pairs]).sum()

        return value


@dataclass(frozen=True)
class Cosine(Term):
    """1 - <g, y> / (|g| |y|) over the whole flattened message [Geiping et al., 2020, Eq. 4].

    It ignores the scale of the message, so that the learning rate and the number of steps need not be known.
    """

    def bind(self, binding: Binding) -> BoundTerm:
        distance = cosine_distance([y.reshape(-1) for y in binding.target])
        return lambda at: distance(g.flatten() for g in at.predicted)


@dataclass(frozen=True)
class SupportCosine(Term):
    """1 - cos(g_S, y_S) with S = {i: y_i != 0}, the support of the observed message [K. Zhu et al., 2025, Eq. 1].

    Outside of S the product with y vanishes anyway: this differs from `Cosine` only in the norm of g, which no longer
    counts entries of the candidate where nothing was observed.
    """

    def bind(self, binding: Binding) -> BoundTerm:
        target = [y.reshape(-1) for y in binding.target]
        # None for a tensor without zeros, which needs no mask.
        masks = [None if bool((y != 0).all()) else y != 0 for y in target]
        distance = cosine_distance(target)

        def value(at: Evaluation) -> Tensor:
            pairs = zip(at.predicted, masks, strict=True)
            return distance(g.reshape(-1) if mask is None else g.reshape(-1) * mask for g, mask in pairs)

        return value
