"""Checks of a defence's numbers, which each defence runs when it is made."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from fedglass.core.errors import UsageError


def share(owner: object, name: str) -> None:
    """Check that the field is a share of entries in [0, 1).

    >>> from types import SimpleNamespace
    >>> share(SimpleNamespace(share=1.5), "share")
    Traceback (most recent call last):
    fedglass.core.errors.UsageError: SimpleNamespace.share must be in [0, 1), got 1.5: it is a share, not a percentage.
    """
    _check(owner, name, lambda value: 0 <= value < 1, "in [0, 1)", "it is a share, not a percentage")


def closed_share(owner: object, name: str) -> None:
    """Check that the field is a share of entries in [0, 1], all of them included."""
    _check(owner, name, lambda value: 0 <= value <= 1, "in [0, 1]", "it is a share, not a percentage")


def percentage(owner: object, name: str) -> None:
    """Check that the field is a percentage in [0, 100]."""
    _check(owner, name, lambda value: 0 <= value <= 100, "in [0, 100]", "NVFlare sends the update unfiltered otherwise")


def at_least_zero(owner: object, name: str) -> None:
    """Check that the field is a finite number that is not negative."""
    _check(owner, name, lambda value: 0 <= value < math.inf, "a finite number of at least 0", "0 switches it off")


def positive(owner: object, name: str) -> None:
    """Check that the field is a finite number above 0."""
    hint = "leave the defence out to switch it off"
    _check(owner, name, lambda value: 0 < value < math.inf, "a finite number above 0", hint)


def _check(owner: object, name: str, holds: Callable[[float], bool], expected: str, hint: str) -> None:
    """Refuse a field that is not a number, or one that the condition does not hold for."""
    value = getattr(owner, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        expected, hint = "a number", "write it without quotes"
    elif abs(value) <= sys.float_info.max and holds(value):  # a whole number may have more digits than a float takes
        return
    raise UsageError(f"{type(owner).__name__}.{name} must be {expected}, got {value!r}: {hint}.")
