"""Adam that is fed gradients of a few levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.parts import Problem, Progress, Solution, Steps
from fedglass.attack.solvers.adam import Elsewhere, Settings, descend


@dataclass(frozen=True)
class QuantisedAdam(Settings):
    """Adam fed with 0.2 sign(g) + 0.8 clamp(round(2 g / median|g|) / 2, -1, 1) [Ye et al., 2024, release].

    Between Adam and signed Adam: entries below a quarter of the median count a fifth of those above it. The release
    doubles the gradients of its first 100 iterations, which Adam's normalisation all but undoes: left out.
    """

    def steps(self, problem: Problem, progress: Progress) -> Steps[Solution]:
        return descend(self, problem, progress, _quantised)


def _quantised(gradients: Sequence[Tensor], elsewhere: Elsewhere) -> Sequence[Tensor]:
    return [quantised(g) for g in gradients]


def quantised(gradient: Tensor) -> Tensor:
    """The gradient's entries on the levels 0.2, 0.6 and 1 of either sign, by their size beside the median.

    >>> quantised(torch.tensor([-4.0, -1.0, 0.5, 0.1, 1.0]))
    tensor([-1.0000, -1.0000,  0.6000,  0.2000,  1.0000])
    """
    level = torch.round(2 * gradient / (gradient.abs().median() + 1e-10)) / 2
    return 0.2 * gradient.sign() + 0.8 * level.clamp(-1, 1)
