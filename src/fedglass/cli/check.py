"""`fedglass check`: validate a plan and say what it means."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedglass.cli.options import Output, announce, answering, code_option, importable
from fedglass.core.errors import UsageError

if TYPE_CHECKING:
    from fedglass.audit.target import Section
    from fedglass.plan.code import Code
    from fedglass.plan.schema import Plan


@click.command(short_help="Validate a plan and print its threat model in plain words.")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--no-code", is_flag=True, help="Run no code that the plan names; check all that needs none.")
@code_option
@answering
@click.pass_context
def check(ctx: click.Context, plan: Path, no_code: bool, folders: tuple[Path, ...], output: Output) -> None:
    """Validate PLAN, with its data and its model, and print in plain words who attacks what.

    Nothing is attacked and nothing is written. A plan that names package.module:name runs that code: it is named
    before it is imported, and found in installed packages and the folders of --code alone. With --no-code nothing of
    it is imported, and what could not be checked without it is named.

    \b
    Examples:
      fedglass check plan.toml
      fedglass check plan.toml --code .
      fedglass check plan-of-a-stranger.toml --no-code
    """
    if no_code and folders:
        raise UsageError("--no-code runs no code, so that --code DIR is of no use: leave out one of them.")
    ctx.with_resource(importable(folders))
    from fedglass.plan.schema import read_plan

    parsed, text = read_plan(plan)
    left: Sequence[Code]
    if no_code:
        sections, left = _without_code(parsed, plan.resolve().parent)
    else:
        announce(parsed, output)
        sections, left = _whole(parsed, plan.resolve().parent, text), ()
    if output.in_words:
        _show(sections, left, plan)
    output.answer(_answer(parsed, plan, sections, left))


def _whole(plan: Plan, folder: Path, text: str) -> Sequence[Section]:
    from fedglass.audit.audit import threat_model
    from fedglass.plan.compile import compile_plan

    return threat_model(compile_plan(plan, folder, text))


def _without_code(plan: Plan, folder: Path) -> tuple[Sequence[Section], Sequence[Code]]:
    from fedglass.plan.code import code_of
    from fedglass.plan.without_code import check_without_code

    if not code_of(plan):
        return _whole(plan, folder, ""), ()
    checked = check_without_code(plan, folder)
    return checked.sections, checked.left


def _answer(plan: Plan, path: Path, sections: Sequence[Section], left: Sequence[Code]) -> dict[str, object]:
    from fedglass.plan.code import code_of

    def told(codes: Sequence[Code]) -> list[dict[str, str]]:
        return [{"kind": code.kind, "name": code.name, "origin": code.origin} for code in codes]

    return {
        "plan": str(path),
        "sound": True,
        "complete": not left,
        "code": told(code_of(plan)),
        "not_checked": told(left),
        "sections": [{"title": section.title, "lines": list(section.lines)} for section in sections],
    }


def _show(sections: Sequence[Section], left: Sequence[Code], plan: Path) -> None:
    from rich.console import Console
    from rich.text import Text

    from fedglass.cli.options import plain

    console = Console(highlight=False)
    for section in sections:
        console.print(Text(plain(section.title), style="bold"))
        for line in section.lines:
            console.print(Text(plain(f"  {line}")))
    if not left:
        console.print(Text(plain(f"{plan} is sound."), style="green"))
        return
    said = f"{plan} is sound as far as can be told without its code; not looked at: {', '.join(map(str, left))}."
    console.print(Text(plain(said), style="yellow"))


# `fedglass schema`: the JSON schema of a plan.


@click.command(short_help="Print the JSON schema of a plan, for editors.")
def schema() -> None:
    """Print the JSON schema of plan files: every key, its type, range and meaning.

    Editors that know TOML schemas complete and check a plan with it as it is written.

    \b
    Example:
      fedglass schema > plan.schema.json
    """
    from fedglass.plan.reference import json_schema

    click.echo(json.dumps(json_schema(), indent=1))
