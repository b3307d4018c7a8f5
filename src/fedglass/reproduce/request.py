"""What the user asked of a re-creation, beside its table. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PUBLISHED, REDUCED = 224, 96
"""Sides of photographs: those of the papers, and those that a CPU can bear."""
CURIOUS_SIDES = (32, 64, 128)
"""Those of the curious client, whose own is the last."""


@dataclass(frozen=True)
class Request:
    """Changes to the published procedure; None keeps what the paper's release does."""

    iterations: int | None = None
    restarts: int = 1
    """Of each attack, where the paper restarts."""
    side: int = REDUCED
    """Of pictures that the papers have at 224 x 224 or 128 x 128."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """Trained networks by name -> safetensors file."""
    images: int | None = None
    """Of each client, in place of the 16 of the curious client; its other sizes change in proportion."""
    own_labels: bool = False
    """Whether stand-ins keep their labels."""
    rounds: int | None = None
    """That a federation is trained for, where the paper does not say how many."""
