"""Random numbers that repeat in every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fedglass.core.rng import stream
from fedglass.defend.example_gradients import noise_source
from fedglass.fl.local import GradientFn, Step


@dataclass(frozen=True)
class SameEachEpoch:
    """The defended gradient with random numbers that depend on the batch's place in its epoch alone.

    The release of [Dimitrov et al., 2022] splits its random key once into one for each place in the epoch and uses
    these in every epoch again. Over E epochs the noise of an update then has a standard deviation of sqrt(E) times
    that of noise drawn anew. The paper does not mention it; the release's script for Table 6 runs this code.
    """

    defended: GradientFn

    def gradient(self, step: Step) -> Sequence[Tensor]:
        seed = noise_source(step).initial_seed()
        return self.defended.gradient(replace(step, generator=stream(seed, "place", step.place)))
