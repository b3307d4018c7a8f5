"""All that protects a client's messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedglass.core.errors import UsageError
from fedglass.fl.local import GradientFn, MeanGradient
from fedglass.fl.release import AsIs, Chain, Release


@dataclass(frozen=True)
class Protection:
    """What a client's defences do inside its local steps and to the update that leaves."""

    gradient: GradientFn = field(default_factory=MeanGradient)
    release: Release = field(default_factory=AsIs)

    @classmethod
    def of(cls, parts: Sequence[GradientFn | Release]) -> Protection:
        """Compose defences: at most one gradient function, and releases one after another."""
        gradients = [part for part in parts if not isinstance(part, Release)]
        releases = [part for part in parts if isinstance(part, Release)]
        if len(gradients) > 1:
            raise UsageError(
                f"defences: at most one may change the gradient of a local step, got {len(gradients)}: keep one."
            )
        release = releases[0] if len(releases) == 1 else Chain(tuple(releases)) if releases else AsIs()
        return cls(gradients[0] if gradients else MeanGradient(), release)
