"""How an audit tells its caller where it is."""

from __future__ import annotations

from typing import Protocol

from fedglass.audit.cases import Case
from fedglass.ledger.records import Record


class Progress(Protocol):
    """Hears of an audit's way; all calls come from the thread that started it."""

    def planned(self, cases: int, done: int) -> None:
        """How many cases there are, and how many of them an earlier run has finished."""

    def trained(self, source: str, done: int, total: int) -> None:
        """Rounds of a federation that have been simulated."""

    def started(self, case: Case) -> None: ...

    def moved(self, case: Case, done: int, total: int) -> None:
        """Iterations of a running attack."""

    def finished(self, case: Case, record: Record) -> None: ...


class Silent:
    """Says nothing."""

    def planned(self, cases: int, done: int) -> None: ...

    def trained(self, source: str, done: int, total: int) -> None: ...

    def started(self, case: Case) -> None: ...

    def moved(self, case: Case, done: int, total: int) -> None: ...

    def finished(self, case: Case, record: Record) -> None: ...
