"""A diffusion model that is told the class of what it is to make."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedglass.core.errors import UsageError
from fedglass.diffusion.denoiser import Denoiser
from fedglass.diffusion.guidance import Guided
from fedglass.diffusion.transformer import MaskedDiffusionTransformer

TRAIN = "train one with `fedglass train diffusion DATA -o DIR --kind transformer`"


@dataclass(frozen=True, eq=False)
class ClassModel:
    """A denoiser whose network is told the class; `title` names it in refusals."""

    denoiser: Denoiser
    title: str

    def __post_init__(self) -> None:
        if not isinstance(self.denoiser.network, MaskedDiffusionTransformer):
            raise UsageError(f"The diffusion model {self.title} can not be told a class: {TRAIN}.")

    @property
    def network(self) -> MaskedDiffusionTransformer:
        assert isinstance(self.denoiser.network, MaskedDiffusionTransformer), "checked when it was made"
        return self.denoiser.network

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        decoder = self.denoiser.decoder
        return self.network.shape if decoder is None else decoder.shape

    def guided(self, scale: float) -> Denoiser:
        """The denoiser with classifier-free guidance."""
        return replace(self.denoiser, network=Guided(self.network, self.network.classes, scale))

    def decode(self, denoised: Tensor) -> Tensor:
        """What the network denoises as images in [-1, 1].  # (n, *network.shape) -> (n, *shape)"""
        decoder = self.denoiser.decoder
        return denoised if decoder is None else decoder.decode(denoised)

    def to(self, device: torch.device) -> ClassModel:
        """Itself on that device."""
        for part in (self.network, self.denoiser.decoder):
            if isinstance(part, nn.Module):
                part.to(device)
        return self

    def check(self, shape: tuple[int, int, int], classes: int) -> None:
        """Refuse images of another shape than the model makes, and more classes than it knows."""
        if self.shape != shape:
            made, here = (" x ".join(map(str, each)) for each in (self.shape, shape))
            raise UsageError(
                f"The diffusion model {self.title} makes images of {made} (channels, height, width), these are {here}: "
                f"{TRAIN}."
            )
        if classes > self.network.classes:
            raise UsageError(
                f"The diffusion model {self.title} knows the classes 0 to {self.network.classes - 1}, labels go up to "
                f"{classes - 1} here: {TRAIN}, on data with the same classes."
            )
