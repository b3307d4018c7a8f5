"""What every solver asks of its options."""

from __future__ import annotations

from fedglass.core.errors import UsageError


def check_iterations(iterations: int) -> None:
    """Refuse a run without a single iteration."""
    if iterations < 1:
        raise UsageError(f"attack.iterations must be at least 1, got {iterations}.")
