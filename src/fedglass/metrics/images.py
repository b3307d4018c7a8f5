"""What every image metric demands of its two arguments, and what it makes of broken pixels.

Originals are the truth and must be sound. Reconstructions come from an optimiser that may have diverged, so
they are repaired instead of refused, such that a broken image (or a missing one, which is all NaN) scores as
the worst and one broken pixel does not hide that the others leaked. Pixelwise metrics take a pixel of NaN
or infinity as the value in the range farthest from the true one. Metrics of structure take it as mid-grey,
since the farthest values together would draw the original's negative, and give a wholly broken image a fixed
score.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedglass.core.errors import DataError

SLACK = 1e-3
"""How far an original may leave the pixel range: whitening and back costs a few units in the last place."""
LIMIT = 1e3
"""Reconstructed pixels are cut off at this many pixel ranges (-60 dB), so that moments stay exact."""


def clip(images: Tensor, peak: float = 1.0) -> Tensor:
    """The images with every pixel moved into [0, peak]; NaN stays NaN.

    The metrics do not clip by themselves, since published figures are computed without it. Where it is
    wanted: `psnr(clip(x), original)`.

    >>> clip(torch.tensor([-0.5, 0.5, 7.0]))
    tensor([0.0000, 0.5000, 1.0000])
    """
    return images.clamp(0.0, peak)


def pair(reconstructed: Tensor, original: Tensor, peak: float = 1.0) -> tuple[Tensor, Tensor]:
    """Both batches checked, as float64 on the CPU, broken reconstructed pixels as NaN.  # (n, c, h, w) each

    >>> pair(torch.tensor([[[[0.5, torch.inf]]]]), torch.tensor([[[[0.25, 1.0]]]]))[0]
    tensor([[[[0.5000,    nan]]]], dtype=torch.float64)
    """
    truth = originals(original, peak)
    guess = batch("reconstructed", reconstructed)
    if guess.shape != truth.shape:
        raise DataError(
            f"Expected reconstructed and original images of the same shape, got {tuple(guess.shape)} and "
            f"{tuple(truth.shape)}: match them first if their numbers differ."
        )
    sound = torch.where(torch.isfinite(guess), guess.clamp(-LIMIT * peak, LIMIT * peak), torch.nan)
    return sound, truth


def batch(name: str, images: Tensor) -> Tensor:
    """A float batch (n, c, h, w) as float64 on the CPU, cut from its graph."""
    if images.ndim != 4 or 0 in images.shape[1:]:
        raise DataError(f"Expected {name} images as a tensor (n, c, h, w), got shape {tuple(images.shape)}.")
    if not images.is_floating_point():
        raise DataError(
            f"Expected {name} images as floats with pixels in [0, 1], got {images.dtype}: divide bytes by 255."
        )
    return images.detach().cpu().double()


def originals(images: Tensor, peak: float = 1.0) -> Tensor:
    """A batch of true images: at least one, finite, pixels in [0, peak]."""
    truth = batch("original", images)
    if len(truth) == 0:
        raise DataError("Expected at least one original image, got none.")
    if not torch.isfinite(truth).all():
        raise DataError("Expected finite original images, got NaN or infinity: the data set is damaged.")
    low, high = truth.min().item(), truth.max().item()
    if low < -SLACK * peak or high > peak * (1 + SLACK):
        raise DataError(
            f"Expected original pixels in [0, {peak:g}], got [{low:.4g}, {high:.4g}]: undo the whitening first."
        )
    return truth


def farthest(guess: Tensor, truth: Tensor, peak: float = 1.0) -> Tensor:
    """Broken pixels become the end of the range that is farther from the truth.

    >>> farthest(torch.tensor([torch.nan, torch.nan, 0.5]), torch.tensor([0.25, 1.0, 0.5]))
    tensor([1.0000, 0.0000, 0.5000])
    """
    opposite = torch.where(truth < peak / 2, peak, 0.0).to(guess)
    return torch.where(torch.isnan(guess), opposite, guess)


def greyed(guess: Tensor) -> Tensor:
    """Broken pixels become mid-grey, which holds nothing of the truth."""
    return torch.nan_to_num(guess, nan=0.5)


def demoted(scores: Tensor, guess: Tensor, worst: float) -> Tensor:
    """The scores, with `worst` for images that have no sound pixel.  # (n,), (n, c, h, w) -> (n,)"""
    return torch.where(torch.isnan(guess).flatten(1).all(1), worst, scores)
