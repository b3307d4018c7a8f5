"""fedglass tells the owner of a federation what its messages give away.

The names below are imported when they are first used, so that `import fedglass` is cheap.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PLACES = {
    "Adam": "fedglass.core.optimisers",
    "AdamW": "fedglass.core.optimisers",
    "AggregateView": "fedglass.rounds.views",
    "Attack": "fedglass.attack.attack",
    "Audit": "fedglass.api",
    "Client": "fedglass.rounds.client",
    "Federation": "fedglass.rounds.federation",
    "Gate": "fedglass.verdict.gate",
    "Knows": "fedglass.rounds.views",
    "SGD": "fedglass.core.optimisers",
    "ServerView": "fedglass.rounds.views",
    "Training": "fedglass.core.types",
    "Whitening": "fedglass.core.types",
    "audit_plan": "fedglass.api",
    "build": "fedglass.models.catalogue",
    "load": "fedglass.data.catalogue",
    "recipe": "fedglass.recipes.catalogue",
}

__all__ = ["__version__", *_PLACES]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'fedglass' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
