"""`fedglass report` writes the page of an audit, and reports for pipelines."""

from __future__ import annotations

from pathlib import Path

import click

from fedglass.cli.options import Output, output_options

TITLES = {"report": "Report", "junit": "JUnit XML", "sarif": "SARIF"}


@click.command(short_help="Write the report of an audit directory, also for CI systems.")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    "page",
    type=click.Path(path_type=Path),
    help="File of the page.  [default: DIRECTORY/report.html]",
)
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Also write JUnit XML.")
@click.option("--sarif", type=click.Path(path_type=Path), metavar="FILE", help="Also write SARIF 2.1.0.")
@output_options
def report(directory: Path, page: Path | None, junit: Path | None, sarif: Path | None, output: Output) -> None:
    """Write report.html from the records in DIRECTORY: one self-contained page that works offline.

    An unfinished audit can be reported too; its page says that it is incomplete. JUnit XML has a test case for each
    record: a leak is a failure, a failed case is an error, and an inconclusive case is skipped. SARIF has a rule for a
    leak and one for each kind of doubt.

    \b
    Examples:
      fedglass report out
      fedglass report out -o /tmp/for-the-board.html
      fedglass report out --junit out/junit.xml --sarif out/fedglass.sarif
    """
    from fedglass.report.html import write_report
    from fedglass.report.pipelines import write_junit, write_sarif

    written = {"report": write_report(directory, page)}
    if junit is not None:
        written["junit"] = write_junit(directory, junit)
    if sarif is not None:
        written["sarif"] = write_sarif(directory, sarif)
    for name, path in written.items():
        output.say(f"{TITLES[name]}: {path}")
    if output.as_json:
        output.answer({**_verdict(directory), "paths": {name: str(path) for name, path in written.items()}})


def _verdict(directory: Path) -> dict[str, object]:
    from fedglass.cli.progress import audit_as_json
    from fedglass.report.html import judged_by, records_of
    from fedglass.verdict.judge import judge
    from fedglass.verdict.summary import by_attack

    records = records_of(directory)
    gate, missing, _ = judged_by(directory, len(records))
    planned = None if missing is None else len(records) + missing
    return audit_as_json(judge(records, gate, missing), records, planned, gate, by_attack(records, gate))
