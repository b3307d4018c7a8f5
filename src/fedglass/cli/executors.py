"""The options by which a command is told where its cases run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from fedglass.core.environment import cores
from fedglass.core.errors import UsageError
from fedglass.core.registry import factory, make, parameters, takes

if TYPE_CHECKING:
    from fedglass.audit.executors.executor import Executor

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
        from fedglass.audit.executors.fork_server import warm

        if self.name == PROCESSES and self.count(device not in ("auto", "cpu")) > 1:
            warm("fedglass.audit.play")

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
