"""A term that matches running statistics, beside an objective that must not see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedglass.attack.parts import Binding, BoundTerm, Evaluation
from fedglass.attack.terms.term import Term
from fedglass.core.statistics import MEAN, VARIANCE

FLOOR = 1e-5
"""Added to variances, as torch's layers do."""


@dataclass(frozen=True)
class WithStatistics(Term):
    """The objective of the weights' part, and `weight` times how far the layers' statistics are from those seen.

    Means are compared in deviations and variances by their logarithm, so that each layer counts alike:
    mean over layers and channels of (mu - mu')^2 / var' + (log var - log var')^2 [cf. Yin et al., 2021, Eq. 9].
    """

    objective: Term
    weight: float = 1.0

    def bind(self, binding: Binding) -> BoundTerm:
        kinds = [name.rpartition(".")[2] for name in binding.names]
        told = [i for i, kind in enumerate(kinds) if kind in (MEAN, VARIANCE)]
        if not told:
            return self.objective.bind(binding)
        rest = [i for i in range(len(kinds)) if i not in told]
        names, target = binding.names, binding.target
        spread = {names[i].rpartition(".")[0]: target[i] for i in told if kinds[i] == VARIANCE}
        first, last = rest[0], rest[-1] + 1
        assert rest == list(range(first, last)), "statistics come after the weights"
        inner = self.objective.bind(replace(binding, target=target[first:last], names=names[first:last]))
        layers = [names[i].rpartition(".")[0] for i in told]
        ones = {layer: torch.ones_like(target[i]) for layer, i in zip(layers, told, strict=True)}
        scales = [spread.get(layer, ones[layer]).clamp(min=0) + FLOOR for layer in layers]
        rows = [(i, kinds[i] == MEAN, target[i], scale) for i, scale in zip(told, scales, strict=True)]
        weight = self.weight

        def value(at: Evaluation) -> Tensor:
            fit = inner(replace(at, predicted=at.predicted[first:last]))
            return fit + weight * _distance(at.predicted, rows)

        return value


def _distance(predicted: Sequence[Tensor], rows: Sequence[tuple[int, bool, Tensor, Tensor]]) -> Tensor:
    parts = [
        (predicted[i] - seen).square().div(scale).mean()
        if is_mean
        else (torch.log(predicted[i] + FLOOR) - torch.log(scale)).square().mean()
        for i, is_mean, seen, scale in rows
    ]
    return torch.stack(parts).mean()
