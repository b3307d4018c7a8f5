"""Terms of the objective add and scale: `Cosine() + 0.01 * TotalVariation()`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from fedglass.attack.parts import Binding, BoundTerm, Evaluation


class Term(ABC):
    """A summand of the objective, a frozen dataclass without tensors."""

    @abstractmethod
    def bind(self, binding: Binding) -> BoundTerm:
        """The term's energy as a function of the iteration; what depends on the message alone is computed here."""

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
        first, *rest = (term.bind(binding) for term in self.terms)

        def value(at: Evaluation) -> Tensor:
            total = first(at)
            for term in rest:
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
