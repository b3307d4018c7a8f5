"""`fedglass init`: write a plan to start from."""

from __future__ import annotations

from pathlib import Path

import click

from fedglass.cli.output import Output, answering
from fedglass.core.errors import UsageError


@click.command(short_help="Write a commented plan to start from.")
@click.argument("path", type=click.Path(path_type=Path), default="plan.toml")
@click.option("--force", is_flag=True, help="Overwrite a file that is there.")
@answering
def init(path: Path, force: bool, output: Output) -> None:
    """Write a commented plan to PATH (plan.toml by default), ready to be audited as it is.

    \b
    Example:
      fedglass init plan.toml && fedglass check plan.toml && fedglass audit plan.toml -o out
    """
    from fedglass.cli.template import PLAN

    try:
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as file:
            file.write(PLAN)
    except FileExistsError as error:
        raise UsageError(f"{path} is there already: choose another name, or --force to overwrite it.") from error
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}; choose another place.") from error
    output.say(f"Wrote {path}. Next: fedglass check {path}")
    output.answer({"path": str(path)})
