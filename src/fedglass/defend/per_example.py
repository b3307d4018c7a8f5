"""A defence on each example's gradient, inside every local step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fedglass.core.params import Update
from fedglass.defend.example_gradients import example_gradients, noise_source
from fedglass.fl.local import MeanGradient, Step
from fedglass.fl.release import Outgoing, Release


@runtime_checkable
class Additive(Protocol):
    """A defence that adds noise which does not depend on what it is added to."""

    def mean_noise(self, like: Update, examples: int, generator: torch.Generator) -> Update:
        """The mean of the noise of that many examples."""
        ...


@dataclass(frozen=True)
class PerExample:
    """mean_i defence(g_i) over the examples of the batch, g_i being the gradient of example i's own loss.

    This is how the defences of Table 6 act in the release of [Dimitrov et al., 2022]: on the plain gradient of each
    example, neither clipped nor multiplied by the learning rate, with a strength that does not follow its size.
    Noise that does not depend on the gradient is added to their mean, mean_i (g_i + n_i) = g + mean_i n_i, without
    computing them one by one. Unlike in that release, each local step draws anew: see `SameEachEpoch`.
    """

    defence: Release

    def gradient(self, step: Step) -> Sequence[Tensor]:
        generator = noise_source(step)
        if isinstance(self.defence, Additive):
            plain = _named(step, MeanGradient().gradient(step))
            noise = self.defence.mean_noise(plain, len(step.inputs), generator)
            return [plain[name] + noise[name] for name in step.network.names]
        return self._mean(step, generator)

    def _mean(self, step: Step, generator: torch.Generator) -> Sequence[Tensor]:
        total = [torch.zeros_like(w) for w in step.weights]
        for chunk in example_gradients(step):
            for own in zip(*chunk, strict=True):
                released = self.defence.release(Outgoing(_named(step, own), generator))
                total = [t + released[name] for t, name in zip(total, step.network.names, strict=True)]
        return [t / len(step.inputs) for t in total]


def _named(step: Step, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return dict(zip(step.network.names, tensors, strict=True))
