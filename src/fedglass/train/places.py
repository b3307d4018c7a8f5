"""What the trainings of image models have in common: their material, their folder and the pictures in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from fedglass.core.errors import AuditError, DataError, UsageError
from fedglass.data.dataset import Dataset
from fedglass.diffusion.training import Course

PICTURE = "samples.png"
_SCALE = 2
"""Each pixel of a sample is drawn as a square of this side."""


def check_material(data: Dataset, folder: Path) -> None:
    """Refuse too few images, and a file in place of a folder."""
    if len(data) < 2:
        raise DataError(f"{data.name}: {len(data)} images are too few to learn from: bring more.")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: name a folder with -o.")


def pace(course: Course) -> tuple[object, ...]:
    """What a training that is continued must share with its beginning; it may be given more time."""
    return course.lr, course.batch_size, course.average, course.clip, course.mirror, course.seed


@contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """What can not be written is said in a sentence."""
    try:
        yield
    except OSError as error:
        raise AuditError(
            f"Cannot write into {folder}: {error.strerror}; make room or fix permissions, then run the same "
            "command again: it continues where it stopped."
        ) from error


def contact_sheet(images: Tensor, columns: int = 8) -> Image.Image:
    """Images in [0, 1] side by side.  # (n, c, h, w), grey or colour; of other channels the first is drawn"""
    shown = images if images.shape[1] in (1, 3) else images[:, :1]
    tiles = torch.nn.functional.pad(shown.clamp(0, 1), (1, 1, 1, 1), value=1.0)
    blank = torch.ones(-len(tiles) % columns, *tiles.shape[1:])
    rows = torch.cat([tiles, blank]).view(-1, columns, *tiles.shape[1:])  # (rows, columns, c, h, w)
    sheet = rows.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)  # (rows h, columns w, c)
    pixels = (sheet * 255).round().to(torch.uint8).numpy()
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    return picture.resize((picture.width * _SCALE, picture.height * _SCALE), Image.Resampling.NEAREST)
