"""Pictures as data: URIs, read from inside the audit directory alone and within a budget."""

from __future__ import annotations

import base64
import io
import struct
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

LARGEST = 8 * 2**20
"""Bytes of one picture; a larger one is not a reconstruction of anything an attack can handle."""
BUDGET = 32 * 2**20
"""Bytes of pictures in one page, so that a browser can still open it."""


@dataclass(frozen=True)
class Inlined:
    """A picture inside the page, or the reason why it is not there."""

    uri: str | None
    alt: str
    missing: str = ""
    width: int = 0
    height: int = 0


@dataclass
class Album:
    """Reads the pictures of one audit directory for one page."""

    root: Path
    budget: int = BUDGET
    _seen: dict[str, tuple[bytes, int, int] | str] = field(default_factory=dict)

    def inline(self, path: str, alt: str) -> Inlined:
        """The picture at a path relative to the root. Whatever is wrong is said in its place."""
        found = self._load(path)
        if isinstance(found, str):
            return Inlined(None, alt, missing=found)
        data, width, height = found
        if len(data) > self.budget:
            return Inlined(None, alt, missing=f"left out to keep the page small: {path}")
        self.budget -= len(data)
        return Inlined(f"data:image/png;base64,{base64.b64encode(data).decode()}", alt, "", width, height)

    @property
    def holes(self) -> list[str]:
        """What was asked for so far and can not be shown, each with the reason: `missing: pictures/a_0.png`."""
        return [found for found in self._seen.values() if isinstance(found, str)]

    def content(self, path: str) -> bytes | None:
        """The bytes of a picture, by which two originals are known to be the same."""
        found = self._load(path)
        return None if isinstance(found, str) else found[0]

    def _load(self, path: str) -> tuple[bytes, int, int] | str:
        if path not in self._seen:
            self._seen[path] = _read(self.root, path)
        return self._seen[path]


def _read(root: Path, path: str) -> tuple[bytes, int, int] | str:
    try:
        full = (root / path).resolve()
        if not full.is_relative_to(root.resolve()):  # a link may point anywhere
            return f"refused, outside the audit directory: {path}"
        if not full.is_file():
            return f"missing: {path}"
        if full.stat().st_size > LARGEST:
            return f"too large: {path}"
        data = full.read_bytes()
    except (OSError, ValueError):
        return f"unreadable: {path}"
    size = _png_size(data)
    return f"not a picture: {path}" if size is None else (data, *size)


def _png_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of an undamaged PNG, None of anything else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
                image.load()
                return image.size
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        struct.error,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ):
        return None
