"""Reports for pipelines: JUnit XML, SARIF, and a summary in Markdown for the page of a job.

In JUnit XML a leak and an exposed record are failures. A failed case is an error, and so is an inconclusive one. SARIF
has a rule for each kind of finding and of doubt, whose identifiers do not change from version to version.

The summary holds no pictures, because the page of a job is often public.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from fedglass import __version__
from fedglass.report.audit_page import plan_text, title_of
from fedglass.report.glossary import doubts_by_question
from fedglass.report.page import anchor, write_page
from fedglass.verdict.collect_doubts import flags_of
from fedglass.verdict.directory import PLAN
from fedglass.verdict.doubts import Severity
from fedglass.verdict.gate import Gate
from fedglass.verdict.judge import Verdict
from fedglass.verdict.outcomes import (
    NO_BASELINE,
    FindingBaseline,
    JudgedAudit,
    Outcome,
    OutcomeKind,
    unfinished,
    without_paths,
)
from fedglass.verdict.summary import by_attack
from fedglass.verdict.texts import PROTECT, TABLE

ELEMENTS: dict[OutcomeKind, str] = {
    "leak": "failure",
    "exposed": "failure",
    "failed": "error",
    "inconclusive": "error",
}
"""As skipped, an inconclusive case would be green in every dashboard."""


def write_junit(audit: JudgedAudit, path: Path) -> Path:
    """Write the records of an audit as JUnit XML, and return the path."""
    incomplete = unfinished(audit.missing, audit.records)
    return write_page(path, junit(audit.outcomes, audit.gate, incomplete, audit.baseline))


def junit(
    outcomes: Sequence[Outcome], gate: Gate, incomplete: str = "", baseline: FindingBaseline = NO_BASELINE
) -> str:
    """Return the document; `incomplete` says why the audit is not complete, which is an error too.

    A finding that the baseline accepts is skipped, with the reason. So is an inconclusive case if the plan chose that
    it does not fail.
    """
    root = Element("testsuites", name="fedglass")
    for attack in dict.fromkeys(outcome.record.attack for outcome in outcomes):
        suite = SubElement(root, "testsuite", name=legal(attack))
        for outcome in outcomes:
            if outcome.record.attack == attack:
                _case(suite, outcome, gate, baseline)
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


def _case(suite: Element, outcome: Outcome, gate: Gate, baseline: FindingBaseline) -> None:
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
        tag, text, entry = ELEMENTS[outcome.kind], outcome.sentence, baseline.of(record)
        if entry is not None or (outcome.kind == "inconclusive" and not gate.inconclusive_fails):
            tag, text = "skipped", text if entry is None else f"Accepted until {entry.expires}: {entry.reason}. {text}"
        element = SubElement(case, tag, type=outcome.kind, message=legal(text))
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
STEPS = {
    "leak": PROTECT,
    "exposed": PROTECT,
    "leak-allowed": "Look at the pictures in the report, and lower gate.max_share if they are private.",
    "case-failed": "Read the error of the case in the report, correct it, and run the same command again.",
    "inconclusive": "Read the doubts of the case in the report: each names the step that would settle it.",
}
"""Rule of a finding -> what to do."""
SECURITY = {"leak": "9.1", "exposed": "7.5", "inconclusive": "5.5", "leak-allowed": "3.9", "case-failed": "3.9"}
SECURITY_OF_LEVEL = {"error": "5.5", "warning": "3.9", "note": "1.0"}
"""Scores from 0 to 10 that GitHub sorts findings by: of findings by rule, of doubts by level."""
TAGS = ["security", "privacy", "federated-learning", "CoSAI:FLP", "OWASP-AISVS:C11"]
"""CoSAI's risk map: leaks of federated learning (FLP). OWASP AISVS: chapter C11, adversarial robustness and privacy."""


def write_sarif(audit: JudgedAudit, path: Path, plan: str = PLAN) -> Path:
    """Write the records of an audit as SARIF, and return the path.

    `plan` is the plan file as a path in the repository, which is the place of every finding. The default is the copy in
    the audit directory: the place of the user's own file stays private.
    """
    return write_page(path, json.dumps(sarif(audit, plan), indent=1, allow_nan=False) + "\n")


def sarif(audit: JudgedAudit, plan: str = PLAN) -> dict[str, Any]:
    """Return the log of one run."""
    rules, results = dict[str, dict[str, Any]](), list[dict[str, Any]]()
    plan_content = plan_text(audit.directory) or ""
    for outcome in audit.outcomes:
        # The line that names the attack, or the first one.
        lines = enumerate(plan_content.splitlines(), 1)
        named = (number for number, line in lines if f'"{outcome.record.attack}"' in line)
        place = {"artifactLocation": {"uri": plan}, "region": {"startLine": next(named, 1)}}
        for rule, level, description, text in _findings(outcome, audit.gate):
            rules.setdefault(rule, _rule(rule, level, description))
            results.append(_result(outcome, rule, level, text, place, audit.baseline))
    order = sorted(rules)
    for result in results:
        result["ruleIndex"] = order.index(result["ruleId"])
    incomplete = unfinished(audit.missing, audit.records)
    run = {
        "tool": {"driver": {"name": "fedglass", "version": __version__, "rules": [rules[name] for name in order]}},
        "invocations": [_invocation(audit.verdict, audit.outcomes, incomplete)],
        "results": results,
        "columnKind": "unicodeCodePoints",
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


DOUBTS = {anchor(kind): flag for kind, flag in TABLE.items()}
"""Rule of a doubt -> its texts."""


def _rule(rule: str, level: str, description: str) -> dict[str, Any]:
    """Return a rule with its help: what it means and what to do."""
    meaning, step = description, STEPS.get(rule, "")
    if rule in DOUBTS:
        blank = defaultdict(lambda: "...", dict[str, str]())
        meaning, step = (text.format_map(blank) for text in (DOUBTS[rule].text, DOUBTS[rule].step))
    parts = {"What it means": meaning, "What to do": step}
    markdown = "\n\n".join(f"**{title}.** {text}" for title, text in parts.items() if text)
    return {
        "id": rule,
        "shortDescription": message(description),
        "help": {**message(f"{meaning} {step}".rstrip()), "markdown": markdown},
        "defaultConfiguration": {"level": level},
        "properties": {"tags": TAGS, "security-severity": SECURITY.get(rule, SECURITY_OF_LEVEL[level])},
    }


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


def _result(
    outcome: Outcome, rule: str, level: str, text: str, physical: dict[str, Any], baseline: FindingBaseline
) -> dict[str, Any]:
    record, place = outcome.record, f"{outcome.record.attack}: {outcome.title}"
    logical = {"name": record.attack, "fullyQualifiedName": place}
    # The key of a case changes with the version and the seed; a tracker must know the finding again.
    finding = "\n".join([rule, record.attack, record.view, str(record.round), str(record.repeat)])
    hashed = hashlib.sha256(finding.encode(errors="replace")).hexdigest()[:16]
    entry = baseline.of(record) if outcome.is_finding else None
    suppressed = {}
    if entry is not None:
        reason = without_paths(f"Until {entry.expires}: {entry.reason}")
        suppressed = {"suppressions": [{"kind": "external", "status": "accepted", "justification": reason}]}
    return {
        "ruleId": rule,
        "ruleIndex": 0,
        "level": level,
        "message": message(f"{place}. {text}"),
        "locations": [{"physicalLocation": physical, "logicalLocations": [logical]}],
        "partialFingerprints": {
            "fedglassCase/v1": f"{record.key}/{rule}",
            "primaryLocationLineHash": f"{hashed}:1",
        },
        **suppressed,
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


_MARKS = re.compile(r"([\\`*_{}\[\]()#+!|~@-])")
MOST = 50
"""Findings that a summary lists."""


def write_markdown(audit: JudgedAudit, path: Path) -> Path:
    """Write the summary of an audit as Markdown, and return the path."""
    records, gate = audit.records, audit.gate
    attacks = (
        [g.attack, str(g.cases), f"{g.recovered} of {g.images}" if g.images else "not scored"]
        for g in by_attack(records, gate)
    )
    failed = sum(record.status == "failed" for record in records)
    parts = [
        _head(audit.verdict, title_of(plan_text(audit.directory))),
        _table(["attack", "cases", "images recovered"], attacks),
        _findings_section(audit.outcomes, audit.baseline),
        _accepted(audit.outcomes, audit.baseline),
        _doubts([flag.advice for _, groups in doubts_by_question(records, gate) for flag, _, _ in groups]),
        f"{len(records)} cases have run, {failed} of them failed. Pictures and details are in report.html.",
    ]
    return write_page(path, "\n\n".join(filter(None, parts)) + "\n")


def safe(text: str) -> str:
    """Return a text on one line that Markdown shows as it is.

    >>> safe("a|b <img> [x](y)\\n# c")
    'a\\\\|b &lt;img&gt; \\\\[x\\\\]\\\\(y\\\\) \\\\# c'
    """
    return _MARKS.sub(r"\\\1", html.escape(" ".join(without_paths(text).split()), quote=False))


def _head(verdict: Verdict, title: str) -> str:
    lines = [verdict.sentence, verdict.interval, *verdict.limits]
    step = f"**Next step:** {safe(verdict.step)}" if verdict.step else ""
    heading = f"## fedglass: {safe(verdict.title)}{f' ({safe(title)})' if title else ''}"
    paragraphs = [heading, *map(safe, lines), step, f"Exit code: {verdict.exit_code}."]
    return "\n\n".join(filter(None, paragraphs))


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *([safe(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if len(lines) > 2 else ""


def _findings_section(outcomes: Sequence[Outcome], baseline: FindingBaseline) -> str:
    findings = [o for o in outcomes if o.is_finding and baseline.of(o.record) is None]
    rows = [[o.kind, o.record.attack, o.title, o.record.key, o.sentence] for o in findings[:MOST]]
    more = f"\n\n{len(findings) - MOST} more findings are in the report." if len(findings) > MOST else ""
    return _table(["finding", "attack", "case", "record", "what it says"], rows) + more


def _accepted(outcomes: Sequence[Outcome], baseline: FindingBaseline) -> str:
    rows = [[o.record.key, o.kind, o.sentence, e.reason, str(e.expires)] for o, e in baseline.accepted(outcomes)]
    table = _table(["accepted record", "finding", "what it says", "reason", "until"], rows)
    return "\n\n".join(filter(None, [table, *map(safe, baseline.remarks(outcomes))]))


def _doubts(texts: Sequence[str]) -> str:
    lines = "\n".join(f"- {safe(text)}" for text in texts)
    return f"<details><summary>Doubts: {len(texts)}</summary>\n\n{lines}\n\n</details>" if texts else ""
