"""The folder of real data for the measuring tools."""

from __future__ import annotations

import os
from pathlib import Path

NEEDED = "mnist_10k.npz"


def data_folder(given: str = "") -> Path:
    """Return the folder with the npz files: the given one or FEDGLASS_SHARED, or the folder `data` in it."""
    path = Path(given or os.environ.get("FEDGLASS_SHARED", ""))
    for folder in (path, path / "data"):
        if (folder / NEEDED).is_file():
            return folder
    raise SystemExit(f"The folder {str(path)!r} does not hold {NEEDED}: set FEDGLASS_SHARED to the folder that does.")
