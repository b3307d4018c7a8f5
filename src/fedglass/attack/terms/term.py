"""Terms of the objective, and combinations of them: sums, multiples, terms that start later, size-dependent weights.

Terms add and scale: `Cosine() + 0.01 * TotalVariation()`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
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
        return lambda at: sum((term(at) for term in later), first(at))

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
        names, target = binding.names, binding.target
        # Statistics come after the weights.
        count = sum(name.rpartition(".")[2] not in (MEAN, VARIANCE) for name in names)
        if count == len(names):
            return self.objective.bind(binding)
        inner = self.objective.bind(replace(binding, target=target[:count], names=names[:count]))
        observed = dict(zip(names[count:], target[count:], strict=True))
        variance_of = {name: name.removesuffix(MEAN) + VARIANCE if name.endswith(MEAN) else name for name in observed}
        scales = [observed.get(variance_of[n], torch.ones_like(t)).clamp(min=0) + FLOOR for n, t in observed.items()]
        weight = self.weight

        def value(at: Evaluation) -> Tensor:
            rows = zip(observed.items(), at.predicted[count:], scales, strict=True)
            parts = [
                (predicted - mean).square().div(scale).mean()
                if name.endswith(MEAN)
                else (torch.log(predicted + FLOOR) - torch.log(scale)).square().mean()
                for (name, mean), predicted, scale in rows
            ]
            return inner(replace(at, predicted=at.predicted[:count])) + weight * torch.stack(parts).mean()

        return value
