"""Records as SARIF 2.1.0, for systems that show findings beside the code: a rule for a leak and one for each flag."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedglass import __version__
from fedglass.ledger.records import PLAN, Record
from fedglass.report.audited import judged_by, records_of
from fedglass.report.flags import anchor
from fedglass.report.outcomes import Kind, Outcome, outcomes_of, unfinished, without_folders
from fedglass.report.page import write_page
from fedglass.verdict.doubts import flags_of
from fedglass.verdict.gate import Gate
from fedglass.verdict.judge import Verdict, judge
from fedglass.verdict.texts import Severity

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS: dict[Severity, str] = {"info": "note", "warning": "warning", "serious": "error"}
KINDS: dict[Kind, tuple[str, str, str]] = {
    "leak": ("leak", "error", "An attack recovered private images from a message."),
    "exposed": ("exposed", "error", "A message singles out the records that were trained on."),
    "allowed": ("leak-allowed", "warning", "An attack recovered private images, but no more than the gate allows."),
    "failed": ("case-failed", "error", "A case of the audit could not be played to its end."),
    "inconclusive": ("inconclusive", "error", "Nothing bounds what a message tells."),
}
"""Rule, level and description of what is a finding by itself."""


@dataclass(frozen=True)
class Finding:
    """One result: the rule that it belongs to, and what is said of which record."""

    rule: str
    level: str
    description: str
    """Of the rule."""
    text: str
    record: Record
    place: str
    """The case in words."""


def write_sarif(directory: Path, path: Path) -> Path:
    """Write the records of an audit directory as SARIF, and return the path."""
    records = records_of(directory)
    gate, missing, _ = judged_by(directory, len(records))
    text = sarif(records, gate, missing)
    return write_page(path, json.dumps(text, indent=1, allow_nan=False) + "\n")


def sarif(records: Sequence[Record], gate: Gate, missing: int | None = 0) -> dict[str, Any]:
    """The log of one run; `missing` counts the planned cases that have not run (None: unknown)."""
    outcomes = outcomes_of(records, gate)
    findings = [finding for outcome in outcomes for finding in _findings(outcome, gate)]
    rules = {finding.rule: finding for finding in reversed(findings)}
    order = sorted(rules)
    driver = {
        "name": "fedglass",
        "version": __version__,
        "rules": [_rule(rules[name]) for name in order],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [_invocation(judge(records, gate, missing), outcomes, unfinished(missing, records))],
        "results": [_result(finding, order.index(finding.rule)) for finding in findings],
        "columnKind": "unicodeCodePoints",
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def message(text: str) -> dict[str, str]:
    """A message of SARIF, in which nothing is a placeholder or a link.

    >>> message("{0} [here](https://example.org)")["text"]
    '{{0}} \\\\[here\\\\](https://example.org)'
    """
    plain = without_folders(text).replace("\\", "\\\\").replace("{", "{{").replace("}", "}}")
    return {"text": plain.replace("[", "\\[").replace("]", "\\]")}


def _findings(outcome: Outcome, gate: Gate) -> Iterator[Finding]:
    record, flags = outcome.record, flags_of(outcome.record, gate)
    # Where a serious doubt says why a case cannot tell, the doubt is the finding.
    told = outcome.kind == "inconclusive" and any(flag.severity == "serious" for flag in flags)
    if outcome.kind in KINDS and not told:
        rule, level, description = KINDS[outcome.kind]
        yield Finding(rule, level, description, outcome.sentence, record, outcome.title)
    for flag in flags:
        description = f"{flag.question.value} Doubt: {flag.name}."
        yield Finding(anchor(flag.kind), LEVELS[flag.severity], description, flag.whole, record, outcome.title)


def _rule(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.rule,
        "shortDescription": message(finding.description),
        "defaultConfiguration": {"level": finding.level},
    }


def _result(finding: Finding, index: int) -> dict[str, Any]:
    record = finding.record
    logical = {"name": record.attack, "fullyQualifiedName": f"{record.attack}: {finding.place}"}
    # The copy in the audit directory: where the user keeps the plan is nobody's business but the user's.
    physical = {"artifactLocation": {"uri": PLAN}, "region": {"startLine": 1}}
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.level,
        "message": message(f"{record.attack}: {finding.place}. {finding.text}"),
        "locations": [{"physicalLocation": physical, "logicalLocations": [logical]}],
        "partialFingerprints": {"fedglassCase/v1": f"{record.key}/{finding.rule}"},
    }


def _invocation(verdict: Verdict, outcomes: Sequence[Outcome], lacking: str) -> dict[str, Any]:
    """Whether the audit came to its end, its exit code, and what kept it from it."""
    troubles = [f"{o.record.attack}: {o.title}. {o.sentence}" for o in outcomes if o.kind == "failed"]
    troubles += [lacking] if lacking else []
    return {
        "executionSuccessful": not troubles,
        "exitCode": verdict.exit_code,
        "exitCodeDescription": without_folders(verdict.sentence),
        "toolExecutionNotifications": [{"level": "error", "message": message(text)} for text in troubles],
    }
