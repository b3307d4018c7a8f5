"""OUTPOST: pruning and selective noise that follow the risk of each layer and fade with the local steps.

In local step i = 1, 2, ... of a round, with probability 1 / (1 + beta i), every parameter's gradient is pruned to
its largest entries, and Gaussian noise is added where the empirical Fisher information is largest over all
parameters. The noise's deviation at a parameter is its risk times a base, the risk being the variance of that
parameter's weights, at most 1 [Wang et al., 2023].

Read from the paper's abstract, a published summary of it and its implementation in the framework plato
(TL-System/plato, examples/gradient_leakage_attacks). Not confirmed: whether the paper's i starts at 0 or 1 (plato
multiplies the numbers of epoch and batch, both from 1), and which gradients its Fisher information averages at a
given step (the summary prints a mean over the batches of an epoch, plato takes the current gradient alone). Newer
versions of plato compute the defended gradient without writing it back, so that they defend nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.core.registry import register
from fedglass.defend.noise import normal
from fedglass.defend.per_example import Strength, check_at_least_zero, check_closed_share, check_share, noise_source
from fedglass.defend.pruning import count_of, lowest, pruned
from fedglass.fl.local import MeanGradient, Step

PAPER = (
    "Wang, Hugh, Li: More than Enough is Too Much: Adaptive Defenses against Gradient Leakage in Production "
    "Federated Learning, INFOCOM 2023, https://github.com/TL-System/plato"
)


@dataclass(frozen=True)
class SquaredGradient:
    """The diagonal of the empirical Fisher information as the squared gradient of one step: that of g g^T."""

    def diagonal(self, gradient: Tensor) -> Tensor:
        """Return a tensor that broadcasts to the gradient's shape."""
        return gradient.square()


@dataclass(frozen=True)
class OutputMean:
    """The squared gradient averaged over the first dimension of each parameter, as plato has it."""

    def diagonal(self, gradient: Tensor) -> Tensor:
        return gradient.square().mean(0) if gradient.ndim else gradient.square()


@register("defences", "outpost", summary="pruning and selective noise, fading with the local steps", paper=PAPER)
@dataclass(frozen=True)
class Outpost:
    """Prune and perturb the gradient of a local step with fading probability [Wang et al., 2023].

    `pruned` is the share of each parameter's entries set to zero, `perturbed` the share of all entries that get
    noise, `noise` the base of its deviation, `decay` the paper's beta. The defaults are those of plato's
    configurations. With `noise=0` and `pruned=0` it is plain SGD.
    """

    noise: float = 0.8
    pruned: float = 0.8
    perturbed: float = 0.4
    decay: float = 0.125
    fisher: SquaredGradient | OutputMean = field(default_factory=SquaredGradient)
    strength: ClassVar = Strength("noise", 0.01, 100.0)

    def __post_init__(self) -> None:
        check_at_least_zero(self, "noise")
        check_share(self, "pruned")
        check_closed_share(self, "perturbed")
        check_at_least_zero(self, "decay")

    def gradient(self, step: Step) -> Sequence[Tensor]:
        generator = noise_source(step)
        gradient = MeanGradient().gradient(step)
        coin = torch.rand((), generator=generator, device=generator.device)
        if self.decay > 0 and coin >= 1 / (1 + self.decay * (step.index + 1)):
            return gradient
        return [
            pruned(g.reshape(-1), self.pruned).view_as(g) + chosen * self.noise * risk(w) * normal(g, generator)
            for g, w, chosen in zip(gradient, step.weights, self._chosen(gradient), strict=True)
        ]

    def _chosen(self, gradient: Sequence[Tensor]) -> list[Tensor]:
        """Mark where the Fisher information is largest over all parameters; each mask broadcasts to its gradient."""
        diagonals = [self.fisher.diagonal(g.detach()) for g in gradient]
        values = torch.cat([d.reshape(-1) for d in diagonals])
        unperturbed = lowest(values, values.numel() - count_of(self.perturbed, values.numel()))
        pieces = torch.split(~unperturbed, [d.numel() for d in diagonals])
        return [piece.view_as(d) for piece, d in zip(pieces, diagonals, strict=True)]


def risk(weights: Tensor) -> Tensor:
    """Return the variance of a parameter's weights, at most 1; that of a single weight is 0.

    >>> risk(torch.tensor([0.0, 1.0])), risk(torch.tensor([0.0, 9.0]))
    (tensor(0.5000), tensor(1.))
    """
    if weights.numel() < 2:
        return torch.zeros((), dtype=weights.dtype, device=weights.device)
    return weights.detach().var().clamp(max=1.0)


@register("defences", "outpost_released", summary="the same with plato's Fisher information", paper=PAPER)
def outpost_released(noise: float = 0.8, pruned: float = 0.8, perturbed: float = 0.4, decay: float = 0.125) -> Outpost:
    """Return OUTPOST with the Fisher information as plato computes it."""
    return Outpost(noise, pruned, perturbed, decay, OutputMean())


outpost_released.__dict__["strength"] = Outpost.strength
