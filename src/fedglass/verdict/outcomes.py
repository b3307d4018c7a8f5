"""The outcome of each record: leak, exposed, inconclusive and so on, with a sentence for CI systems and reports."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedglass.verdict.collect_doubts import flags_of
from fedglass.verdict.gate import Gate, is_mute
from fedglass.verdict.images import ImageScores
from fedglass.verdict.judge import reads
from fedglass.verdict.records import Record
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
        best = gate.scale.show(gate.scale.best(values))
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
