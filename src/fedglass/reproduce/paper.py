"""A paper as a value. Each is a module of `papers`, named as its tables begin, whose PAPER says how rows are run.

A paper with much to re-create may have several: `malicious_theory` has tables of `malicious` too.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedglass.attack.attack import Attack
from fedglass.core.errors import UsageError
from fedglass.recipes.catalogue import recipe
from fedglass.reproduce import papers
from fedglass.reproduce.experiment import Experiment
from fedglass.reproduce.request import Request
from fedglass.reproduce.tables import Row, Setting, Table

if TYPE_CHECKING:
    from fedglass.ledger.records import Record
    from fedglass.reproduce.cases import Cell


@dataclass(frozen=True)
class Method:
    """A method of a table: the recipe that plays it."""

    recipe: str
    title: str = ""
    """Where it can be run beside the methods of any table; none where only the tables that print it have it."""
    options: Mapping[str, object] = field(default_factory=dict)

    def attack(self, request: Request, **options: object) -> Attack:
        """The recipe's attack, with as many iterations as were asked for."""
        asked = {} if request.iterations is None else {"iterations": request.iterations}
        found = recipe(self.recipe, **{**self.options, **options, **asked})
        if not isinstance(found, Attack):
            raise UsageError(f"The recipe {self.recipe!r} tries several attacks: a table takes one.")
        return found


@dataclass(frozen=True)
class Yardstick:
    """What stands beside the methods of a table without being an attack, such as a blind guess."""

    title: str


@dataclass(frozen=True, eq=False)
class Recreation:
    """How a table is run."""

    experiment: Callable[[Row, str, Request], Experiment]
    """From a row, a method and what was asked."""
    beside: Mapping[str, Method | Yardstick] = field(default_factory=dict)
    """Methods that the table does not print but can be compared with."""


@dataclass(frozen=True)
class Comparison:
    """A table that is compared with what is built, without a run; each line ends with what is printed and built."""

    heads: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Trained:
    """A trained network that a setting starts from."""

    name: str
    """On the command line."""
    needed: bool = True
    """Whether an untrained network can not stand in for it."""


def untrained(setting: Setting) -> Trained | None:
    """Of papers that are given no trained networks."""
    return None


@dataclass(frozen=True, eq=False)
class Paper:
    """All that is one paper's own."""

    tables: Mapping[str, Recreation]
    compared: Mapping[str, Callable[[Table], Comparison]] = field(default_factory=dict)
    network: Callable[[Setting], Trained | None] = untrained
    sides: Sequence[int] = ()
    """Sizes that its pictures can be brought to, where they can."""
    restarts: bool = False
    """Whether its attacks are restarted."""
    derived: Mapping[str, Callable[[Cell, Mapping[str, Record]], float | None]] = field(default_factory=dict)
    """Measures that are taken over all runs of a cell, by their names in the tables."""
    remarks: Callable[[Table, Sequence[Cell]], list[str]] | None = None
    """What the reader must know of its runs, in place of what is said of every paper's iterations."""


def paper_of(table: Table) -> Paper:
    """The paper that a table is in, by the beginning of its name.

    >>> from fedglass.reproduce.tables import table
    >>> "dlfa-table1" in paper_of(table("dlfa-table1")).tables
    True
    """
    found = _modules(table.name.partition("-")[0])
    return next(paper for paper in found if table.name in (*paper.tables, *paper.compared))


@functools.cache
def _modules(name: str) -> tuple[Paper, ...]:
    """Those of one paper."""
    known = sorted(module.name for module in pkgutil.iter_modules(papers.__path__))
    own = [module for module in known if module == name or module.startswith(f"{name}_")]
    return tuple(importlib.import_module(f"{papers.__name__}.{module}").PAPER for module in own)
