"""Doubts about the filters of NVFlare and the mods of Flower that a message passed."""

from __future__ import annotations

from collections.abc import Iterator

from fedglass.audit.target import Target
from fedglass.checks.idle_filters import idle_filters
from fedglass.verdict.doubts import Doubt, Kind, doubt


def filter_doubts(target: Target) -> Iterator[Doubt]:
    """Yield the doubts about the filters of a message, and of those that are attacked together with it."""
    for message in (target, *target.joint_targets):
        if message.claim is not None:
            for idle in idle_filters(message.claim):
                yield doubt(Kind.IDLE_FILTER, filter=idle.filter, why=idle.why)
