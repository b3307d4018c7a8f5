"""The options that commands share: output as text or JSON, code of a plan, and executors."""

from __future__ import annotations

import functools
import json
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedglass import __version__
from fedglass.core.errors import UsageError
from fedglass.core.registry import factory, make, parameters, takes
from fedglass.execution.fork_server import cores

if TYPE_CHECKING:
    from fedglass.execution.executor import Executor
    from fedglass.plan.schema import Plan


def plain(text: str) -> str:
    """Return the text on one line, without characters that control the terminal.

    >>> plain("a\\nb \\x1b[31mred")
    'a b ?[31mred'
    """
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def width() -> int:
    """Return the width of text on stdout: that of the terminal, within reason; 100 in a pipe."""
    return max(40, min(shutil.get_terminal_size((100, 24)).columns, 120))


SCHEMA_VERSION = 1
"""Version of the JSON on stdout; it grows when a field changes its meaning or is removed, not when one is added."""


@dataclass(frozen=True)
class Output:
    """The form of a command's output: text, `--json` or `--quiet`."""

    as_json: bool = False
    quiet: bool = False

    @property
    def in_words(self) -> bool:
        """Return whether the command prints text on stdout."""
        return not (self.as_json or self.quiet)

    def say(self, text: str) -> None:
        """Print one line on stdout, unless JSON or silence was requested."""
        if self.in_words:
            click.echo(plain(text))

    def note(self, text: str) -> None:
        """Print one line on stderr, unless silence was requested."""
        if not self.quiet:
            click.echo(plain(text), err=True)

    def answer(self, value: Mapping[str, Any]) -> None:
        """Print the result as JSON if that was requested; nothing else is on stdout then."""
        if self.as_json:
            document = {"schema_version": SCHEMA_VERSION, "fedglass": __version__, **value}
            click.echo(json.dumps(document, allow_nan=False, indent=1))


def output_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options `--json` and `-q`, which it receives as its argument `output`."""

    @click.option("--json", "as_json", is_flag=True, help="Print only the result, as JSON (docs/json.md).")
    @click.option("-q", "--quiet", is_flag=True, help="Print only errors, and the result if --json is given.")
    @functools.wraps(command)
    def wrapped(*arguments: Any, as_json: bool, quiet: bool, **more: Any) -> None:
        command(*arguments, output=Output(as_json, quiet), **more)

    return wrapped


PATH = click.Path(path_type=Path)
COUNT = click.IntRange(1)

code_option = click.option(
    "--code",
    "folders",
    metavar="DIR",
    multiple=True,
    type=PATH,
    help="Folder with modules that the plan may use, in addition to installed packages; may be repeated.",
)

model_option = click.option(
    "--model",
    help="Model of a recorded federation. Your own code, package.module:factory, runs only if it is given here.",
)


def device_option(default: str = "auto") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the option `--device`, which `execution.machine.device_named` reads."""
    return click.option(
        "--device",
        metavar="NAME",
        default=default,
        show_default=True,
        help="Where networks are computed: auto, cpu, cuda, cuda:N (one of several) or mps.",
    )


public_option = click.option(
    "--public",
    metavar="DATA",
    help="Public examples that resemble the clients': a data set, a folder of classes, or an npz file. The candidate "
    "game needs them.",
)


@contextmanager
def importable(folders: Sequence[Path]) -> Iterator[None]:
    """Make modules in these folders importable inside the context, also for workers that are started there."""
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"--code: no such folder: {folder}.")
    before = list(sys.path)
    # Last, so that no folder hides a module of Python or of an installed package.
    sys.path += [path for path in map(str, (f.resolve() for f in folders)) if path not in before]
    try:
        yield
    finally:
        sys.path[:] = before


def code_arguments(folders: Sequence[Path]) -> str:
    """Return the arguments that name these folders in another command.

    >>> code_arguments([Path("."), Path("my code")])
    " --code . --code 'my code'"
    """
    return "".join(f" --code {shlex.quote(str(folder))}" for folder in folders)


def announce(plan: Plan, output: Output) -> None:
    """Print which code outside fedglass the plan is about to run."""
    from fedglass.plan.options import code_of

    if codes := code_of(plan):
        _warn_of_code("This plan", ", ".join(map(str, codes)), output)


def announce_named(model: str | None, public: str | None, output: Output) -> None:
    """Print that a model or a data set is code outside fedglass, before it runs."""
    from fedglass.plan.options import code_named

    for kind, name in (("models", model), ("datasets", public)):
        for code in () if name is None else code_named(kind, name):
            _warn_of_code("This", str(code), output)


def _warn_of_code(who: str, code: str, output: Output) -> None:
    output.note(f"{who} runs code outside fedglass: {code}. If it is not yours, read that code first.")


PROCESSES = "processes"
CASES_PER_GPU = 4
"""Cases that share a GPU by default. Most are too small to fill one, and each takes some hundred MB for its process."""
KIND = "executors"


@dataclass(frozen=True)
class ExecutorOptions:
    """The executor that runs the cases, and its options."""

    name: str = PROCESSES
    workers: int | None = None
    options: Sequence[str] = ()

    def count(self, shared: bool = False) -> int:
        """Return how many cases run at a time on this machine; `shared` means that they share one accelerator."""
        return self.workers or (min(cores(), CASES_PER_GPU) if shared else cores())

    def warm_up(self, device: str) -> None:
        """Start the workers' imports in parallel with this process; call it before anything imports torch."""
        from fedglass.execution.fork_server import start_fork_server

        if self.name == PROCESSES and self.count(device not in ("auto", "cpu")) > 1:
            start_fork_server("fedglass.audit.play")

    def executor(self, shared: bool = False) -> Executor:
        """Return the executor; `shared` means that the cases need an accelerator."""
        create, texts = factory(KIND, self.name), dict[str, str]()
        for text in self.options:
            name, equals, value = text.partition("=")
            if not equals or not name:
                raise UsageError(f"--executor-option must be KEY=VALUE, got {text!r}.")
            texts[name.strip()] = value.strip()
        if self.name == PROCESSES:
            texts = {**texts, "workers": str(self.count(shared))}
        elif self.workers is not None:
            texts = {**texts, "workers": str(self.workers)}
        if shared and takes(create, "gpus"):
            divisible = isinstance(parameters(create)["gpus"].default, float)
            texts = {"gpus": str(1 / CASES_PER_GPU if divisible else 1), **texts}
        executor: Executor = make(KIND, self.name, **_typed(create, texts))
        return executor


def executor_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of its executor, which it receives as its argument `execution`."""

    @click.option(
        "--workers",
        type=COUNT,
        help="Number of cases that run at a time.  [default: one per core, 4 on a GPU; ray: all; slurm: 16]",
    )
    @click.option(
        "--executor",
        default=PROCESSES,
        show_default=True,
        metavar="NAME",
        help="Where the cases run: processes (of this machine), ray or slurm (docs/clusters.md).",
    )
    @click.option(
        "-x",
        "--executor-option",
        "options",
        multiple=True,
        metavar="KEY=VALUE",
        help="Option of the executor, such as address=10.0.0.5:6379 (ray) or partition=long (slurm); may be repeated.",
    )
    @functools.wraps(command)
    def wrapped(*arguments: Any, workers: int | None, executor: str, options: tuple[str, ...], **more: Any) -> None:
        command(*arguments, execution=ExecutorOptions(executor, workers, options), **more)

    return wrapped


def _typed(create: Callable[..., Any], texts: Mapping[str, str]) -> dict[str, object]:
    """Return the options as values of the types of their defaults; unknown options stay texts.

    >>> _typed(lambda minutes=60, partition="": None, {"minutes": "5", "partition": "7"})
    {'minutes': 5, 'partition': '7'}
    """
    accepted, values = parameters(create), dict[str, object]()
    for name, text in texts.items():
        default = accepted[name].default if name in accepted else ""
        kind = int if name == "workers" else type(default) if isinstance(default, int | float) else str
        try:
            values[name] = kind(text)
        except ValueError as error:
            raise UsageError(f"--executor-option {name} must be a number, got {text!r}.") from error
    return values
