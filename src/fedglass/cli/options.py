"""Text from files on its way to a terminal."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from fedglass import __version__
from fedglass.core.environment import cores
from fedglass.core.errors import UsageError
from fedglass.core.registry import factory, make, parameters, takes

if TYPE_CHECKING:
    from rich.console import Console

    from fedglass.execution.executor import Executor
    from fedglass.plan.schema import Plan


def plain(text: str) -> str:
    """The text on one line, without characters that would command the terminal.

    >>> plain("a\\nb \\x1b[31mred")
    'a b ?[31mred'
    """
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


# How a command answers: in words, as JSON, or not at all.


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


# The code that a plan runs: where it may come from, and that the user is told before it runs.


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


# The options by which a command is told where its cases run.


PROCESSES = "processes"
KIND = "executors"


@dataclass(frozen=True)
class Hands:
    """Who plays the cases."""

    name: str = PROCESSES
    workers: int | None = None
    options: Sequence[str] = ()

    def count(self, shared: bool = False) -> int:
        """How many cases run at a time on this machine. Processes that share an accelerator get in each other's way."""
        return self.workers or (1 if shared else cores())

    def warm_up(self, device: str) -> None:
        """Let the workers' imports run beside those of this process: called before anything that imports torch."""
        from fedglass.execution.fork_server import start_fork_server

        if self.name == PROCESSES and self.count(device not in ("auto", "cpu")) > 1:
            start_fork_server("fedglass.audit.play")

    def executor(self, shared: bool = False) -> Executor:
        """The executor of that name; `shared` says that the cases need an accelerator."""
        made, given = factory(KIND, self.name), dict(_pair(text) for text in self.options)
        if self.name == PROCESSES:
            given = {**given, "workers": str(self.count(shared))}
        elif self.workers is not None:
            given = {**given, "workers": str(self.workers)}
        if shared and takes(made, "gpus"):
            given = {"gpus": "1", **given}
        executor: Executor = make(KIND, self.name, **_typed(made, given))
        return executor


def executing(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say where its cases run, which it receives as its argument `hands`."""

    @click.option(
        "--workers",
        type=click.IntRange(1),
        help="Cases at a time.  [default: one per core; with ray all of the cluster, with slurm 16]",
    )
    @click.option(
        "--executor",
        default=PROCESSES,
        show_default=True,
        metavar="NAME",
        help="Where they run: processes of this machine, ray or slurm (docs/clusters.md).",
    )
    @click.option(
        "-x",
        "--executor-option",
        "options",
        multiple=True,
        metavar="KEY=VALUE",
        help="Such as address=10.0.0.5:6379 with ray, partition=long with slurm; may be repeated.",
    )
    @functools.wraps(command)
    def wrapped(*arguments: Any, workers: int | None, executor: str, options: tuple[str, ...], **more: Any) -> None:
        command(*arguments, hands=Hands(executor, workers, options), **more)

    return wrapped


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise UsageError(f"--executor-option must be KEY=VALUE, got {text!r}.")
    return name.strip(), value.strip()


def _typed(made: Callable[..., Any], given: Mapping[str, str]) -> dict[str, object]:
    """The options as values of the types of their defaults; an option that there is not is left to who makes it.

    >>> _typed(lambda minutes=60, partition="": None, {"minutes": "5", "partition": "7"})
    {'minutes': 5, 'partition': '7'}
    """
    known, found = parameters(made), dict[str, object]()
    for name, text in given.items():
        default = known[name].default if name in known else ""
        kind = int if name == "workers" else type(default) if isinstance(default, int | float) else str
        try:
            found[name] = kind(text)
        except ValueError as error:
            raise UsageError(f"--executor-option {name} must be a number, got {text!r}.") from error
    return found


class Bars:
    """Spinner, words cut to the width that is left, bar, elapsed and remaining time; on stderr, gone when done."""

    def __init__(self, console: Console | None = None) -> None:
        # Imported here: `fedglass --help` imports this module and shows no bar.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.table import Column

        self.console = console or Console(stderr=True, highlight=False)
        words = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        text = TextColumn("{task.description}", markup=False, table_column=words)
        parts = (SpinnerColumn(), text, BarColumn(bar_width=24), TimeElapsedColumn(), TimeRemainingColumn())
        self.bars = Progress(*parts, console=self.console, transient=True, expand=True)

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()
