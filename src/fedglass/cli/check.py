"""`fedglass check`: validate a plan and say what it means."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Validate a plan and print its threat model in plain words.")
@click.argument("plan", type=click.Path(path_type=Path))
def check(plan: Path) -> None:
    """Validate PLAN, with its data and its model, and print in plain words who attacks what.

    Nothing is attacked and nothing is written.

    \b
    Example:
      fedglass check plan.toml
    """
    from rich.console import Console
    from rich.text import Text

    from fedglass.audit.threat import threat_model
    from fedglass.cli.audit import make_importable
    from fedglass.cli.plain import plain
    from fedglass.plan.compile import read_job

    make_importable(plan.resolve().parent)
    sections = threat_model(read_job(plan))
    console = Console(highlight=False)
    for section in sections:
        console.print(Text(plain(section.title), style="bold"))
        for line in section.lines:
            console.print(Text(plain(f"  {line}")))
    console.print(Text(plain(f"{plan} is sound."), style="green"))
