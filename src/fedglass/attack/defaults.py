"""Attacks that are played on a recording of which nobody says by what.

A recipe says of itself that it is one, and of which messages it would tell no more than others do:

    @unasked(lambda seen: "" if seen.knows.examples == 1 else "it is for one example")
    @register("attacks", ...)
    def recipe(...): ...
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from fedglass.attack import forward, images, refine, solvers, terms
from fedglass.core.text import cited, uncited
from fedglass.core.types import Observation

Recipe = TypeVar("Recipe", bound=Callable[..., Any])
WhyNotByDefault = Callable[[Observation], str]
"""Why an attack that could be played on a message tells no more than another; empty where it may."""
PLACE = "fedglass_unasked"


def run_by_default(why_not: WhyNotByDefault) -> Callable[[Recipe], Recipe]:
    """Play this recipe without being asked, wherever there is no reason against it."""

    def note(recipe: Recipe) -> Recipe:
        setattr(recipe, PLACE, why_not)
        return recipe

    return note


def why_not_by_default(recipe: Any) -> WhyNotByDefault | None:
    """What a recipe says against itself; None where it is only played if somebody asks."""
    found: WhyNotByDefault | None = getattr(recipe, PLACE, None)
    return found


# The parts that attacks are composed of, found by looking at the packages that hold them.


PACKAGES = {"forward": forward, "images": images, "terms": terms, "solvers": solvers, "refine": refine}


class PartSummary(NamedTuple):
    """One part in words."""

    name: str
    kind: str
    summary: str
    papers: tuple[str, ...]
    module: str


def inventory() -> list[PartSummary]:
    """Every public part, by kind and module; what it is and whom it cites, from its own docstring.

    >>> next(part for part in inventory() if part.name == "Cosine").papers
    ('Geiping et al., 2020, Eq. 4',)
    """
    return [
        _listed(kind, part)
        for kind, package in PACKAGES.items()
        for module in _modules(package)
        for part in _public(module)
    ]


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(package.__path__):
        yield importlib.import_module(f"{package.__name__}.{found.name}")


def _public(module: ModuleType) -> list[type]:
    own = [part for part in vars(module).values() if isinstance(part, type) and part.__module__ == module.__name__]
    named = [part for part in own if is_dataclass(part) and not part.__name__.startswith("_")]
    return [part for part in named if not inspect.isabstract(part)]


def _listed(kind: str, part: type) -> PartSummary:
    words = inspect.getdoc(part) or ""
    return PartSummary(part.__name__, kind, uncited(words.partition("\n\n")[0]), cited(words), part.__module__)
