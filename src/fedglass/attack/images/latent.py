"""Images as what a decoder draws of codes, which are the unknowns."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.images.decoders import Decoder
from fedglass.attack.images.pixels import like, whitened_bounds
from fedglass.attack.parts import Bound
from fedglass.core.types import Knowledge, Observation, Unknown
from fedglass.diffusion.latent_space import LatentSpace


@dataclass(frozen=True)
class Latent:
    """x = D(z), D the decoder of an autoencoder and z the unknowns [Yue et al., 2025, Section 4.3].

    Codes start from N(0, 1), which is how the codes of images are spread. `nearest` gives the images themselves, also
    where no code decodes to them: that a decoder can not draw the private images must not pass for their protection.
    """

    decoder: Decoder

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        knows, kind = observation.knows, like(observation)
        shape = self.decoder.latent_shape(knows)
        # Own examples are learned from when the first image is drawn: whoever only asks need not wait for it.
        network = functools.cache(lambda: self._network(observation))
        if start is None:
            codes = torch.randn(knows.examples, *shape, generator=generator).to(kind)
        else:
            codes = network().encode(_signed(knows.whitening.unwhiten(start[0]), knows)).detach()

        def decode(tensors: Sequence[Tensor]) -> Tensor:
            return knows.whitening.whiten(_pixels(network().decode(tensors[0]), knows))[None]  # (1, n, c, h, w)

        low, high = whitened_bounds(observation)
        return Bound((Unknown(codes),), decode, lambda images: images.clamp(low, high))

    @property
    def learned_from(self) -> str:
        return self.decoder.words

    @torch.no_grad()
    def imagined(self, observation: Observation, count: int, generator: torch.Generator) -> Tensor:
        """What random codes decode to; the message is not looked at.  # (count, c, h, w), pixels"""
        codes = torch.randn(count, *self.decoder.latent_shape(observation.knows), generator=generator)
        return _pixels(self._network(observation).decode(codes.to(like(observation))), observation.knows)

    def _network(self, observation: Observation) -> LatentSpace:
        """A copy of its own, on the message's device and of its type."""
        return copy.deepcopy(self.decoder.network(observation)).to(like(observation))


def _pixels(signed: Tensor, knows: Knowledge) -> Tensor:
    """From the network's [-1, 1] to the bounds of the pixels."""
    return knows.low + (knows.high - knows.low) * (signed + 1) / 2


def _signed(pixels: Tensor, knows: Knowledge) -> Tensor:
    return 2 * (pixels - knows.low) / (knows.high - knows.low) - 1
