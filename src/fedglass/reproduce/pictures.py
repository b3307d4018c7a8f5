"""Strips of originals and of what was made of them, to be laid under each other."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fedglass.ledger.evidence import store_picture
from fedglass.reproduce.experiment import Finding

SHOWN = 16
"""Images in a strip, as in SME's figures."""
GAP = 2


def save_pictures(directory: Path, key: str, finding: Finding) -> dict[str, object]:
    """Write the strips of one case and return where they are, relative to the directory."""
    if finding.originals is None or finding.shown is None:
        return {}
    strips = {"original": finding.originals, "reconstruction": finding.shown}
    places: dict[str, object] = {
        name: store_picture(directory, f"{key}-{name}.png", strip(s).numpy()) for name, s in strips.items()
    }
    if finding.by_epoch is not None:
        epochs = [
            store_picture(directory, f"{key}-epoch{i}.png", strip(e).numpy()) for i, e in enumerate(finding.by_epoch, 1)
        ]
        places["epochs"] = epochs
    return places


def strip(images: Tensor) -> Tensor:
    """The first images side by side on white.  # (n, c, h, w) -> (c, h, min(n, 16) * (w + gap) - gap)

    >>> strip(torch.zeros(3, 1, 4, 4)).shape
    torch.Size([1, 4, 16])
    """
    _, c, h, _ = images.shape
    gap = torch.ones(c, h, GAP)
    parts = [piece for image in images[:SHOWN] for piece in (gap, image.detach().cpu().float())]
    return torch.cat(parts[1:], dim=-1)
