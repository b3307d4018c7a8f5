"""fedglass audits federated learning: it shows what the messages of a federation reveal.

The names below are imported when they are first used, so that `import fedglass` is fast; a type checker sees them
directly. A new name is added to the imports, to `__all__` and to `_PLACES`, which a test compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedglass.api import Audit, audit_plan
    from fedglass.attack.attack import Attack
    from fedglass.audit.certificate import certify
    from fedglass.checks.singling_out import singling_out
    from fedglass.core.metric_scale import Scale
    from fedglass.core.optimisers import SGD, Adam, AdamW
    from fedglass.core.registry import register
    from fedglass.core.types import Training, Whitening
    from fedglass.data.catalogue import load
    from fedglass.defend import defence
    from fedglass.federation.behaviours import SignFlip
    from fedglass.federation.client import Client
    from fedglass.federation.federation import Federation
    from fedglass.federation.peer import PeerView
    from fedglass.federation.transcript import Transcript
    from fedglass.federation.truth import Truths
    from fedglass.federation.views import AggregateView, Knows, ServerView
    from fedglass.metrics.images import Metric
    from fedglass.models.catalogue import build
    from fedglass.recipes import recipe
    from fedglass.recorders.plain import record_aggregate, recording
    from fedglass.verdict.gate import Gate

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "AggregateView",
    "Attack",
    "Audit",
    "Client",
    "Federation",
    "Gate",
    "Knows",
    "Metric",
    "PeerView",
    "Scale",
    "ServerView",
    "SignFlip",
    "Training",
    "Transcript",
    "Truths",
    "Whitening",
    "__version__",
    "audit_plan",
    "build",
    "certify",
    "defence",
    "load",
    "recipe",
    "record_aggregate",
    "recording",
    "register",
    "singling_out",
]

_PLACES = {
    "fedglass.api": ("Audit", "audit_plan"),
    "fedglass.attack.attack": ("Attack",),
    "fedglass.audit.certificate": ("certify",),
    "fedglass.checks.singling_out": ("singling_out",),
    "fedglass.core.optimisers": ("SGD", "Adam", "AdamW"),
    "fedglass.core.registry": ("register",),
    "fedglass.core.metric_scale": ("Scale",),
    "fedglass.core.types": ("Training", "Whitening"),
    "fedglass.data.catalogue": ("load",),
    "fedglass.defend": ("defence",),
    "fedglass.metrics.images": ("Metric",),
    "fedglass.models.catalogue": ("build",),
    "fedglass.recipes": ("recipe",),
    "fedglass.recorders.plain": ("record_aggregate", "recording"),
    "fedglass.federation.behaviours": ("SignFlip",),
    "fedglass.federation.client": ("Client",),
    "fedglass.federation.federation": ("Federation",),
    "fedglass.federation.transcript": ("Transcript",),
    "fedglass.federation.truth": ("Truths",),
    "fedglass.federation.peer": ("PeerView",),
    "fedglass.federation.views": ("AggregateView", "Knows", "ServerView"),
    "fedglass.verdict.gate": ("Gate",),
}

# A type checker must not see this function, or it would accept every misspelt name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from importlib import import_module

        place = next((module for module, names in _PLACES.items() if name in names), None)
        if place is None:
            raise AttributeError(f"module 'fedglass' has no attribute {name!r}")
        return getattr(import_module(place), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
