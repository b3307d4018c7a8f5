"""Terms of the objective, and combinations of them: sums, multiples, terms that start later, size-dependent weights.

Terms add and scale: `Cosine() + 0.01 * TotalVariation()`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedglass.attack.parts import Binding, BoundTerm, Evaluation
from fedglass.core.tensors import MEAN, VARIANCE


class Term(ABC):
    """A summand of the objective, a frozen dataclass without tensors."""

    @abstractmethod
    def bind(self, binding: Binding) -> BoundTerm:
        """Return the term's energy as a function of the iteration; compute here what depends only on the message."""

    def __add__(self, other: Term) -> Sum:
        return Sum((*_summands(self), *_summands(other)))

    def __mul__(self, weight: float) -> Scaled:
        return Scaled(float(weight), self)

    __rmul__ = __mul__


@dataclass(frozen=True, repr=False)
class Sum(Term):
    """The sum of its terms.

    >>> from fedglass.attack.terms.distance import Cosine, SquaredError
    >>> Cosine() + 0.5 * SquaredError()
    Cosine() + 0.5 * SquaredError()
    """

    terms: tuple[Term, ...]

    def bind(self, binding: Binding) -> BoundTerm:
        first, *later = (term.bind(binding) for term in self.terms)

        def value(at: Evaluation) -> Tensor:
            total = first(at)
            for term in later:
                total = total + term(at)
            return total

        return value

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.terms))


@dataclass(frozen=True, repr=False)
class Scaled(Term):
    """A term times a constant."""

    weight: float
    term: Term

    def bind(self, binding: Binding) -> BoundTerm:
        weight, term = self.weight, self.term.bind(binding)
        return lambda at: weight * term(at)

    def __repr__(self) -> str:
        inner = f"({self.term!r})" if isinstance(self.term, Sum | Scaled) else repr(self.term)
        return f"{self.weight!r} * {inner}"


def _summands(term: Term) -> tuple[Term, ...]:
    return term.terms if isinstance(term, Sum) else (term,)


FLOOR = 1e-5
"""Added to variances, as torch's layers do."""


@dataclass(frozen=True)
class After(Term):
    """Zero before the share `start` of the iterations, then the term; it costs nothing while it is off.

    Energies before and after are not comparable: a solver that returns its lowest iterate needs `LowestFrom(start)`,
    which compares only those of the whole objective.
    """

    term: Term
    start: float

    def bind(self, binding: Binding) -> BoundTerm:
        start, term = self.start, self.term.bind(binding)

        def value(at: Evaluation) -> Tensor:
            return term(at) if at.progress >= start else at.candidate.images.new_zeros(())

        return value


@dataclass(frozen=True)
class ScaleRule(Term):
    """A term times max(0, offset + slope ln(side)), side = sqrt(h w) [K. Zhu et al., 2025, Eq. 3].

    The weight depends on the size of the pictures. The paper defines neither `scale(x)` nor the logarithm: the natural
    one of the side gives the 0.0002 that it states for pictures of 32 x 32. For 224 x 224 it gives 0.00007 where the
    paper states 0.005, and the paper's text, a weight that increases with the scale, contradicts its equation, where it
    decreases. The equation is followed. It becomes negative beyond a side of 518, where the weight is zero here.
    """

    term: Term
    offset: float = 0.0005
    slope: float = -0.00008

    def bind(self, binding: Binding) -> BoundTerm:
        weight, term = self.weight(*binding.shape[1:]), self.term.bind(binding)
        return lambda at: weight * term(at)

    def weight(self, height: int, width: int) -> float:
        """Return the weight for pictures of that size.

        >>> from fedglass.attack.terms.priors import PixelVariation
        >>> round(ScaleRule(PixelVariation()).weight(32, 32), 6)
        0.000223
        """
        return max(0.0, self.offset + self.slope * math.log(math.sqrt(height * width)))


@dataclass(frozen=True)
class WithStatistics(Term):
    """The objective of the weights' part, plus `weight` times the distance of the layers' statistics to the observed.

    The objective itself does not see the statistics. Means are compared in deviations and variances by their logarithm,
    so that each layer counts alike: mean over layers and channels of (mu - mu')^2 / var' + (log var - log var')^2 [cf.
    Yin et al., 2021, Eq. 9].
    """

    objective: Term
    weight: float = 1.0

    def bind(self, binding: Binding) -> BoundTerm:
        kinds = [name.rpartition(".")[2] for name in binding.names]
        statistics = [i for i, kind in enumerate(kinds) if kind in (MEAN, VARIANCE)]
        if not statistics:
            return self.objective.bind(binding)
        weights = [i for i in range(len(kinds)) if i not in statistics]
        names, target = binding.names, binding.target
        spread = {names[i].rpartition(".")[0]: target[i] for i in statistics if kinds[i] == VARIANCE}
        first, last = weights[0], weights[-1] + 1
        assert weights == list(range(first, last)), "statistics come after the weights"
        inner = self.objective.bind(replace(binding, target=target[first:last], names=names[first:last]))
        layers = [names[i].rpartition(".")[0] for i in statistics]
        ones = {layer: torch.ones_like(target[i]) for layer, i in zip(layers, statistics, strict=True)}
        scales = [spread.get(layer, ones[layer]).clamp(min=0) + FLOOR for layer in layers]
        rows = [(i, kinds[i] == MEAN, target[i], scale) for i, scale in zip(statistics, scales, strict=True)]
        weight = self.weight

        def value(at: Evaluation) -> Tensor:
            fit = inner(replace(at, predicted=at.predicted[first:last]))
            return fit + weight * _distance(at.predicted, rows)

        return value


def _distance(predicted: Sequence[Tensor], rows: Sequence[tuple[int, bool, Tensor, Tensor]]) -> Tensor:
    parts = [
        (predicted[i] - observed).square().div(scale).mean()
        if is_mean
        else (torch.log(predicted[i] + FLOOR) - torch.log(scale)).square().mean()
        for i, is_mean, observed, scale in rows
    ]
    return torch.stack(parts).mean()
