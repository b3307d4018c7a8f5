"""Signed Adam that looks one step ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.parts import Problem, Progress, Solution, Steps
from fedglass.attack.solvers.adam import Elsewhere, Settings, descend
from fedglass.core.errors import UsageError


@dataclass(frozen=True)
class LookaheadAdam(Settings):
    """Adam fed with (1 - blend) sign g(x) + blend sign g(x - rate sign g(x)), two evaluations an iteration.

    The gradient regularisation of FedLeak [Fan et al., 2025]: the second gradient stands for that of the gradient's
    norm. The release takes the trial point from a step of Adam itself, whose moments it advances twice an iteration;
    here it is a plain signed step of the full rate. `blend=0` is `SignedAdam`, at twice the price.
    """

    evaluations: ClassVar[float] = 2.0
    """Of the energy, in each iteration."""

    rate: float = 0.01
    blend: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.blend <= 1:
            raise UsageError(f"solver.blend must be between 0 and 1, got {self.blend:g}.")

    def steps(self, problem: Problem, progress: Progress) -> Steps[Solution]:
        return descend(self, problem, progress, self._blended)

    def _blended(self, gradients: Sequence[Tensor], elsewhere: Elsewhere) -> Sequence[Tensor]:
        here = [torch.sign(g) for g in gradients]
        ahead = [torch.sign(g) for g in elsewhere([-self.rate * s for s in here])]
        return [torch.lerp(a, b, self.blend) for a, b in zip(here, ahead, strict=True)]
