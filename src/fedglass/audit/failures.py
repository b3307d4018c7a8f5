"""What may go wrong in one case without ending the audit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedglass.core.errors import FedglassError, UsageError

FAILURES = (FedglassError, RuntimeError, MemoryError)
"""Anything else is a fault of fedglass."""


def in_words(error: BaseException) -> str:
    """A failure as a record or a refusal tells it.

    >>> in_words(MemoryError("no room")), in_words(UsageError("lr must be positive."))
    ('MemoryError: no room', 'lr must be positive.')
    """
    return str(error) if isinstance(error, FedglassError) else f"{type(error).__name__}: {error}"


@contextmanager
def blaming(where: str) -> Iterator[None]:
    """What would make a case fail makes the plan wrong."""
    try:
        yield
    except FAILURES as error:
        raise UsageError(f"{where}: {in_words(error)}") from error
