"""The outcome of each record: leak, exposed, inconclusive and so on, with a sentence for CI systems and reports.

The owner of an audit may accept findings until a date, in a file that every report lists:

    [[accepted]]
    record = "0a1b2c..."         # the case, as every report prints it
    reason = "only public test images, ticket 12"
    expires = 2027-01-31

Accepted findings change the exit code and never the verdict: a leak stays a leak.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedglass.core.errors import UsageError
from fedglass.core.files import follow_links, read_file
from fedglass.core.metric_scale import Scale
from fedglass.verdict.collect_doubts import flags_of, with_refutations
from fedglass.verdict.directory import RECORDS, SUMMARY, RecordFile
from fedglass.verdict.gate import Gate, is_mute
from fedglass.verdict.images import ImageScores
from fedglass.verdict.judge import ExitCode, Verdict, judge, problems_of, reads
from fedglass.verdict.records import Record
from fedglass.verdict.summary import read_summary
from fedglass.verdict.texts import count, percent

OutcomeKind = Literal["leak", "exposed", "failed", "inconclusive", "allowed", "clear", "none"]
"""`allowed`: an attack recovered images, but no larger share than the gate allows. `none`: an attack recovered nothing,
which by itself proves nothing."""

FINDINGS: tuple[OutcomeKind, ...] = ("leak", "exposed", "failed", "inconclusive")
"""The kinds that keep an audit from passing."""

_FOLDERS = re.compile(r"(?<![\w/:.])(?:[A-Za-z]:)?[/\\](?:[^\s/\\:\"']+[/\\])+")


@dataclass(frozen=True)
class Outcome:
    """The result of one record: its kind and a sentence."""

    record: Record
    kind: OutcomeKind
    sentence: str

    @property
    def is_finding(self) -> bool:
        return self.kind in FINDINGS

    @property
    def title(self) -> str:
        """The case as text."""
        return f"{self.record.view}, round {self.record.round}, repeat {self.record.repeat + 1}"


def outcomes_of(records: Sequence[Record], gate: Gate) -> list[Outcome]:
    """Return the result of every record, in their order."""
    guilty = {tally.attack for tally in gate.tally(records) if tally.share > gate.max_share and not tally.oracle}
    return [Outcome(record, *_outcome(record, gate, record.attack in guilty)) for record in records]


def unfinished(missing: int | None, records: Sequence[Record]) -> str:
    """Return why the audit is not complete, so that a report does not look like a pass; empty if it is."""
    if missing is None:
        return "It is not known how many cases were planned: the audit was stopped before its end. Run it again."
    if missing:
        return f"{count(missing, 'planned case')} not run yet: run the audit again to continue it."
    return "" if records else "No case has run."


def without_paths(text: str) -> str:
    """Return a text without the folders of this machine.

    >>> without_paths("no such file: /home/me/data/a.npz; see https://example.org/a/b")
    'no such file: a.npz; see https://example.org/a/b'
    """
    return _FOLDERS.sub("", text)


def _outcome(record: Record, gate: Gate, guilty: bool) -> tuple[OutcomeKind, str]:
    """Return the kind of a record's result, and a sentence."""
    if record.status == "failed":
        return "failed", f"The case failed: {without_paths(record.error or '')}"
    if is_mute(record):
        return "inconclusive", serious_text(record, gate)
    if record.kind == "game":
        return _game(record, gate)
    if record.kind == "certificate":
        return _certificate(record, gate)
    values = [value for value in gate.scores(record) if value is not None]
    hits = sum(gate.hits(ImageScores.of(record)))
    if reads(record) and not hits:
        read = count(len(record.labels_recovered), "image")
        return "leak", f"{record.attack} ({record.method}) read {read}, which explains the message."
    if hits:
        best = gate.scale.show(gate.best([record]))
        text = f"{record.attack} recovered {hits} of {len(values)} private images ({gate.rule}; best {best})."
        if record.oracle:
            return "none", f"{text} It used oracle knowledge, so this decides nothing."
        allowed = f" The gate allows {percent(gate.max_share)} of an attack's images."
        return ("leak", text) if guilty else ("allowed", text + allowed)
    if values and gate.judged(record):
        return "none", f"{record.attack} recovered no private image ({gate.rule})."
    return _unscored(record, gate)


def _unscored(record: Record, gate: Gate) -> tuple[OutcomeKind, str]:
    """Explain why images have no score; an attack without anything to score is not a gap of the audit."""
    why = serious_text(record, gate)
    if gate.judged(record) and not why:
        return "none", " ".join(flag.advice for flag in flags_of(record, gate))
    why = record.skipped_metrics.get(gate.metric, "") or why
    return "inconclusive", f"Not all images have a score of {gate.scale.title}. {why}".rstrip()


def _game(record: Record, gate: Gate) -> tuple[OutcomeKind, str]:
    game = record.game
    if game is None:
        return "none", " ".join(flag.advice for flag in flags_of(record, gate))
    named = round(game.top1 * game.records)
    text = f"The message names {named} of {count(game.records, 'record')} among {game.candidates:,} candidates."
    return "exposed" if gate.exposes(record) else "none", text


def _certificate(record: Record, gate: Gate) -> tuple[OutcomeKind, str]:
    doubts = serious_text(record, gate)
    if doubts or record.certificate is None:
        return "inconclusive", doubts or "There is no certificate."
    return "clear", f"Success of any adversary in naming a record: at most {percent(gate.allowed(record))}."


def serious_text(record: Record, gate: Gate) -> str:
    """Return the serious doubts of a record as text."""
    return " ".join(f"{flag.name}: {flag.advice}" for flag in flags_of(record, gate) if flag.severity == "serious")


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
            *(
                f"The acceptance of record {e.record} expired on {e.expires}, so it counts again. Its reason was: "
                f"{e.reason}"
                for e in expired
            ),
            *(
                f"The baseline accepts record {e.record}, which is not a finding of this audit: remove the entry."
                for e in unused
            ),
        ]

    def apply(self, verdict: Verdict, outcomes: Sequence[Outcome], gate: Gate, missing: int | None) -> Verdict:
        """Return the verdict with the exit code of the findings that are not accepted, and a sentence that says so."""
        accepted = self.accepted(outcomes)
        if not accepted:
            return verdict
        code = _exit_code(outcomes, {outcome.record.key for outcome, _ in accepted}, gate, missing)
        remark = f"The baseline accepts {count(len(accepted), 'finding')}; the exit code counts the others."
        caveat = f"{verdict.caveat} {remark}".lstrip()
        return replace(verdict, exit_code=code, passed=None if code == 3 else code == 0, caveat=caveat)


NO_BASELINE = FindingBaseline()


@dataclass(frozen=True, eq=False)
class JudgedAudit:
    """The records of an audit with all that decides its verdict, read and judged once for every report."""

    directory: Path
    records: Sequence[Record]
    gate: Gate
    missing: int | None = 0
    """The number of planned cases that have not run; None if it is not known."""
    baseline: FindingBaseline = NO_BASELINE
    scales: Mapping[str, Scale] = field(default_factory=dict)
    """The scales that were stored with the audit."""

    @cached_property
    def outcomes(self) -> list[Outcome]:
        return outcomes_of(self.records, self.gate)

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict, with the exit code of the findings that are not accepted."""
        verdict = judge(self.records, self.gate, self.missing)
        return self.baseline.apply(verdict, self.outcomes, self.gate, self.missing)


def read_audit(
    directory: Path, baseline: FindingBaseline = NO_BASELINE, records: Sequence[Record] | None = None
) -> JudgedAudit:
    """Read an audit directory, with refuted certificates marked, or judge the given records as it says."""
    records = records_of(directory) if records is None else records
    if not (directory / SUMMARY).is_file():
        return JudgedAudit(directory, records, Gate(), None, baseline)
    summary = read_summary(directory / SUMMARY)
    missing = max(0, summary.planned - len(records))
    return JudgedAudit(directory, records, summary.judged_by(), missing, baseline, summary.scales)


def records_of(directory: Path) -> list[Record]:
    """Return the records of an audit directory, with refuted certificates marked; refuse another directory."""
    if not (directory / RECORDS).is_file():
        raise UsageError(f"{directory} is not an audit directory (no {RECORDS}): run `fedglass audit` first.")
    return with_refutations(RecordFile(directory / RECORDS).read())


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
