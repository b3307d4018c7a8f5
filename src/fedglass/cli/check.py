"""`fedglass check` validates a plan and prints its threat model; `fedglass schema` prints the schema of plans."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedglass.cli.options import Output, announce, code_option, importable, output_options, plain
from fedglass.core.errors import UsageError

if TYPE_CHECKING:
    from fedglass.audit.target import Section
    from fedglass.plan.code import Code


@click.command(short_help="Validate a plan and print its threat model.")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--no-code", is_flag=True, help="Run none of the plan's own code, and check everything else.")
@code_option
@output_options
@click.pass_context
def check(ctx: click.Context, plan: Path, no_code: bool, folders: tuple[Path, ...], output: Output) -> None:
    """Validate PLAN with its data and its model, and print who attacks what.

    The command runs no attack and writes nothing. A plan that contains package.module:name runs that code. fedglass
    prints the name before it imports the code, and looks for it only in installed packages and the folders of --code.
    With --no-code it imports none of this code, and lists what it could not check.

    \b
    Examples:
      fedglass check plan.toml
      fedglass check plan.toml --code .
      fedglass check unknown-plan.toml --no-code
    """
    if no_code and folders:
        raise UsageError("--no-code runs no code, so --code DIR has no effect: leave out one of them.")
    ctx.with_resource(importable(folders))
    from fedglass.audit.audit import threat_model
    from fedglass.plan.code import code_of
    from fedglass.plan.compile import check_without_code, compile_plan
    from fedglass.plan.schema import read_plan

    (parsed, text), folder = read_plan(plan), plan.resolve().parent
    code = code_of(parsed)
    unchecked = code if no_code else ()
    if not no_code:
        announce(parsed, output)
    sections = check_without_code(parsed, folder) if unchecked else threat_model(compile_plan(parsed, folder, text))
    if output.in_words:
        _show(sections, unchecked, plan)
    output.answer(
        {
            "plan": str(plan),
            "sound": True,
            "complete": not unchecked,
            "code": list(map(asdict, code)),
            "not_checked": list(map(asdict, unchecked)),
            "sections": [{"title": title, "lines": list(lines)} for title, lines in sections],
        }
    )


def _show(sections: Sequence[Section], unchecked: Sequence[Code], plan: Path) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for title, lines in sections:
        console.print(Text(plain(title), style="bold"))
        for line in lines:
            console.print(Text(plain(f"  {line}")))
    if not unchecked:
        console.print(Text(plain(f"{plan} is sound."), style="green"))
        return
    names = ", ".join(map(str, unchecked))
    console.print(Text(plain(f"{plan} is sound, except for code that was not checked: {names}."), style="yellow"))


@click.command(short_help="Print the JSON schema of a plan, for editors.")
def schema() -> None:
    """Print the JSON schema of plan files: every key, its type, range and meaning.

    Editors with support for TOML schemas use it to complete and check a plan.

    \b
    Example:
      fedglass schema > plan.schema.json
    """
    from fedglass.plan.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=1))
