"""`fedglass report`: write the page of an audit again."""

from __future__ import annotations

from pathlib import Path

import click

from fedglass.cli.plain import plain


@click.command(short_help="Write the report of an audit directory again.")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The page.  [default: DIRECTORY/report.html]")
def report(directory: Path, output: Path | None) -> None:
    """Write report.html from the records in DIRECTORY: one self-contained page that works offline.

    An audit that has not finished can be reported too; its page says so.

    \b
    Examples:
      fedglass report out
      fedglass report out -o /tmp/for-the-board.html
    """
    from fedglass.report.html import write_report

    click.echo(plain(f"Report: {write_report(directory, output)}"))
