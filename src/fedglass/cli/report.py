"""`fedglass report` writes the page of an audit and its forms for CI; both it and `audit` take accepted findings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedglass.cli.options import PATH, Output, output_options
from fedglass.core.text import count

if TYPE_CHECKING:
    from fedglass.verdict.outcomes import FindingBaseline, Outcome

baseline_option = click.option(
    "--baseline",
    "accepted",
    type=PATH,
    metavar="FILE",
    help="Accepted findings, each with a reason and a date. They do not count for the exit code (docs/ci.md).",
)


def baseline_of(path: Path | None) -> FindingBaseline:
    """Return the accepted findings in a file as of today; none without a file."""
    from datetime import UTC, datetime

    from fedglass.verdict.outcomes import FindingBaseline, read_baseline

    return FindingBaseline() if path is None else read_baseline(path, datetime.now(UTC).date())


def baseline_as_json(baseline: FindingBaseline, outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Return the accepted findings, and what accepts nothing, as JSON; empty without a baseline."""
    if not baseline.entries:
        return {}
    accepted = [
        {"record": o.record.key, "finding": o.kind, "reason": e.reason, "expires": str(e.expires)}
        for o, e in baseline.accepted(outcomes)
    ]
    return {"accepted": accepted, "baseline_remarks": baseline.remarks(outcomes)}


def say_baseline(baseline: FindingBaseline, outcomes: Sequence[Outcome], output: Output) -> None:
    """Print each accepted finding, and each entry that accepts nothing."""
    for outcome, entry in baseline.accepted(outcomes):
        output.say(f"Accepted until {entry.expires} ({entry.reason}): {outcome.kind}, {outcome.sentence}")
    for remark in baseline.remarks(outcomes):
        output.note(remark)


def note_changed(directory: Path, output: Output, consequence: str) -> None:
    """Say which records or files were changed or deleted after they were written, if any were."""
    from fedglass.verdict.directory import RECORDS, RecordFile

    file = RecordFile(directory / RECORDS)
    changed, missing = len(file.changed()), file.missing()
    if changed:
        output.note(f"{directory}: {count(changed, 'record')} changed after the case was run: {consequence}.")
    if missing:
        output.note(
            f"{directory}: {count(len(missing), 'file')} of reconstructions or pictures deleted, such as {missing[0]}. "
            "The records count without them; delete a line of records.jsonl to run its case again."
        )


TITLES = {"report": "Report", "junit": "JUnit XML", "sarif": "SARIF", "markdown": "Markdown"}


@click.command(short_help="Write the report of an audit directory, also for CI systems.")
@click.argument("directory", type=PATH)
@click.option("-o", "--output", "page", type=PATH, help="File of the page.  [default: DIRECTORY/report.html]")
@click.option("--junit", type=PATH, metavar="FILE", help="Also write JUnit XML.")
@click.option("--sarif", type=PATH, metavar="FILE", help="Also write SARIF 2.1.0.")
@click.option("--markdown", type=PATH, metavar="FILE", help="Also write a summary in Markdown, without pictures.")
@click.option("--plan", type=PATH, metavar="FILE", help="Plan file in your repository, the place of SARIF's findings.")
@click.option("--without-pictures", is_flag=True, help="Leave all private images out of the page.")
@baseline_option
@output_options
def report(
    directory: Path,
    page: Path | None,
    junit: Path | None,
    sarif: Path | None,
    markdown: Path | None,
    plan: Path | None,
    without_pictures: bool,
    accepted: Path | None,
    output: Output,
) -> None:
    """Write report.html from the records in DIRECTORY: one self-contained page that works offline.

    An unfinished audit can be reported too; its page says that it is incomplete. JUnit XML has a test case for each
    record: a leak is a failure, a failed or inconclusive case is an error. SARIF has a rule for each kind of finding
    and of doubt. The Markdown is for the summary page of a CI job (docs/ci.md).

    \b
    Examples:
      fedglass report out
      fedglass report out -o /tmp/for-the-board.html --without-pictures
      fedglass report out --junit out/junit.xml --sarif out/fedglass.sarif --plan plan.toml
      fedglass report out --markdown out/summary.md --baseline accepted.toml
    """
    from fedglass.cli.progress import audit_as_json
    from fedglass.report.audit_page import audit_page
    from fedglass.report.page import write_page
    from fedglass.report.pipelines import write_junit, write_markdown, write_sarif
    from fedglass.verdict.directory import PLAN, REPORT
    from fedglass.verdict.outcomes import read_audit
    from fedglass.verdict.summary import by_attack

    baseline = baseline_of(accepted)
    note_changed(directory, output, "they do not count; run the audit again to replace them")
    audit = read_audit(directory, baseline)
    written = {"report": write_page(page or directory / REPORT, audit_page(audit, pictures=not without_pictures))}
    if junit is not None:
        written["junit"] = write_junit(audit, junit)
    if sarif is not None:
        written["sarif"] = write_sarif(audit, sarif, PLAN if plan is None else _in_repository(plan))
    if markdown is not None:
        written["markdown"] = write_markdown(audit, markdown)
    for name, path in written.items():
        output.say(f"{TITLES[name]}: {path}")
    say_baseline(baseline, audit.outcomes, output)
    if output.as_json:
        records, gate = audit.records, audit.gate
        planned = None if audit.missing is None else len(records) + audit.missing
        answer = audit_as_json(audit.verdict, records, planned, gate, by_attack(records, gate))
        answer |= baseline_as_json(baseline, audit.outcomes)
        output.answer({**answer, "paths": {name: str(path) for name, path in written.items()}})


def _in_repository(plan: Path) -> str:
    """Return a path relative to the current folder, with slashes; of a file elsewhere its name alone."""
    path = plan.resolve()
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else path.name
