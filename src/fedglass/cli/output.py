"""How a command answers: in words, as JSON, or not at all."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from fedglass import __version__
from fedglass.cli.plain import plain

SCHEMA_VERSION = 1
"""Of the JSON on stdout; it grows when a field changes its meaning or goes, not when one is added."""


@dataclass(frozen=True)
class Output:
    """What the user asked to be told: `--json` and `--quiet`."""

    as_json: bool = False
    quiet: bool = False

    @property
    def in_words(self) -> bool:
        """Whether words belong on stdout."""
        return not (self.as_json or self.quiet)

    def say(self, text: str) -> None:
        """One line on stdout, where words belong there."""
        if self.in_words:
            click.echo(plain(text))

    def note(self, text: str) -> None:
        """One line on stderr, beside the answer."""
        if not self.quiet:
            click.echo(plain(text), err=True)

    def answer(self, value: Mapping[str, Any]) -> None:
        """The result as JSON, where that was asked for: all that a program finds on stdout."""
        if self.as_json:
            whole = {"schema_version": SCHEMA_VERSION, "fedglass": __version__, **value}
            click.echo(json.dumps(whole, allow_nan=False, indent=1))


def answering(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options `--json` and `-q`, which it receives as its argument `output`."""

    @click.option("--json", "as_json", is_flag=True, help="Print the result as JSON (docs/json.md), nothing else.")
    @click.option("-q", "--quiet", is_flag=True, help="Print errors alone, and what --json asks for.")
    @functools.wraps(command)
    def wrapped(*arguments: Any, as_json: bool, quiet: bool, **more: Any) -> None:
        command(*arguments, output=Output(as_json, quiet), **more)

    return wrapped
