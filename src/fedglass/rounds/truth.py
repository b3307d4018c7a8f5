"""The private data behind an observation; only the audit may look."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Truth:
    """The examples that the message was computed from."""

    images: Tensor  # (n, c, h, w), pixels in [0, 1]
    labels: Tensor  # (n,)
    clients: tuple[str, ...]
