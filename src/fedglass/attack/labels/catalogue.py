"""The ways to find labels by name."""

from __future__ import annotations

from fedglass.attack.parts import Labels
from fedglass.core.registry import make


def labels_part(name: str) -> Labels:
    """The labels part of that name.

    >>> labels_part("sign_rule")
    SignRule()
    """
    part: Labels = make("labels", name)
    return part
