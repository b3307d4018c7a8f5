"""Records as JUnit XML, for pipelines that show tests: one test case a record.

A leak and an exposed record are failures, a failed case is an error, and a message without certificate is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from fedglass.report.audited import judged_by, records_of
from fedglass.report.outcomes import Kind, Outcome, outcomes_of, unfinished
from fedglass.report.page import write_page
from fedglass.verdict.doubts import flags_of
from fedglass.verdict.gate import Gate

ELEMENTS: dict[Kind, str] = {"leak": "failure", "exposed": "failure", "failed": "error", "inconclusive": "skipped"}


def write_junit(directory: Path, path: Path) -> Path:
    """Write the records of an audit directory as JUnit XML, and return the path."""
    records = records_of(directory)
    gate, missing, _ = judged_by(directory, len(records))
    return write_page(path, junit(outcomes_of(records, gate), gate, unfinished(missing, records)))


def junit(outcomes: Sequence[Outcome], gate: Gate, lacking: str = "") -> str:
    """The document; `lacking` says why the records are not all, which is an error too."""
    root = Element("testsuites", name="fedglass")
    for attack in dict.fromkeys(outcome.record.attack for outcome in outcomes):
        suite = SubElement(root, "testsuite", name=legal(attack))
        for outcome in outcomes:
            if outcome.record.attack == attack:
                _case(suite, outcome, gate)
    if lacking:
        suite = SubElement(root, "testsuite", name="audit")
        case = SubElement(suite, "testcase", classname="fedglass.audit", name="every planned case has run", time="0")
        SubElement(case, "error", type="incomplete", message=legal(lacking))
    for suite in (*root, root):
        _count(suite)
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def legal(text: str) -> str:
    """The text with a question mark in place of what XML 1.0 can not hold, escaped or not.

    >>> legal("a\\x1b[31m\\tb\\ufffe")
    'a?[31m\\tb?'
    """
    ranges = ((0x20, 0xD7FF), (0xE000, 0xFFFD), (0x10000, 0x10FFFF))
    return "".join(c if c in "\t\n\r" or any(a <= ord(c) <= b for a, b in ranges) else "?" for c in text)


def _case(suite: Element, outcome: Outcome, gate: Gate) -> None:
    record = outcome.record
    doubts = [f"{flag.severity}: {flag.name}: {flag.whole}" for flag in flags_of(record, gate)]
    case = SubElement(
        suite,
        "testcase",
        classname=legal(f"fedglass.{record.attack}"),
        name=legal(f"{outcome.title} [{record.key}]"),
        time=f"{record.seconds:.3f}",
    )
    if outcome.kind in ELEMENTS:
        said = SubElement(case, ELEMENTS[outcome.kind], type=outcome.kind, message=legal(outcome.sentence))
        said.text = legal("\n".join(doubts))
    elif doubts:
        SubElement(case, "system-out").text = legal("\n".join([outcome.sentence, *doubts]))


def _count(suite: Element) -> None:
    """Write into a suite how many of its cases ended how."""
    cases = list(suite.iter("testcase"))
    suite.set("tests", str(len(cases)))
    for name, plural in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(plural, str(sum(case.find(name) is not None for case in cases)))
    suite.set("time", f"{sum(float(case.get('time', '0')) for case in cases):.3f}")
