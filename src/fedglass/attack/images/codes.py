"""Images that a GAN draws from codes, which are the unknowns."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.forward.target import like
from fedglass.attack.images.latent import pixels_of
from fedglass.attack.images.pixels import whitened_bounds
from fedglass.attack.parts import Bound
from fedglass.core.errors import UsageError
from fedglass.core.types import Observation, Unknown
from fedglass.diffusion.gan import CodeGan, StoredGan

CLIP = 1.0
"""Bound on every number of a code, as in the release of [Zhang et al., 2020]."""


@dataclass(frozen=True)
class GanCodes:
    """x = G(z), G the generator of a GAN and z the unknowns, in [-1, 1] [Zhang et al., 2020].

    Codes start from N(0, 1), clipped. `nearest` gives the images themselves, also where no code draws them: a GAN that
    cannot draw the private images does not protect them.
    """

    gan: StoredGan

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        if start is not None:
            raise UsageError("GanCodes cannot start from the images of a previous stage: make its stage the first.")
        knows, network = observation.knows, self._network(observation)
        bound = torch.tensor(CLIP).to(like(observation))
        codes = torch.randn(knows.examples, network.code, generator=generator).to(bound).clamp(-bound, bound)

        def decode(tensors: Sequence[Tensor]) -> Tensor:
            return knows.whitening.whiten(pixels_of(network.generate(tensors[0]), knows))[None]  # (1, n, c, h, w)

        low, high = whitened_bounds(observation)
        return Bound((Unknown(codes, -bound, bound),), decode, lambda images: images.clamp(low, high))

    @property
    def learned_from(self) -> str:
        return self.gan.words

    @torch.no_grad()
    def imagined(self, observation: Observation, count: int, generator: torch.Generator) -> Tensor:
        """Draw images of random codes; the message is not used.  # (count, c, h, w), pixels"""
        network = self._network(observation)
        codes = torch.randn(count, network.code, generator=generator).to(like(observation))
        return pixels_of(network.generate(codes), observation.knows)

    def _network(self, observation: Observation) -> CodeGan:
        """Return a copy of the network, on the message's device and of its type."""
        return copy.deepcopy(self.gan.code_gan(observation.knows.shape)).to(like(observation))
