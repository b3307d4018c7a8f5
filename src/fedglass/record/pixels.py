"""From what a network was given back to pixels in [0, 1], which is what truths hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor

from fedglass.core.errors import DataError
from fedglass.core.types import Whitening

LEVELS = 255
"""Steps between black and white in a picture of 8 bits."""
ROUNDING = 2e-3
"""By how much pixels may leave [0, 1] on the way back."""


def measured_whitening(inputs: Tensor) -> Whitening | None:
    """The normalisation of pictures of 8 bits, where the numbers give it away.  # (n, c, h, w)

    A channel's values x = (k / 255 - mean) / std lie on a grid whose step is 1 / (255 std). Where both black and white
    occur, its ends are -mean / std and (1 - mean) / std. Pictures that were scaled, turned or blurred lie on no grid:
    None, somebody has to tell. So it is where a channel has no black or no white: its mean could be another.

    >>> pixels = torch.arange(256.0).view(1, 1, 16, 16) / 255
    >>> found = measured_whitening((pixels - 0.13) / 0.31)
    >>> round(found.mean[0], 4), round(found.std[0], 4)
    (0.13, 0.31)
    """
    if inputs.dim() != 4 or not inputs.is_floating_point():
        return None
    found = [_channel(torch.unique(inputs[:, c].double())) for c in range(inputs.shape[1])]
    known = [each for each in found if each is not None]
    if not known or len(known) < len(found):
        return None
    return Whitening(tuple(mean for mean, _ in known), tuple(std for _, std in known))


def _channel(values: Tensor) -> tuple[float, float] | None:
    """Mean and deviation of one channel, from its sorted values."""
    if len(values) < LEVELS // 4:
        return None
    low, high = float(values[0]), float(values[-1])
    # Were 0 and 1 the ends of the grid, all values would be whole multiples of its step.
    levels = (values - low) * (LEVELS / (high - low))
    if float((levels - levels.round()).abs().max()) > 0.02:
        return None
    std = 1 / (high - low)
    return _tidy(-low * std), _tidy(std)


def _tidy(value: float) -> float:
    """Without the last digits, which are single precision's."""
    return 0.0 if abs(value) < 1e-6 else float(f"{value:.5g}")


def pixels_of(client: str, inputs: Tensor, whitening: Whitening) -> Tensor:
    """The pictures before they were normalised.  # (n, c, h, w)"""
    pixels = whitening.unwhiten(inputs.float())
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= -ROUNDING and high <= 1 + ROUNDING):
        raise DataError(
            f"What the model of {client!r} was given is no picture under the normalisation mean={whitening.mean}, "
            f"std={whitening.std}: its pixels would lie between {low:.3g} and {high:.3g}, expected 0 to 1. Tell the "
            "recorder the client's own, with whitening=(mean, std)."
        )
    return pixels.clamp(0, 1)


def distinct(images: Tensor, more: Tensor) -> tuple[Tensor, list[int]]:
    """The images of both, and where those of the second are among them; one that a side has twice stays twice.

    >>> a, b = torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1)
    >>> union, rows = distinct(torch.cat([a, b]), b)
    >>> len(union), rows
    (2, [1])
    """
    known = {key: i for i, key in enumerate(_keys(images))}
    new, rows = [], []
    for image, key in zip(more, _keys(more), strict=True):
        if key not in known:
            known[key] = len(known)
            new.append(image)
        rows.append(known[key])
    return (torch.cat([images, torch.stack(new)]) if new else images), rows


def _keys(images: Tensor) -> Iterator[tuple[bytes, int]]:
    """The content of each image, and how often it came before."""
    seen: Counter[bytes] = Counter()
    for image in images:
        content = image.contiguous().numpy().tobytes()
        yield content, seen[content]
        seen[content] += 1
