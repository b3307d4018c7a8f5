"""A weight that follows the size of the pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedglass.attack.parts import Binding, BoundTerm
from fedglass.attack.terms.term import Term


@dataclass(frozen=True)
class ScaleRule(Term):
    """A term times max(0, offset + slope ln(side)), side = sqrt(h w) [K. Zhu et al., 2025, Eq. 3].

    The paper says neither what `scale(x)` is nor which logarithm: the natural one of the side gives the 0.0002 that
    it states for pictures of 32 x 32. For 224 x 224 it gives 0.00007 where the paper states 0.005, and the paper's
    words, a weight that increases with the scale, contradict its equation, in which it decreases. The equation
    is followed. It turns negative beyond a side of 518, where the weight is zero here.
    """

    term: Term
    offset: float = 0.0005
    slope: float = -0.00008

    def bind(self, binding: Binding) -> BoundTerm:
        weight, term = self.weight(*binding.shape[1:]), self.term.bind(binding)
        return lambda at: weight * term(at)

    def weight(self, height: int, width: int) -> float:
        """The weight for pictures of that size.

        >>> from fedglass.attack.terms.total_variation import PixelVariation
        >>> round(ScaleRule(PixelVariation()).weight(32, 32), 6)
        0.000223
        """
        return max(0.0, self.offset + self.slope * math.log(math.sqrt(height * width)))
