"""ROG: images of low resolution, enlarged inside the search, then sharpened by a GAN [Yue et al., 2023]."""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.defaults import path_options
from fedglass.attack.forward.unroll import SuperClient
from fedglass.attack.images.pixels import LowResolution
from fedglass.attack.labels.counts import InterpolatedCounts
from fedglass.attack.parts import Labels
from fedglass.attack.refine.gan import GanEnhancement
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.solvers.schedules import CosineDecay
from fedglass.attack.terms.distance import SquaredError
from fedglass.core.registry import register
from fedglass.core.text import ROG
from fedglass.diffusion.gan import NO_GAN, located_gan, stored_gan

INTERPOLATED = InterpolatedCounts()


@path_options(enhancer=located_gan)
@register("attacks", "rog", summary="images at low resolution by squared error, sharpened by a GAN", paper=ROG)
def rog(
    labels: Labels = INTERPOLATED, enhancer: str = NO_GAN, factor: int = 4, rate: float = 0.05, iterations: int = 100
) -> Attack:
    """Search small images through their bicubic enlargement, on all examples in every local step; last iterate.

    `enhancer` is a folder of `fedglass train gan`; `none` leaves the images as they were found. REDUCED: the enhancer
    is a small network of our training, see `diffusion.gan.Enhancer`. The release uses the true labels
    (`labels = "oracle"`); here they are counted from the weights.
    """
    solver = Adam(rate=rate, iterations=iterations, schedule=CosineDecay(floor=0.1))
    stage = Stage(SuperClient(), LowResolution(factor), SquaredError(), solver)
    return Attack(labels, (stage,), refine=() if enhancer == NO_GAN else (GanEnhancement(stored_gan(enhancer)),))
