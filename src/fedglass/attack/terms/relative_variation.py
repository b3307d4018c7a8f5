"""Total variation and contrast apart, for operators that do not see the contrast."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedglass.attack.parts import Binding, BoundTerm, Evaluation
from fedglass.attack.terms.term import Term
from fedglass.attack.terms.total_variation import TotalVariation


@dataclass(frozen=True)
class RelativeVariation(Term):
    """`TotalVariation` of x over the root mean square of x, in whitened coordinates.

    Batch statistics behind a convolution without bias make the gradient the same for x and for a x. A plain
    total variation then lets all contrast fade, since that costs nothing; this one does not know a either.
    """

    def bind(self, binding: Binding) -> BoundTerm:
        variation = TotalVariation().bind(binding)
        return lambda at: variation(at) / contrast(at)


@dataclass(frozen=True)
class UsualContrast(Term):
    """(root mean square of x - 1)^2: whitened data have it at 1, which settles what the message leaves open."""

    def bind(self, binding: Binding) -> BoundTerm:
        return lambda at: (contrast(at) - 1).square()


def contrast(at: Evaluation) -> Tensor:
    """The root mean square over all pixels of all images, whitened, kept above zero for its gradient."""
    return (at.candidate.images.square().mean() + 1e-8).sqrt()
