"""All exact methods as one attack."""

from __future__ import annotations

from fedglass.attack.exact.exact import ExactAttack
from fedglass.core.registry import built_in, register

METHODS = built_in("exact")


@register(
    "attacks",
    "exact",
    summary="solves equations of the message instead of searching: " + ", ".join(METHODS),
    paper="; ".join(dict.fromkeys(entry.paper for entry in METHODS.values() if entry.paper)),
)
def exact(seconds: float = 30.0) -> ExactAttack:
    """Return every built-in exact method as one attack, the cheapest first; `seconds` limits the search of each."""
    return ExactAttack(tuple(METHODS), seconds)
