"""A distance that saturates: the Gaussian kernel of each layer's difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.parts import Binding, BoundTerm, Evaluation
from fedglass.attack.terms.layers import layer_depths
from fedglass.attack.terms.term import Term
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact


@dataclass(frozen=True)
class GaussianKernel(Term):
    """sum_l q_l (1 - exp(-mean|g_l - y_l|^2 / (width Var y_l))) [Wang et al., 2020 and 2022, SAPAG].

    q_l = 1 / (1 + depth): layers near the input weigh more. The bandwidth is the variance of the observed layer, so
    that it adapts to initialisation and training ("self-adaptive"). Confirmed from the papers' abstracts: a Gaussian
    kernel of the difference that adapts to the variance of the gradients and to the architecture. The mean over
    entries is ours (with a sum the exponential is zero in floating point for any start, and its gradient with
    it). The authors' code is not public: variance by layer and q_l are as in a re-implementation by others
    (github.com/NielsFuglsang/02460-advanced-machine-learning), and could not be confirmed.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.SIZE})

    width: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.width) and self.width > 0):
            raise UsageError(f"kernel.width must be a finite number above 0, got {self.width!r}.")

    def bind(self, binding: Binding) -> BoundTerm:
        target = binding.target
        scales = self._bandwidths(target)
        weights = [1 / (1 + depth) for depth in layer_depths(binding.names)]

        def value(at: Evaluation) -> Tensor:
            rows = zip(at.predicted, target, scales, weights, strict=True)
            return torch.stack([q * -torch.expm1(-(g - y).square().mean() / s) for g, y, s, q in rows]).sum()

        return value

    def _bandwidths(self, target: Sequence[Tensor]) -> list[Tensor]:
        overall = torch.cat([y.reshape(-1) for y in target]).var(unbiased=False)
        spreads = [y.var(unbiased=False) for y in target]
        # A layer whose entries are all the same has no width of its own.
        return [self.width * torch.where(v > 0, v, overall) for v in spreads]
