"""`fedglass init`: write a plan to start from."""

from __future__ import annotations

from pathlib import Path

import click

from fedglass.cli.code import announce_named, code_option, importable, model_option, public_option
from fedglass.cli.output import Output, answering
from fedglass.core.errors import UsageError


@click.command(short_help="Write a commented plan to start from.")
@click.argument("path", type=click.Path(path_type=Path), default="plan.toml")
@click.option("--force", is_flag=True, help="Overwrite a file that is there.")
@click.option("--from", "bundle", type=click.Path(path_type=Path), help="A recorded federation that the plan audits.")
@model_option
@public_option
@code_option
@answering
@click.pass_context
def init(
    ctx: click.Context,
    path: Path,
    force: bool,
    bundle: Path | None,
    model: str | None,
    public: str | None,
    folders: tuple[Path, ...],
    output: Output,
) -> None:
    """Write a commented plan to PATH (plan.toml by default), ready to be audited as it is.

    With --from the plan is that of a recorded federation: the attacks that its facts allow, and what is missing.

    \b
    Examples:
      fedglass init plan.toml && fedglass check plan.toml && fedglass audit plan.toml -o out
      fedglass init plan.toml --from recorded/
    """
    if bundle is None:
        if model is not None or public is not None or folders:
            raise UsageError("--model, --public and --code belong to a recorded federation: give --from with them.")
        from fedglass.cli.template import PLAN as text
    else:
        ctx.with_resource(importable(folders))
        text = _from_bundle(bundle, path, model, public, output)
    try:
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(f"{path} is there already: choose another name, or --force to overwrite it.") from error
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}; choose another place.") from error
    output.say(f"Wrote {path}. Next: fedglass check {path}")
    output.answer({"path": str(path)})


def _from_bundle(bundle: Path, plan: Path, model: str | None, public: str | None, output: Output) -> str:
    """The plan of a bundle, whose folder it names as seen from its own."""
    import os

    from fedglass.plan.from_bundle import draft

    announce_named(model, public, output)
    beside = os.path.relpath(bundle.resolve(), plan.resolve().parent)
    made = draft(bundle, path=beside, model=model, public=public)
    if made.problem:
        output.note(f"The plan is not ready yet: {made.problem}")
    return made.text
