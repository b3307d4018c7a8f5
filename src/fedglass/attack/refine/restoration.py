"""Refinements that restore a picture: by a diffusion model (DDRM), or by a median filter."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.parts import Refinement
from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.core.types import Knowledge
from fedglass.diffusion.ddrm import Bicubic, BlockMean, Degradation, Enlarged, Noise, RestorationChain, Spectrum
from fedglass.diffusion.folder import check_shape
from fedglass.diffusion.stored import Model, stored

BATCH = 64
"""Images that are restored at once."""
PAPER = (
    "Kawar, Elad, Ermon, Song: Denoising Diffusion Restoration Models, NeurIPS 2022, https://arxiv.org/abs/2201.11793"
)


@dataclass(frozen=True)
class DDRM:
    """Restoration of each picture by the diffusion model `model` [Kawar et al., 2022].

    The raw picture counts as blurred or noisy: `degradation` extracts the part of it that counts as known. `sigma` is
    the deviation of the noise in this part, of pixels in [0, 1]. The model's images are in [-1, 1], where it is twice
    that. The raw picture's own finer detail is discarded: the search put it there without evidence.
    """

    model: Model
    degradation: Degradation
    sigma: float = 0.03
    chain: RestorationChain = field(default_factory=RestorationChain)

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < math.inf:
            raise UsageError(f"The noise sigma of ddrm must be at least 0, got {self.sigma}.")
        if not (0 <= self.chain.eta <= 1 and 0 <= self.chain.eta_b <= 1):
            raise UsageError(f"eta and eta_b of ddrm must lie in [0, 1], got {self.chain.eta} and {self.chain.eta_b}.")

    def check(self, knows: Knowledge) -> None:
        """Refuse images that the model does not make or the factor does not fit, without running the model."""
        check_shape(self.model.load(), knows.shape, self.model.title)
        Spectrum.of(self.degradation, *knows.shape[1:])

    def refine(self, refinement: Refinement) -> Tensor:
        _, channels, height, width = refinement.images.shape
        denoiser = self.model.load()
        check_shape(denoiser, (channels, height, width), self.model.title)
        spectrum = Spectrum.of(self.degradation, height, width)
        observed = 2 * spectrum.read(refinement.images.detach().cpu()) - 1
        parts = torch.split(observed, BATCH)
        restored = []
        for i, part in enumerate(parts):

            def progress(step: int, steps: int, done: int = i) -> None:
                refinement.progress(done * steps + step, len(parts) * steps)

            restored.append(
                self.chain.restore(denoiser, spectrum, part, 2 * self.sigma, refinement.generator, progress)
            )
        return ((torch.cat(restored) + 1) / 2).clamp(0, 1).to(refinement.images)

    def untrained(self) -> DDRM:
        """Return the control: the same with an untrained network."""
        return replace(self, model=self.model.untrained())


@register("refinements", "ddrm", summary="a diffusion model finds the detail below means of blocks", paper=PAPER)
def ddrm(
    model: str = "glyphs",
    factor: int = 2,
    sigma: float = 0.03,
    steps: int = 40,
    eta: float = 0.85,
    eta_b: float = 1.0,
) -> DDRM:
    """Return super-resolution of the raw picture's means of factor x factor pixels."""
    return DDRM(stored(model), BlockMean(factor), sigma, RestorationChain(steps, eta, eta_b))


@register("refinements", "ddrm_bicubic", summary="the same below a bicubic reduction", paper=PAPER)
def ddrm_bicubic(
    model: str = "glyphs", factor: int = 2, sigma: float = 0.03, steps: int = 40, eta: float = 0.85, eta_b: float = 1.0
) -> DDRM:
    """Return super-resolution of the raw picture's bicubic reduction."""
    return DDRM(stored(model), Bicubic(factor), sigma, RestorationChain(steps, eta, eta_b))


@register(
    "refinements",
    "ddrm_enlarged",
    summary="the same, for attacks that search at low resolution and enlarge the result",
    paper=PAPER,
)
def ddrm_enlarged(
    model: str = "glyphs", factor: int = 4, sigma: float = 0.03, steps: int = 40, eta: float = 0.85, eta_b: float = 1.0
) -> DDRM:
    """Return super-resolution of the small picture that the attack has enlarged by bicubic interpolation."""
    return DDRM(stored(model), Enlarged(factor), sigma, RestorationChain(steps, eta, eta_b))


@register("refinements", "ddrm_denoise", summary="a diffusion model takes noise out of the picture", paper=PAPER)
def ddrm_denoise(
    model: str = "glyphs", sigma: float = 0.1, steps: int = 40, eta: float = 0.85, eta_b: float = 1.0
) -> DDRM:
    """Return denoising: all pixels count as known, up to noise."""
    return DDRM(stored(model), Noise(), sigma, RestorationChain(steps, eta, eta_b))


@register("refinements", "median", summary="each pixel replaced by the median of its neighbourhood")
@dataclass(frozen=True)
class MedianFilter:
    """The median over size x size pixels around each, channel by channel, the borders mirrored.

    FedLeak's release ends with one of size 5 [Fan et al., 2025]. Size 1 changes nothing.
    """

    size: int = 5

    def __post_init__(self) -> None:
        if self.size < 1 or self.size % 2 == 0:
            raise UsageError(f"The median filter's size must be odd and at least 1, got {self.size}.")

    def refine(self, refinement: Refinement) -> Tensor:
        images, pad = refinement.images, self.size // 2
        if pad >= min(images.shape[-2:]):
            raise UsageError(f"MedianFilter(size={self.size}) needs pictures larger than {pad} x {pad} pixels.")
        around = F.pad(images, (pad, pad, pad, pad), mode="reflect") if pad else images
        patches = around.unfold(-2, self.size, 1).unfold(-2, self.size, 1)  # (n, c, h, w, size, size)
        return patches.flatten(-2).median(-1).values
