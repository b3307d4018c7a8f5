"""One audit at a time in a directory."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import save

from fedglass.core.errors import AuditError, UsageError
from fedglass.core.files import locked, make_folder, write_atomic
from fedglass.verdict.records import PICTURES, Picture, Record, unwritable

LOCK = ".lock"


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Make the directory and hold it, or say that another process does.

    The system lets go of the lock when its process ends, however that happens: the file itself means nothing.
    """
    with contextlib.ExitStack() as stack:
        try:
            make_folder(directory)
            stack.enter_context(locked(directory / LOCK, wait=False))
        except BlockingIOError as error:
            raise UsageError(
                f"Another command is running in the output directory {directory}: wait until it has ended, or choose "
                "another directory with -o."
            ) from error
        except OSError as error:
            raise unwritable(directory, error) from error
        yield


# What a case leaves to look at, on disk: reconstructions as safetensors, pairs and strips of pictures.


RECONSTRUCTIONS = "reconstructions"
IN_A_STRIP, GAP = 16, 2
"""Images, as in SME's figures, and the white pixels between them."""
Array = NDArray[Any]


class Evidence(Protocol):
    """What a case leaves to look at."""

    def save(self, directory: Path, record: Record) -> Record:
        """Write it, and return the record that points at it."""
        ...


@dataclass(frozen=True, eq=False)
class Reconstructed:
    """Every reconstructed image beside its original; pixels in [0, 1]."""

    found: Array  # (m, c, h, w): as the attack returned them
    found_labels: Array  # (m,)
    shown: Array  # (n, c, h, w): as scored, in the order of the originals
    originals: Array | None = None  # (n, c, h, w)
    labels: tuple[str, ...] = ()
    """The true classes in words or digits."""
    raw: Array | None = None  # (n, c, h, w): as `shown`, before the images were refined; None where nothing was
    found_raw: Array | None = None  # (m, c, h, w): as `found`, before the images were refined
    film: Array | None = None  # (epochs, n, c, h, w): `shown` on the way of its refinement
    film_captions: tuple[str, ...] = ()

    def save(self, directory: Path, record: Record) -> Record:
        tensors = {"images": self.found, "labels": self.found_labels, "raw": self.found_raw}
        held = {name: np.ascontiguousarray(array) for name, array in tensors.items() if array is not None}
        write_bytes(directory, f"{RECONSTRUCTIONS}/{record.key}.safetensors", save(held))
        shown = [store_picture(directory, f"{record.key}_{i}.png", image) for i, image in enumerate(self.shown)]
        before = [] if self.raw is None else list(self.raw)
        raw = [store_picture(directory, f"{record.key}_{i}_raw.png", image) for i, image in enumerate(before)]
        frames = [] if self.film is None else list(self.film.swapaxes(0, 1))  # (epochs, c, h, w) each
        films = [store_picture(directory, f"{record.key}_{i}_film.png", strip(each)) for i, each in enumerate(frames)]
        if self.originals is None:
            told = {"pictures": shown, "pictures_raw": raw, "films": films, "film_captions": list(self.film_captions)}
            return record.model_copy(update={"extra": {**record.extra, **{k: v for k, v in told.items() if v}}})
        scores = {name: record.metrics.get(name, []) for name in ("psnr", "ssim")}
        pictures = [
            Picture(
                original=_original(directory, original),
                reconstruction=shown[i],
                raw=raw[i] if raw else None,
                film=films[i] if films else None,
                film_caption=self.film_captions[i] if films else "",
                label=self.labels[i],
                psnr=scores["psnr"][i] if scores["psnr"] else None,
                ssim=scores["ssim"][i] if scores["ssim"] else None,
            )
            for i, original in enumerate(self.originals)
        ]
        return record.model_copy(update={"pictures": pictures})


@dataclass(frozen=True, eq=False)
class Strips:
    """Originals and what was made of them as rows of small pictures, to be laid under each other."""

    originals: Array  # (n, c, h, w)
    shown: Array  # (n, c, h, w), in the order of the originals
    by_epoch: Array | None = None  # (epochs, n, c, h, w), in the order of the originals

    def save(self, directory: Path, record: Record) -> Record:
        def store(name: str, images: Array) -> str:
            return store_picture(directory, f"{record.key}-{name}.png", strip(images))

        places: dict[str, Any] = {
            "original": store("original", self.originals),
            "reconstruction": store("reconstruction", self.shown),
        }
        if self.by_epoch is not None:
            places["epochs"] = [store(f"epoch{i}", epoch) for i, epoch in enumerate(self.by_epoch, 1)]
        return record.model_copy(update={"extra": {**record.extra, "strips": places}})


def strip(images: Array) -> Array:
    """The first images side by side on white.  # (n, c, h, w) -> (c, h, min(n, 16) * (w + gap) - gap)

    >>> strip(np.zeros((3, 1, 4, 4))).shape
    (1, 4, 16)
    """
    gap = np.ones((*images.shape[1:3], GAP))
    parts = [piece for image in images[:IN_A_STRIP] for piece in (gap, image)]
    return np.concatenate(parts[1:], axis=-1)


def png(image: Array) -> bytes:
    """The picture of one image; broken pixels are shown as mid-grey.  # (c, h, w), pixels in [0, 1]

    >>> png(np.zeros((1, 2, 2)))[:4]
    b'\\x89PNG'
    """
    rgb = image if image.shape[0] == 3 else image[:1]
    finite = np.nan_to_num(rgb.astype(np.float64), nan=0.5)
    pixels = np.rint(finite.clip(0, 1) * 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels[0]).save(buffer, format="PNG")
    return buffer.getvalue()


def _original(directory: Path, image: Array) -> str:
    """Named by its content, so that the same original is kept once."""
    name = f"original_{hashlib.sha256(png(image)).hexdigest()[:20]}.png"
    return store_picture(directory, name, image)


def store_picture(directory: Path, name: str, image: Array) -> str:
    """Write one picture; its path relative to the directory."""
    return write_bytes(directory, f"{PICTURES}/{name}", png(image))


def write_bytes(directory: Path, name: str, data: bytes) -> str:
    """Write a file of an output directory, whose name may lead into its subfolders, and return that name."""
    try:
        make_folder(directory)
        write_atomic(directory / name, data, within=directory)
    except OSError as error:
        raise AuditError(
            f"Cannot write {directory / name}: {error.strerror}; make room or fix permissions, then run the same "
            "command again: it continues where it stopped."
        ) from error
    return name
