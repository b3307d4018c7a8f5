"""Small colour pictures that come with the package."""

from __future__ import annotations

import json
from importlib import resources

import numpy as np
import torch
from PIL import Image

from fedglass.core.registry import register
from fedglass.data.dataset import Dataset
from fedglass.data.whitening import measured

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
