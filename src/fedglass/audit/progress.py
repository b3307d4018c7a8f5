"""How an audit or a re-creation tells its caller where it is."""

from __future__ import annotations

from typing import Any, Protocol

from fedglass.audit.cases import Case
from fedglass.ledger.records import Record


class Progress(Protocol):
    """All calls come from the thread that started the run."""

    def planned(self, cases: int, done: int) -> None:
        """How many cases there are, and how many of them an earlier run has finished."""

    def trained(self, name: str, done: int, total: int) -> None:
        """Rounds of a federation that have been simulated."""

    def started(self, case: Case[Any]) -> None: ...

    def moved(self, case: Case[Any], done: int, total: int) -> None:
        """Iterations of a running attack."""

    def finished(self, case: Case[Any], record: Record) -> None: ...


class Silent:
    """Says nothing."""

    def planned(self, cases: int, done: int) -> None: ...

    def trained(self, name: str, done: int, total: int) -> None: ...

    def started(self, case: Case[Any]) -> None: ...

    def moved(self, case: Case[Any], done: int, total: int) -> None: ...

    def finished(self, case: Case[Any], record: Record) -> None: ...
