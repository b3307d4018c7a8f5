"""Each record as a pipeline sees it: a leak, a failed case, one that can not tell, or none of these."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedglass.ledger.records import Record
from fedglass.verdict.doubts import flags_of
from fedglass.verdict.gate import Gate, is_mute
from fedglass.verdict.images import ImageScores
from fedglass.verdict.judge import reads
from fedglass.verdict.texts import count, percent

Kind = Literal["leak", "exposed", "failed", "inconclusive", "allowed", "clear", "none"]
"""`allowed`: images were recovered, but no larger share of them than the gate allows the attack. `none`: an attack that
recovered nothing, which by itself proves nothing."""

_FOLDERS = re.compile(r"(?<![\w/:.])(?:[A-Za-z]:)?[/\\](?:[^\s/\\:\"']+[/\\])+")


@dataclass(frozen=True)
class Outcome:
    """What came of one record, in a word and in a sentence."""

    record: Record
    kind: Kind
    sentence: str

    @property
    def title(self) -> str:
        """The case in words."""
        return f"{self.record.view}, round {self.record.round}, repeat {self.record.repeat + 1}"


def outcomes_of(records: Sequence[Record], gate: Gate) -> list[Outcome]:
    """What came of every record, in their order."""
    guilty = {tally.attack for tally in gate.tally(records) if tally.share > gate.max_share and not tally.oracle}
    return [_outcome(record, gate, record.attack in guilty) for record in records]


def unfinished(missing: int | None, records: Sequence[Record]) -> str:
    """Why the records are not all of the audit, without which a report may look like a pass; empty where they are."""
    if missing is None:
        return "It is not known how many cases were planned: the audit was stopped before its end. Run it again."
    if missing:
        return f"{count(missing, 'planned case')} not run yet: run the audit again to continue it."
    return "" if records else "No case has run."


def without_folders(text: str) -> str:
    """A text in which no file is named by its place on this machine.

    >>> without_folders("no such file: /home/me/data/a.npz; see https://example.org/a/b")
    'no such file: a.npz; see https://example.org/a/b'
    """
    return _FOLDERS.sub("", text)


def _outcome(record: Record, gate: Gate, guilty: bool) -> Outcome:
    if record.status == "failed":
        return Outcome(record, "failed", f"The case failed: {without_folders(record.error or '')}")
    if is_mute(record):
        return Outcome(record, "inconclusive", serious_text(record, gate))
    if record.kind == "game":
        return _game(record, gate)
    if record.kind == "certificate":
        return _certificate(record, gate)
    values = [value for value in gate.scores(record) if value is not None]
    hits = sum(gate.hits(ImageScores.of(record)))
    if reads(record) and not hits:
        read = count(len(record.labels_recovered), "image")
        return Outcome(record, "leak", f"{record.attack} ({record.method}) read {read}, which explains the message.")
    if hits:
        best = gate.scale.show(gate.scale.best(values))
        said = f"{record.attack} recovered {hits} of {len(values)} private images ({gate.rule}; best {best})."
        if record.oracle:
            return Outcome(record, "none", f"{said} It used oracle knowledge, so this decides nothing.")
        allowed = f" The gate allows {percent(gate.max_share)} of an attack's images."
        return Outcome(record, "leak", said) if guilty else Outcome(record, "allowed", said + allowed)
    if values and gate.judged(record):
        return Outcome(record, "none", f"{record.attack} recovered no private image ({gate.rule}).")
    return _unscored(record, gate)


def _unscored(record: Record, gate: Gate) -> Outcome:
    """Say why images have no score; an attack that had nothing to score is no gap of the audit."""
    why = serious_text(record, gate)
    if gate.judged(record) and not why:
        return Outcome(record, "none", " ".join(flag.whole for flag in flags_of(record, gate)))
    why = record.skipped_metrics.get(gate.metric, "") or why
    return Outcome(record, "inconclusive", f"Not all images have a score of {gate.scale.title}. {why}".rstrip())


def _game(record: Record, gate: Gate) -> Outcome:
    game = record.game
    if game is None:
        return Outcome(record, "none", " ".join(flag.whole for flag in flags_of(record, gate)))
    named = round(game.top1 * game.records)
    said = f"The message names {named} of {count(game.records, 'record')} among {game.candidates:,} candidates."
    return Outcome(record, "exposed" if gate.exposes(record) else "none", said)


def _certificate(record: Record, gate: Gate) -> Outcome:
    doubts = serious_text(record, gate)
    if doubts or record.certificate is None:
        return Outcome(record, "inconclusive", doubts or "There is no certificate.")
    return Outcome(
        record, "clear", f"Success of any adversary in naming a record: at most {percent(gate.allowed(record))}."
    )


def serious_text(record: Record, gate: Gate) -> str:
    """Return the serious doubts of a record in words."""
    return " ".join(f"{flag.name}: {flag.whole}" for flag in flags_of(record, gate) if flag.severity == "serious")
