"""The size of the message, entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.parts import Binding, BoundTerm, Evaluation
from fedglass.attack.terms.term import Term
from fedglass.core.facts import Fact


@dataclass(frozen=True)
class ReweightedL1(Term):
    """Sum over entries of |g_j - y_j| / (1 + |y_j|), over the number of gradients [K. Zhu et al., 2025, Eq. 2].

    The paper's weight is "the reciprocal of the amount of gradients". Read as the number of tensors, of which a
    gradient is a list in the framework that the paper builds on, the term outweighs the cosine. Read as the number
    of entries it is a hundredth of it, and the second stage does little more than the first (measured on a
    ResNet-18). Relative error where |y_j| is large, absolute error where it is small. Not blind to scale: it needs
    the learning rate and the number of local steps, without which the message has no size.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.SIZE})

    def bind(self, binding: Binding) -> BoundTerm:
        return _weighed(binding.target, relative)


@dataclass(frozen=True)
class SupportReweightedL1(Term):
    """`ReweightedL1` where the observed message is not zero.

    For messages that were pruned: a zero that was sent there says nothing of the gradient.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.SIZE})

    def bind(self, binding: Binding) -> BoundTerm:
        return _weighed(binding.target, lambda y: relative(y) * (y != 0))


def relative(y: Tensor) -> Tensor:
    """1 / (1 + |y_j|), the weight of each entry of a gradient's tensor.  # (m,) -> (m,)

    >>> relative(torch.tensor([0.0, -1.0, 3.0]))
    tensor([1.0000, 0.5000, 0.2500])
    """
    return 1 / (1 + y.abs())


def _weighed(target: Sequence[Tensor], weight: Callable[[Tensor], Tensor]) -> BoundTerm:
    """Sum over entries of weight(y)_j |g_j - y_j|, over the number of tensors."""
    weights = [weight(y.reshape(-1)) / len(target) for y in target]

    def value(at: Evaluation) -> Tensor:
        total: Tensor | float = 0.0
        for g, y, w in zip(at.predicted, target, weights, strict=True):
            total = total + torch.dot((g - y).abs().reshape(-1), w)
        return torch.as_tensor(total)

    return value
