"""Facts that recipes and parts declare about themselves, for the commands that choose, compose and list them.

A recipe that `fedglass audit FOLDER` runs by default opts in with a decorator. Its callback explains for which messages
the recipe would add nothing:

    @run_by_default(lambda observation: "" if observation.knows.examples == 1 else "it is for one example")
    @register("attacks", ...)
    def recipe(...): ...
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from fedglass.attack import forward, images, refine, solvers, terms
from fedglass.core.registry import Entry
from fedglass.core.text import cited, uncited
from fedglass.core.types import Observation

Recipe = TypeVar("Recipe", bound=Callable[..., Any])
WhyNotByDefault = Callable[[Observation], str]
"""Explains why an attack that can be run on a message would add nothing; empty where it may."""
Locate = Callable[[str, Path], str]
"""Resolves the value of an option, relative to the folder of the plan."""
DEFAULT, PATHS = "fedglass_default", "fedglass_paths"
"""Attributes of a recipe."""


def run_by_default(why_not: WhyNotByDefault) -> Callable[[Recipe], Recipe]:
    """Mark a recipe that runs by default, on every message that `why_not` has no reason against."""
    return mark_with(DEFAULT, why_not)


def why_not_by_default(recipe: Any) -> WhyNotByDefault | None:
    """Return the callback of `run_by_default`; None for a recipe that runs only if a plan names it."""
    why_not: WhyNotByDefault | None = getattr(recipe, DEFAULT, None)
    return why_not


def path_options(**locate: Locate) -> Callable[[Recipe], Recipe]:
    """Mark the options of a recipe that are paths, each with the function that resolves it."""
    return mark_with(PATHS, locate)


def locate_paths(recipe: Any, options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the options of a recipe with the paths among them resolved, relative to a folder."""
    paths: Mapping[str, Locate] = getattr(recipe, PATHS, {})
    return {name: paths[name](value, folder) if name in paths else value for name, value in options.items()}


def mark_with(attribute: str, value: object) -> Callable[[Recipe], Recipe]:
    """Return a decorator that sets an attribute of a function and leaves it as it is."""

    def mark(recipe: Recipe) -> Recipe:
        setattr(recipe, attribute, value)
        return recipe

    return mark


PACKAGES = {"forward": forward, "images": images, "terms": terms, "solvers": solvers, "refine": refine}
"""The packages that hold the parts that attacks are composed of, by kind."""


def inventory() -> list[Entry]:
    """Return every public part, by kind and module; its summary and papers come from its docstring.

    >>> next(part for part in inventory() if part.name == "Cosine").paper
    'Geiping et al., 2020, Eq. 4'
    """
    return [
        _entry(kind, part)
        for kind, package in PACKAGES.items()
        for module in pkgutil.iter_modules(package.__path__)
        for part in _public_parts(importlib.import_module(f"{package.__name__}.{module.name}"))
    ]


def _public_parts(module: ModuleType) -> list[type]:
    classes = [part for part in vars(module).values() if isinstance(part, type) and part.__module__ == module.__name__]
    public = [part for part in classes if is_dataclass(part) and not part.__name__.startswith("_")]
    return [part for part in public if not inspect.isabstract(part)]


def _entry(kind: str, part: type) -> Entry:
    text = inspect.getdoc(part) or ""
    return Entry(kind, part.__name__, part, uncited(text.partition("\n\n")[0]), "; ".join(cited(text)))
