"""Reports for pipelines: JUnit XML with one test case for each record, and SARIF with one result for each finding.

In JUnit XML a leak and an exposed record are failures, a failed case is an error, and a message without a certificate
is skipped. SARIF has a rule for a leak and one for each kind of doubt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from fedglass import __version__
from fedglass.report.html import judged_by, records_of
from fedglass.report.page import anchor, write_page
from fedglass.verdict.collect_doubts import flags_of
from fedglass.verdict.directory import PLAN
from fedglass.verdict.doubts import Severity
from fedglass.verdict.gate import Gate, is_mute
from fedglass.verdict.images import ImageScores
from fedglass.verdict.judge import Verdict, judge, reads
from fedglass.verdict.records import Record
from fedglass.verdict.texts import count, percent

OutcomeKind = Literal["leak", "exposed", "failed", "inconclusive", "allowed", "clear", "none"]
"""`allowed`: an attack recovered images, but no larger share than the gate allows. `none`: an attack recovered nothing,
which by itself proves nothing."""

_FOLDERS = re.compile(r"(?<![\w/:.])(?:[A-Za-z]:)?[/\\](?:[^\s/\\:\"']+[/\\])+")


@dataclass(frozen=True)
class Outcome:
    """The result of one record: its kind and a sentence."""

    record: Record
    kind: OutcomeKind
    sentence: str

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


ELEMENTS: dict[OutcomeKind, str] = {
    "leak": "failure",
    "exposed": "failure",
    "failed": "error",
    "inconclusive": "skipped",
}


def write_junit(directory: Path, path: Path) -> Path:
    """Write the records of an audit directory as JUnit XML, and return the path."""
    records = records_of(directory)
    gate, missing, _ = judged_by(directory, len(records))
    return write_page(path, junit(outcomes_of(records, gate), gate, unfinished(missing, records)))


def junit(outcomes: Sequence[Outcome], gate: Gate, incomplete: str = "") -> str:
    """Return the document; `incomplete` says why the audit is not complete, which is an error too."""
    root = Element("testsuites", name="fedglass")
    for attack in dict.fromkeys(outcome.record.attack for outcome in outcomes):
        suite = SubElement(root, "testsuite", name=legal(attack))
        for outcome in outcomes:
            if outcome.record.attack == attack:
                _case(suite, outcome, gate)
    if incomplete:
        suite = SubElement(root, "testsuite", name="audit")
        case = SubElement(suite, "testcase", classname="fedglass.audit", name="every planned case has run", time="0")
        SubElement(case, "error", type="incomplete", message=legal(incomplete))
    for suite in (*root, root):
        _count(suite)
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def legal(text: str) -> str:
    """Return the text with a question mark for every character that XML 1.0 does not allow.

    >>> legal("a\\x1b[31m\\tb\\ufffe")
    'a?[31m\\tb?'
    """
    ranges = ((0x20, 0xD7FF), (0xE000, 0xFFFD), (0x10000, 0x10FFFF))
    return "".join(c if c in "\t\n\r" or any(a <= ord(c) <= b for a, b in ranges) else "?" for c in text)


def _case(suite: Element, outcome: Outcome, gate: Gate) -> None:
    record = outcome.record
    doubts = [f"{flag.severity}: {flag.name}: {flag.advice}" for flag in flags_of(record, gate)]
    case = SubElement(
        suite,
        "testcase",
        classname=legal(f"fedglass.{record.attack}"),
        name=legal(f"{outcome.title} [{record.key}]"),
        time=f"{record.seconds:.3f}",
    )
    if outcome.kind in ELEMENTS:
        element = SubElement(case, ELEMENTS[outcome.kind], type=outcome.kind, message=legal(outcome.sentence))
        element.text = legal("\n".join(doubts))
    elif doubts:
        SubElement(case, "system-out").text = legal("\n".join([outcome.sentence, *doubts]))


def _count(suite: Element) -> None:
    """Write the counts of failures, errors and skipped cases into a suite."""
    cases = list(suite.iter("testcase"))
    suite.set("tests", str(len(cases)))
    for name, plural in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(plural, str(sum(case.find(name) is not None for case in cases)))
    suite.set("time", f"{sum(float(case.get('time', '0')) for case in cases):.3f}")


SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS: dict[Severity, str] = {"info": "note", "warning": "warning", "serious": "error"}
KINDS: dict[OutcomeKind, tuple[str, str, str]] = {
    "leak": ("leak", "error", "An attack recovered private images from a message."),
    "exposed": ("exposed", "error", "A message singles out the records that were trained on."),
    "allowed": ("leak-allowed", "warning", "An attack recovered private images, but no more than the gate allows."),
    "failed": ("case-failed", "error", "A case of the audit failed."),
    "inconclusive": ("inconclusive", "error", "Nothing bounds what a message reveals."),
}
"""Kind of a result that is a finding by itself -> its rule, level and description."""


def write_sarif(directory: Path, path: Path) -> Path:
    """Write the records of an audit directory as SARIF, and return the path."""
    records = records_of(directory)
    gate, missing, _ = judged_by(directory, len(records))
    text = sarif(records, gate, missing)
    return write_page(path, json.dumps(text, indent=1, allow_nan=False) + "\n")


def sarif(records: Sequence[Record], gate: Gate, missing: int | None = 0) -> dict[str, Any]:
    """Return the log of one run; `missing` counts the planned cases that have not run (None: unknown)."""
    outcomes, rules, results = outcomes_of(records, gate), dict[str, dict[str, Any]](), list[dict[str, Any]]()
    for outcome in outcomes:
        for rule, level, description, text in _findings(outcome, gate):
            facts = {"shortDescription": message(description), "defaultConfiguration": {"level": level}}
            rules.setdefault(rule, {"id": rule, **facts})
            results.append(_result(outcome, rule, level, text))
    order = sorted(rules)
    for result in results:
        result["ruleIndex"] = order.index(result["ruleId"])
    run = {
        "tool": {"driver": {"name": "fedglass", "version": __version__, "rules": [rules[name] for name in order]}},
        "invocations": [_invocation(judge(records, gate, missing), outcomes, unfinished(missing, records))],
        "results": results,
        "columnKind": "unicodeCodePoints",
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def message(text: str) -> dict[str, str]:
    """Return a SARIF message with escaped placeholders and links.

    >>> message("{0} [here](https://example.org)")["text"]
    '{{0}} \\\\[here\\\\](https://example.org)'
    """
    plain = without_paths(text).replace("\\", "\\\\").replace("{", "{{").replace("}", "}}")
    return {"text": plain.replace("[", "\\[").replace("]", "\\]")}


def _findings(outcome: Outcome, gate: Gate) -> Iterator[tuple[str, str, str, str]]:
    """Yield the findings of a record: rule, level, description of the rule, and text."""
    flags = flags_of(outcome.record, gate)
    # A serious doubt that explains an inconclusive case is the finding itself.
    explained = outcome.kind == "inconclusive" and any(flag.severity == "serious" for flag in flags)
    if outcome.kind in KINDS and not explained:
        yield *KINDS[outcome.kind], outcome.sentence
    for flag in flags:
        yield anchor(flag.kind), LEVELS[flag.severity], f"{flag.question.value} Doubt: {flag.name}.", flag.advice


def _result(outcome: Outcome, rule: str, level: str, text: str) -> dict[str, Any]:
    place = f"{outcome.record.attack}: {outcome.title}"
    # The copy in the audit directory: the place of the user's own file stays private.
    physical = {"artifactLocation": {"uri": PLAN}, "region": {"startLine": 1}}
    logical = {"name": outcome.record.attack, "fullyQualifiedName": place}
    return {
        "ruleId": rule,
        "ruleIndex": 0,
        "level": level,
        "message": message(f"{place}. {text}"),
        "locations": [{"physicalLocation": physical, "logicalLocations": [logical]}],
        "partialFingerprints": {"fedglassCase/v1": f"{outcome.record.key}/{rule}"},
    }


def _invocation(verdict: Verdict, outcomes: Sequence[Outcome], incomplete: str) -> dict[str, Any]:
    """Return whether the audit completed, its exit code, and its errors."""
    errors = [f"{o.record.attack}: {o.title}. {o.sentence}" for o in outcomes if o.kind == "failed"]
    errors += [incomplete] if incomplete else []
    return {
        "executionSuccessful": not errors,
        "exitCode": verdict.exit_code,
        "exitCodeDescription": without_paths(verdict.sentence),
        "toolExecutionNotifications": [{"level": "error", "message": message(text)} for text in errors],
    }
