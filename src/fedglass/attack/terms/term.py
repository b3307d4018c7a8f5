"""Terms of the objective add and scale: `Cosine() + 0.01 * TotalVariation()`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from fedglass.attack.parts import Evaluation


class Term(ABC):
    """A summand of the objective, a frozen dataclass without tensors."""

    @abstractmethod
    def value(self, at: Evaluation) -> Tensor:
        """The scalar energy of this term, differentiable in the candidate."""

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

    def value(self, at: Evaluation) -> Tensor:
        total = self.terms[0].value(at)
        for term in self.terms[1:]:
            total = total + term.value(at)
        return total

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.terms))


@dataclass(frozen=True, repr=False)
class Scaled(Term):
    """A term times a constant."""

    weight: float
    term: Term

    def value(self, at: Evaluation) -> Tensor:
        return self.weight * self.term.value(at)

    def __repr__(self) -> str:
        inner = f"({self.term!r})" if isinstance(self.term, Sum | Scaled) else repr(self.term)
        return f"{self.weight!r} * {inner}"


def _summands(term: Term) -> tuple[Term, ...]:
    return term.terms if isinstance(term, Sum) else (term,)
