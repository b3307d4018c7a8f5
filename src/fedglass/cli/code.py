"""The code that a plan runs: where it may come from, and that the user is told before it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedglass.cli.output import Output
from fedglass.core.errors import UsageError

if TYPE_CHECKING:
    from fedglass.plan.schema import Plan

code_option = click.option(
    "--code",
    "folders",
    metavar="DIR",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A folder whose modules the plan may name, beside those of installed packages; may be repeated.",
)

model_option = click.option(
    "--model",
    help="The model that a bundle was recorded from; one that is code of others runs only if it is named here.",
)

public_option = click.option(
    "--public",
    metavar="DATA",
    help="Examples like the clients' that no client has: a data set, a folder of classes, or an npz file. By them the "
    "audit tells whether a message names its records.",
)


@contextmanager
def importable(folders: Sequence[Path]) -> Iterator[None]:
    """Inside, modules in these folders are found, after all others; by workers that are started inside too."""
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"--code: no such folder: {folder}.")
    before = list(sys.path)
    # Last, so that nothing in them takes the place of a module of Python or of an installed package.
    sys.path += [path for path in map(str, (f.resolve() for f in folders)) if path not in before]
    try:
        yield
    finally:
        sys.path[:] = before


def announce(plan: Plan, output: Output) -> None:
    """Say which code of others the plan is about to run."""
    from fedglass.plan.code import code_of

    found = ", ".join(map(str, code_of(plan)))
    if found:
        output.note(f"This plan runs code of its own: {found}. If it is not yours, read that code first.")


def announce_named(model: str | None, public: str | None, output: Output) -> None:
    """Say that a model or a data set is code of others, before it runs."""
    from fedglass.plan.code import code_named

    named = {"models": model, "datasets": public}
    for code in (code for kind, name in named.items() if name is not None for code in code_named(kind, name)):
        output.note(f"This runs code of others: {code}. If it is not yours, read that code first.")
