"""Findings that the owner of an audit accepts until a date: read from a file, listed in every report, never silent.

    [[accepted]]
    record = "0a1b2c..."         # the case, as every report prints it
    reason = "only public test images, ticket 12"
    expires = 2027-01-31

Accepted findings change the exit code and never the verdict: a leak stays a leak.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedglass.core.errors import UsageError
from fedglass.core.files import follow_links, read_file
from fedglass.verdict import texts
from fedglass.verdict.gate import Gate
from fedglass.verdict.judge import ExitCode, Verdict, problems_of
from fedglass.verdict.outcomes import Outcome, outcomes_of
from fedglass.verdict.records import Record
from fedglass.verdict.texts import count

LONGEST = 2**20
"""Largest baseline file in bytes."""


class AcceptedFinding(BaseModel):
    """One finding that is accepted: its record, why, and until when."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    record: str = Field(pattern=r"^[0-9A-Za-z_-]{1,80}$")
    reason: str = Field(min_length=3, max_length=1000)
    expires: date


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    accepted: Annotated[list[AcceptedFinding], Field(max_length=10_000)]


@dataclass(frozen=True)
class FindingBaseline:
    """The accepted findings on a day, by record."""

    entries: tuple[AcceptedFinding, ...] = ()
    today: date = date.max

    def of(self, record: Record) -> AcceptedFinding | None:
        """Return the entry that accepts a record today; None where there is none, or where it has expired."""
        valid = (entry for entry in self.entries if entry.record == record.key and entry.expires >= self.today)
        return next(valid, None)

    def accepted(self, outcomes: Sequence[Outcome]) -> list[tuple[Outcome, AcceptedFinding]]:
        """Return the findings that are accepted, each with its entry."""
        return [(outcome, entry) for outcome in outcomes if outcome.is_finding and (entry := self.of(outcome.record))]

    def remarks(self, outcomes: Sequence[Outcome]) -> list[str]:
        """Return a sentence for each entry that accepts nothing: it has expired, or the audit has no such finding."""
        findings = {outcome.record.key for outcome in outcomes if outcome.is_finding}
        expired = [e for e in self.entries if e.expires < self.today and e.record in findings]
        unused = [e for e in self.entries if e.record not in findings]
        return [
            *(texts.EXPIRED_ENTRY.format(record=e.record, expires=e.expires, reason=e.reason) for e in expired),
            *(texts.UNUSED_ENTRY.format(record=e.record) for e in unused),
        ]

    def apply(self, verdict: Verdict, records: Sequence[Record], gate: Gate, missing: int | None) -> Verdict:
        """Return the verdict with the exit code of the findings that are not accepted, and a sentence that says so."""
        outcomes = outcomes_of(records, gate)
        accepted = self.accepted(outcomes)
        if not accepted:
            return verdict
        code = _exit_code(outcomes, {outcome.record.key for outcome, _ in accepted}, gate, missing)
        caveat = f"{verdict.caveat} {texts.ACCEPTED.format(findings=count(len(accepted), 'finding'))}".lstrip()
        return replace(verdict, exit_code=code, passed=None if code == 3 else code == 0, caveat=caveat)


def _exit_code(outcomes: Sequence[Outcome], accepted: set[str], gate: Gate, missing: int | None) -> ExitCode:
    """Return 0 only if nothing is left to run, to explain, or to bound; accepted records count as explained."""
    others = [outcome for outcome in outcomes if outcome.record.key not in accepted]
    kinds = {outcome.kind for outcome in others}
    if kinds & {"leak", "exposed"}:
        return 1
    problems = problems_of([o.record for o in others], gate, missing) if others else []
    if missing is None or missing > 0 or problems:
        return 3
    bounded = {o.record.message for o in outcomes if o.kind == "clear" or o.record.key in accepted}
    unbounded = {o.record.message for o in outcomes} - bounded
    return 3 if gate.inconclusive_fails and (unbounded or "inconclusive" in kinds) else 0


def read_baseline(path: Path, today: date) -> FindingBaseline:
    """Read a baseline file; refuse one that is damaged, and one whose entries have all expired."""
    try:
        content = tomllib.loads(read_file(follow_links(path), LONGEST).decode())
        entries = _File.model_validate(content).accepted
    except OSError as error:
        raise UsageError(f"Cannot read the baseline {path}: {error.strerror or error}; name another file.") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"The baseline {path} is not valid ({where}: {first['msg']}): each [[accepted]] table needs record, reason "
            "and expires (a date without quotes)."
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The baseline {path} is not valid TOML: {error}.") from error
    twice = sorted({e.record for e in entries if sum(other.record == e.record for other in entries) > 1})
    if twice:
        raise UsageError(f"The baseline {path} accepts the record {twice[0]} twice: keep one of the entries.")
    last = max((entry.expires for entry in entries), default=None)
    if last is not None and last < today:
        raise UsageError(f"The baseline {path} expired on {last}: review its findings, then renew or remove them.")
    return FindingBaseline(tuple(entries), today)
