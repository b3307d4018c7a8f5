"""Characters drawn on the spot: a stand-in for FEMNIST that needs no file."""

from __future__ import annotations

import json
import math
from importlib import resources

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont, features
from torch import Tensor

from fedglass.core.errors import DataError
from fedglass.core.registry import register
from fedglass.core.rng import stream
from fedglass.data.dataset import FEMNIST, Dataset, measured

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SIDE = 28
_FINE = 6  # characters are drawn on a grid this much finer and then averaged, which smooths their edges


Style = tuple[float, float, float, float, float, float]
"""The look of characters: slant, turn, width, height, and shifts to the right and down in pixels of the small image."""


@register(
    "datasets",
    "glyphs",
    summary="62 classes of grey 28x28 characters in the styles of 50 writers, a stand-in for FEMNIST",
)
def glyphs(writers: int = 50, per_writer: int = 60, seed: int = 0) -> Dataset:
    """62 classes of grey 28x28 characters on white, in a slant, weight, scale and position per writer.

    Writer w's i-th image depends on the seed, w and i alone, so that asking for more moves nothing.

    >>> glyphs(writers=2, per_writer=3).images.shape
    torch.Size([6, 1, 28, 28])
    """
    if writers < 1 or per_writer < 1:
        raise DataError(f"glyphs: writers and per_writer must be at least 1, got {writers} and {per_writer}.")
    font = _font()
    drawn = [_page(font, stream(seed, "glyphs", w), per_writer) for w in range(writers)]
    return Dataset(
        name="glyphs",
        images=torch.cat([images for images, _ in drawn]),
        labels=torch.cat([labels for _, labels in drawn]),
        classes=len(CHARACTERS),
        whitening=FEMNIST,
        class_names=tuple(CHARACTERS),
        writers=torch.arange(writers).repeat_interleave(per_writer),
        credit="Drawn with Aileron Regular, the font that Pillow ships.",
    )


def _font() -> ImageFont.FreeTypeFont:
    # Without FreeType, Pillow would fall back to a bitmap font that cannot be scaled.
    if not features.check("freetype2"):
        raise DataError("glyphs: Pillow was built without FreeType; install Pillow from its wheels.")
    font = ImageFont.load_default(size=15 * _FINE)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise DataError("glyphs: Pillow offers no scalable built-in font; install Pillow >= 10.1.")
    return font


def _page(font: ImageFont.FreeTypeFont, generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """One writer's images and labels."""
    u = (2 * torch.rand(6, generator=generator) - 1).tolist()
    slant, turn, right, down = 0.12 + 0.3 * u[0], 0.1 * u[1], 1.5 * u[4], 1.5 * u[5]
    width, height = math.exp(0.2 * u[2]), math.exp(0.2 * u[3])
    weight = int(torch.randint(3, (), generator=generator))
    labels, images = [], []
    for _ in range(count):
        label = int(torch.randint(len(CHARACTERS), (), generator=generator))
        labels.append(label)
        # Nobody writes a character twice in the same way.
        z = torch.randn(6, generator=generator).clamp(-2, 2).tolist()
        style = (
            slant + 0.05 * z[0],
            turn + 0.04 * z[1],
            width * math.exp(0.05 * z[2]),
            height * math.exp(0.05 * z[3]),
            right + 0.5 * z[4],
            down + 0.5 * z[5],
        )
        images.append(_draw(font, CHARACTERS[label], style, weight))
    pixels = torch.from_numpy(np.stack(images)).float() / 255
    return pixels.unsqueeze(1), torch.tensor(labels)


def _draw(
    font: ImageFont.FreeTypeFont, character: str, style: Style, weight: int
) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Draw a character; `weight` is the thickness added on every side, in pixels of the fine grid."""
    fine = SIDE * _FINE
    canvas = Image.new("L", (fine, fine), 0)
    left, top, right, bottom = font.getbbox(character, stroke_width=weight)
    corner = ((fine - left - right) / 2, (fine - top - bottom) / 2)
    ImageDraw.Draw(canvas).text(corner, character, fill=255, font=font, stroke_width=weight)
    ink = canvas.transform(canvas.size, Image.Transform.AFFINE, _inverse(style), Image.Resampling.NEAREST)
    return 255 - np.asarray(ink.reduce(_FINE), dtype=np.uint8)


def _inverse(style: Style) -> tuple[float, float, float, float, float, float]:
    """Pillow's coefficients: where each pixel of the result is fetched from."""
    slant, turn, width, height, right, down = style
    cos, sin = math.cos(turn), math.sin(turn)
    # Forward: scale, then slant (the top moves right), then turn, all about the centre, then shift.
    forward = np.array([[cos, -sin], [sin, cos]]) @ np.array([[1, -slant], [0, 1]])
    forward = forward @ np.diag([width, height])
    back = np.linalg.inv(forward)
    centre = np.full(2, SIDE * _FINE / 2)
    offset = centre - back @ (centre + _FINE * np.array([right, down]))
    (a, b), (d, e) = back.tolist()
    return a, b, float(offset[0]), d, e, float(offset[1])


# Small colour pictures that come with the package.


_CREDIT = (
    "Crops of photographs shipped with scikit-image: astronaut and Hubble deep field (NASA, public domain), "
    "cat (Stefan van der Walt, CC0), coffee (Rachel Michetti, CC0), rocket (SpaceX, public domain), retina "
    "(Mikael Häggström, CC0)."
)


@register("datasets", "photos", summary="24 colour crops of 64x64 in 10 classes from public-domain and CC0 photographs")
def photos() -> Dataset:
    """24 colour crops of 64x64 pixels in 10 classes of what they show; the first ten differ in class.

    >>> photos().images.shape
    torch.Size([24, 3, 64, 64])
    """
    folder = resources.files("fedglass.data") / "embedded"
    index = json.loads((folder / "photos.json").read_text(encoding="utf-8"))
    side, tiles = index["side"], index["tiles"]
    with (folder / "photos.png").open("rb") as file, Image.open(file) as sheet:
        pixels = torch.from_numpy(np.array(sheet.convert("RGB")))  # (rows * side, columns * side, 3)
    grid = pixels.unfold(0, side, side).unfold(1, side, side)  # (rows, columns, 3, side, side)
    images = grid.flatten(0, 1)[: len(tiles)].float() / 255
    return Dataset(
        name="photos",
        images=images,
        labels=torch.tensor([tile["label"] for tile in tiles]),
        classes=len(index["classes"]),
        whitening=measured(images),
        class_names=tuple(index["classes"]),
        credit=_CREDIT,
    )
