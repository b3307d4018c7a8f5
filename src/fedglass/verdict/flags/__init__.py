"""When a figure may mislead its reader: each flag says what it means and what to do.

What decides them, and how absence of leakage is shown, is in `verdict.findings`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedglass.ledger.records import Flag
from fedglass.verdict.findings import Findings
from fedglass.verdict.flags import message, pictures, search

RULES: Sequence[Callable[[Findings], Flag | None]] = (
    message.no_message,
    message.replayed,
    search.stopped,
    search.labels,
    search.distinct,
    message.batch_norm,
    search.optimiser,
    search.other_run,
    search.hides,
    search.preferred,
    message.further,
    message.overlooked,
    message.unread,
    message.miscounted,
    pictures.partly,
    pictures.altered,
    search.other_run_near,
    pictures.guessed,
    pictures.imagined,
    pictures.unexplained,
    pictures.oracle,
    pictures.disagree,
    pictures.unscored,
)
"""What a reader should know first comes first."""


def flags_of(found: Findings) -> list[Flag]:
    """The flags of one record, in the order of the table."""
    return [flag for rule in RULES if (flag := rule(found)) is not None]
