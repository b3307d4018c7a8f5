"""A term that joins the objective on its way."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedglass.attack.parts import Binding, BoundTerm, Evaluation
from fedglass.attack.terms.term import Term


@dataclass(frozen=True)
class After(Term):
    """Nothing before the share `start` of the way, the term from there on; it costs nothing while it is off.

    Energies before and after are not comparable: a solver that returns its lowest iterate wants
    `LowestFrom(start)`, which compares those of the whole objective only.
    """

    term: Term
    start: float

    def bind(self, binding: Binding) -> BoundTerm:
        start, term = self.start, self.term.bind(binding)

        def value(at: Evaluation) -> Tensor:
            return term(at) if at.progress >= start else at.candidate.images.new_zeros(())

        return value
