"""The defences by name, for plans and for the command line.

A defence is either a `Release` (what is done to the update as it leaves) or a `GradientFn` (how the gradient
inside a local step is taken).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedglass.core.errors import UsageError, unknown_name
from fedglass.fl.local import GradientFn
from fedglass.fl.release import Release


@dataclass(frozen=True)
class Defence:
    """A defence: how to make it, in one line, and where it comes from."""

    make: Callable[..., Release | GradientFn]
    summary: str
    paper: str


DEFENCES: Mapping[str, Defence] = {}


def defence(name: str, **options: object) -> Release | GradientFn:
    """The defence of that name with the given options."""
    if name not in DEFENCES:
        raise unknown_name("defence", name, DEFENCES)
    known = inspect.signature(DEFENCES[name].make).parameters
    for option in options:
        if option not in known:
            raise UsageError(f"Defence {name!r}: {unknown_name('option', option, known)}")
    return DEFENCES[name].make(**options)
