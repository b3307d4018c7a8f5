"""A summary of an audit in Markdown, for the page of a CI job: the verdict, figures, accepted findings and doubts.

It holds no pictures, because the page of a job is often public.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedglass.report.glossary import doubts_by_question
from fedglass.report.html import NO_BASELINE, judged_by, plan_text, records_of, title_of
from fedglass.report.page import write_page
from fedglass.verdict.baseline import FindingBaseline
from fedglass.verdict.judge import Verdict, judge
from fedglass.verdict.outcomes import Outcome, outcomes_of, without_paths
from fedglass.verdict.records import Record
from fedglass.verdict.summary import AttackFigures, by_attack

_MARKS = re.compile(r"([\\`*_{}\[\]()#+!|~@-])")
MOST = 50
"""Findings that a summary lists."""


def write_markdown(directory: Path, path: Path, baseline: FindingBaseline = NO_BASELINE) -> Path:
    """Write the summary of an audit directory as Markdown, and return the path."""
    records = records_of(directory)
    gate, missing, _ = judged_by(directory, len(records))
    outcomes = outcomes_of(records, gate)
    verdict = baseline.apply(judge(records, gate, missing), records, gate, missing)
    parts = [
        _head(verdict, title_of(plan_text(directory))),
        _attacks(by_attack(records, gate)),
        _findings(outcomes, baseline),
        _accepted(outcomes, baseline),
        _doubts([flag.advice for _, groups in doubts_by_question(records, gate) for flag, _, _ in groups]),
        _cases(records),
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


def _attacks(groups: Sequence[AttackFigures]) -> str:
    rows = ([g.attack, str(g.cases), f"{g.recovered} of {g.images}" if g.images else "not scored"] for g in groups)
    return _table(["attack", "cases", "images recovered"], rows)


def _findings(outcomes: Sequence[Outcome], baseline: FindingBaseline) -> str:
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


def _cases(records: Sequence[Record]) -> str:
    failed = sum(record.status == "failed" for record in records)
    return f"{len(records)} cases have run, {failed} of them failed. Pictures and details are in report.html."
