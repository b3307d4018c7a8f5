"""All that protects a client's messages."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedglass.fl.local import GradientFn, MeanGradient
from fedglass.fl.release import AsIs, Release


@dataclass(frozen=True)
class Protection:
    """What a client's defences do inside its local steps and to the update that leaves."""

    gradient: GradientFn = field(default_factory=MeanGradient)
    release: Release = field(default_factory=AsIs)
