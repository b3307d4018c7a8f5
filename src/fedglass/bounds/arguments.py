"""Checks of the numbers that a bound is asked for."""

from __future__ import annotations

import math

from fedglass.core.errors import UsageError


def check_rate(name: str, value: float) -> None:
    """Check that a probability is in (0, 1].

    >>> check_rate("base_rate", 5)
    Traceback (most recent call last):
    fedglass.core.errors.UsageError: base_rate must be in (0, 1], got 5: it is a probability, not a percentage.
    """
    if not 0 < value <= 1:
        raise UsageError(f"{name} must be in (0, 1], got {value!r}: it is a probability, not a percentage.")


def check_delta(value: float) -> None:
    """Check that delta is in [0, 1)."""
    if not 0 <= value < 1:
        raise UsageError(f"delta must be in [0, 1), got {value!r}: choose one far below 1 / records.")


def check_size(name: str, value: float) -> None:
    """Check that a distance, a noise or an epsilon is not negative; infinity is allowed."""
    if not value >= 0 or isinstance(value, bool):
        raise UsageError(f"{name} must be a number of at least 0, got {value!r}.")


def check_finite(name: str, value: float) -> None:
    """Check that a size is finite as well."""
    check_size(name, value)
    if math.isinf(value):
        raise UsageError(f"{name} must be finite, got {value!r}.")


def check_count(name: str, value: int, least: int = 1) -> None:
    """Check that a count is a whole number and large enough."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name} must be a whole number of at least {least}, got {value!r}.")
