"""Checks of a defence's numbers, which each defence runs when it is made."""

from __future__ import annotations

import math

from fedglass.core.errors import UsageError


def share(owner: object, name: str) -> None:
    """Check that the field is a share of entries in [0, 1).

    >>> from types import SimpleNamespace
    >>> share(SimpleNamespace(share=1.5), "share")
    Traceback (most recent call last):
    fedglass.core.errors.UsageError: SimpleNamespace.share must be in [0, 1), got 1.5: it is a share, not a percentage.
    """
    value = _number(owner, name)
    if not 0 <= value < 1:
        raise _refused(owner, name, "in [0, 1)", "it is a share, not a percentage")


def closed_share(owner: object, name: str) -> None:
    """Check that the field is a share of entries in [0, 1], all of them included."""
    value = _number(owner, name)
    if not 0 <= value <= 1:
        raise _refused(owner, name, "in [0, 1]", "it is a share, not a percentage")


def at_least_zero(owner: object, name: str) -> None:
    """Check that the field is a finite number that is not negative."""
    value = _number(owner, name)
    if not (math.isfinite(value) and value >= 0):
        raise _refused(owner, name, "a finite number of at least 0", "0 switches it off")


def positive(owner: object, name: str) -> None:
    """Check that the field is a finite number above 0."""
    value = _number(owner, name)
    if not (math.isfinite(value) and value > 0):
        raise _refused(owner, name, "a finite number above 0", "leave the defence out to switch it off")


def _number(owner: object, name: str) -> float:
    value = getattr(owner, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(owner, name, "a number", "write it without quotes")
    return value


def _refused(owner: object, name: str, expected: str, hint: str) -> UsageError:
    field = f"{type(owner).__name__}.{name}"
    return UsageError(f"{field} must be {expected}, got {getattr(owner, name)!r}: {hint}.")
