"""Cuts the embedded colour pictures out of public-domain and CC0 photographs shipped with scikit-image.

Run `python tools/make_photos.py` to write `photos.png` (a sheet of 64x64 tiles) and `photos.json` (what each
tile shows) into `src/fedglass/data/embedded/`. Only developers run it; the package ships the result.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from skimage import data

SIDE = 64
COLUMNS = 6
EMBEDDED = Path(__file__).resolve().parents[1] / "src" / "fedglass" / "data" / "embedded"


class Crop(NamedTuple):
    """A square of a photograph: its class, where it was cut and how large it was."""

    label: str
    shows: str
    source: str
    top: int
    left: int
    side: int


# One of each class first, so that any few leading examples differ.
CROPS = (
    Crop("person", "face", "astronaut", 50, 160, 130),
    Crop("emblem", "mission patch", "astronaut", 342, 125, 94),
    Crop("shuttle", "whole shuttle", "astronaut", 20, 300, 212),
    Crop("helmet", "visor", "astronaut", 340, 276, 172),
    Crop("cat", "cat's face", "chelsea", 0, 75, 300),
    Crop("cup", "cup and saucer", "coffee", 5, 120, 340),
    Crop("spoon", "bowl of the spoon", "coffee", 220, 305, 120),
    Crop("rocket", "nose cone", "rocket", 112, 275, 96),
    Crop("galaxy", "spiral galaxy", "hubble_deep_field", 365, 88, 72),
    Crop("retina", "optic disc", "retina", 490, 70, 330),
    Crop("person", "portrait", "astronaut", 5, 85, 240),
    Crop("emblem", "flag", "astronaut", 0, 0, 120),
    Crop("emblem", "name tag", "astronaut", 325, 262, 80),
    Crop("shuttle", "wings", "astronaut", 150, 340, 130),
    Crop("helmet", "glove ring", "astronaut", 420, 110, 92),
    Crop("cat", "left eye", "chelsea", 65, 115, 110),
    Crop("cat", "right eye", "chelsea", 85, 270, 95),
    Crop("cat", "nose", "chelsea", 185, 200, 115),
    Crop("cup", "coffee", "coffee", 60, 180, 150),
    Crop("cup", "handle", "coffee", 205, 160, 130),
    Crop("spoon", "stem of the spoon", "coffee", 50, 345, 140),
    Crop("rocket", "launch pad", "rocket", 300, 258, 127),
    Crop("galaxy", "star", "hubble_deep_field", 530, 706, 96),
    Crop("retina", "vessels", "retina", 90, 480, 340),
)


def tile(crop: Crop) -> Image.Image:
    """One 64x64 picture."""
    photograph = Image.fromarray(getattr(data, crop.source)())
    box = (crop.left, crop.top, crop.left + crop.side, crop.top + crop.side)
    if box[2] > photograph.width or box[3] > photograph.height or crop.side < SIDE:
        raise ValueError(f"{crop} does not fit into {photograph.size}")
    return photograph.resize((SIDE, SIDE), Image.Resampling.LANCZOS, box=box)


def sheet() -> Image.Image:
    """All tiles, row by row."""
    rows = -(-len(CROPS) // COLUMNS)
    page = Image.new("RGB", (COLUMNS * SIDE, rows * SIDE))
    for i, crop in enumerate(CROPS):
        page.paste(tile(crop), (i % COLUMNS * SIDE, i // COLUMNS * SIDE))
    return page


def index() -> dict[str, object]:
    """The class names, and the label and source of every tile."""
    names = list(dict.fromkeys(crop.label for crop in CROPS))
    tiles = [{"label": names.index(c.label), "shows": c.shows, "source": c.source} for c in CROPS]
    return {"side": SIDE, "classes": names, "tiles": tiles}


def main() -> None:
    EMBEDDED.mkdir(parents=True, exist_ok=True)
    sheet().save(EMBEDDED / "photos.png", optimize=True)
    (EMBEDDED / "photos.json").write_text(json.dumps(index(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
