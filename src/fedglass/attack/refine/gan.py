"""A refinement by a GAN: reconstructed images of low resolution are sharpened by a network that was trained to."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedglass.attack.images.latent import pixels_of, signed
from fedglass.attack.parts import Refinement
from fedglass.core.registry import register
from fedglass.core.text import ROG
from fedglass.core.types import Knowledge
from fedglass.diffusion.gan import StoredGan, stored_gan


@dataclass(frozen=True)
class GanEnhancement:
    """The image that an enhancer makes of the raw one's low resolution [Yue et al., 2023].

    REDUCED: a small network of our own training takes the place of ROG's; see `diffusion.gan.Enhancer`. Its detail
    comes from the images that it was trained on, not from the private ones.
    """

    gan: StoredGan

    def check(self, knows: Knowledge) -> None:
        """Refuse images that the network does not make, without running it."""
        self.gan.enhancer(knows.shape)

    @torch.no_grad()
    def refine(self, refinement: Refinement) -> Tensor:
        images, knows = refinement.images, refinement.knows
        _, channels, height, width = images.shape
        enhancer = copy.deepcopy(self.gan.enhancer((channels, height, width))).to(images)
        return pixels_of(enhancer.enhance(signed(images, knows)).clamp(-1, 1), knows)

    def untrained(self) -> GanEnhancement:
        """Return the control: the same with an untrained network."""
        return replace(self, gan=replace(self.gan, trained=False))


@register("refinements", "gan", summary="a GAN sharpens images of low resolution (reduced: our training)", paper=ROG)
def gan(model: str) -> GanEnhancement:
    """Return the enhancer of a folder of `fedglass train gan`."""
    return GanEnhancement(stored_gan(model))
