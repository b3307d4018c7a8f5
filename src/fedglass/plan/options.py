"""The parts that a plan names, made with checked options: the names, types and ranges of options are validated.

Code outside fedglass that a plan runs is listed before any of it is imported. Also here: the public data of the
adversary, and views that are attacked together.
"""

from __future__ import annotations

import functools
import inspect
import math
import typing
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from fedglass.attack.best_of import AnyAttack
from fedglass.attack.malicious_server import CraftedModel, MaliciousServer, PublicSample
from fedglass.audit.public_data import Public
from fedglass.core.errors import DataError, UsageError, is_dotted, is_importable, refused, unknown_name
from fedglass.core.registry import BUILT_IN, KINDS, factory, find, make, names, origin_of, parameters
from fedglass.core.text import values_by_key
from fedglass.core.types import Whitening
from fedglass.data.catalogue import load, located
from fedglass.federation.views import Together, View
from fedglass.fl.release import Protection
from fedglass.plan.schema import AdversaryTable
from fedglass.plan.tables import PartTable

PLAIN = (int, float, bool, str)
MALICIOUS = "malicious_server"
"""The view of a server that crafts the model that it sends."""
Range = tuple[Callable[[float], bool], str]
ANY: Range = (lambda x: True), "a finite number"
NOT_NEGATIVE: Range = (lambda x: x >= 0), "a finite number of at least 0"
AT_LEAST_ONE = (lambda x: x >= 1), "at least 1"
ABOVE_ZERO = (lambda x: x > 0), "a finite number above 0"
SHARE = (lambda x: 0 <= x < 1), "in [0, 1), a share and not a percentage"
RANGES: Mapping[str, Range] = {
    **dict.fromkeys(("iterations", "restarts"), AT_LEAST_ONE),
    **dict.fromkeys(("rate", "width", "norm", "clip"), ABOVE_ZERO),
    **dict.fromkeys(("share", "pruned"), SHARE),
    **dict.fromkeys(("ignore_index", "percentile", "gamma"), ANY),
}
"""Name of an option -> its range; all other options are not negative. Parts check further conditions themselves."""
MOST: Mapping[str, int] = {
    **dict.fromkeys(("iterations", "warm_up", "finish"), 10_000_000),
    **dict.fromkeys(("restarts", "width", "bins", "units"), 10_000),
}
"""Name of an option -> its largest value, far beyond any real use."""
LARGEST = 1_000_000_000
"""The largest number of any other option."""


def checked_options(where: str, make: Callable[..., object], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with the types that `make` takes, or refuse them.

    >>> def recipe(iterations: int = 10, tv: float = 0.1): ...
    >>> checked_options("attack 'x'", recipe, {"tv": 1})
    {'tv': 1.0}
    >>> checked_options("attack 'x'", recipe, {"iterations": "many"})
    Traceback (most recent call last):
    fedglass.core.errors.UsageError: attack 'x': iterations must be of type int, got 'many': remove the quotes.
    """
    hints = _hints(make)
    plain = {name: hints[name] for name in parameters(make) if _is_plain(hints.get(name))}
    for name in options:
        if name not in plain:
            raise UsageError(f"{where}: {unknown_name('option', name, plain)}")
    checked = {name: _checked(where, name, plain[name], value) for name, value in options.items()}
    function = make.func if isinstance(make, functools.partial) else make
    is_built_in = str(getattr(function, "__module__", "")).startswith("fedglass.")
    otherwise = NOT_NEGATIVE if is_built_in else ANY  # the ranges of other code are unknown
    for name, value in checked.items():
        _check_range(where, name, value, otherwise)
    return checked


def _hints(make: Callable[..., object]) -> dict[str, Any]:
    """Return the types of a factory's options; it may be a function, a class, a callable value or a partial."""
    if isinstance(make, functools.partial):
        return _hints(make.func)
    function = make if inspect.isroutine(make) or inspect.isclass(make) else type(make).__call__
    with refused(lambda reason: UsageError(f"The types of the options of {make!r} cannot be read: {reason}.")):
        return typing.get_type_hints(function)


def _is_plain(hint: Any) -> bool:
    """Return whether a plan can contain a value of this type."""
    if hint in PLAIN or hint is type(None) or hint is Ellipsis:
        return True
    parts = typing.get_args(hint)
    return bool(parts) and all(map(_is_plain, parts))


def _checked(where: str, name: str, hint: Any, value: Any) -> Any:
    try:
        # Strict, since a type has one spelling in TOML: "5" is not 5, and true is not 1.
        return TypeAdapter(hint).validate_python(_as_tuples(value) if _takes_tuples(hint) else value, strict=True)
    except ValidationError as error:
        kind = hint.__name__ if isinstance(hint, type) else str(hint)
        advice = ": remove the quotes" if isinstance(value, str) else ""
        raise UsageError(f"{where}: {name} must be of type {kind}, got {value!r}{advice}.") from error


def _check_range(where: str, name: str, value: Any, otherwise: Range) -> None:
    allowed, range_text = RANGES.get(name, otherwise)
    most = MOST.get(name, LARGEST)
    for number in _numbers(value):
        if not (math.isfinite(number) and allowed(number)):
            raise UsageError(f"{where}: {name} must be {range_text}, got {value!r}.")
        if number > most:
            raise UsageError(f"{where}: {name} must be at most {most:,}, got {value!r}.")


def _takes_tuples(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple or any(map(_takes_tuples, typing.get_args(hint)))


def _as_tuples(value: Any) -> Any:
    """Return tuples for lists, since TOML has no tuples."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _numbers(value: Any) -> Iterator[float]:
    """Yield all numbers in a nested value."""
    if isinstance(value, tuple | list):
        for inner in value:
            yield from _numbers(inner)
    elif isinstance(value, int | float):
        yield value


def defaults_in_words(make: Callable[..., object]) -> str:
    """Return the options of a recipe or a defence that a plan can set, with their defaults.

    >>> def recipe(iterations: int = 10, tv: float = 0.1): ...
    >>> defaults_in_words(recipe)
    'iterations=10, tv=0.1'
    """
    hints = _hints(make)
    shown = [
        name if parameter.default is inspect.Parameter.empty else f"{name}={parameter.default!r}"
        for name, parameter in parameters(make).items()
        if _is_plain(hints.get(name))
    ]
    return ", ".join(shown)


def made(kind: str, table: PartTable) -> Any:
    """Return the part that a table names, with the table's options."""
    options = checked_options(find(kind, table.name).title, factory(kind, table.name), table.options)
    return make(kind, table.name, **options)


def defences_of(tables: Sequence[PartTable]) -> Protection:
    """Return the defences as at most one gradient function, and the releases one after another."""
    return Protection.of([made("defences", table) for table in tables])


def public_of(adversary: AdversaryTable, shape: tuple[int, int, int], folder: Path) -> Public | None:
    """Return the data of `adversary.public` in the shape of the private images; None if it is left out."""
    if adversary.public is None:
        return None
    channels, height, width = shape
    data = load(located(adversary.public, folder))
    if data.shape[0] != channels:
        raise DataError(
            f"adversary.public: expected images of {channels} channel(s) like the private ones, got {data.shape[0]} "
            f"in {data.name}: choose another set, or leave it out."
        )
    if data.shape != shape:
        data = data.resized((height, width))
    return Public.given(data.images, data.labels)


def crafted_model_of(attacks: Mapping[str, AnyAttack], view: str) -> CraftedModel | None:
    """Return the model that a malicious server sends; None for an honest server."""
    crafted = {name: attack.sends for name, attack in attacks.items() if isinstance(attack, MaliciousServer)}
    if view != MALICIOUS:
        if crafted:
            raise UsageError(
                f"attack {next(iter(crafted))!r} crafts the model that clients train: simulate a federation, with "
                f'adversary.view = "{MALICIOUS}".'
            )
        return None
    if len(set(crafted.values())) != 1:
        named = f"{', '.join(crafted)} craft different models" if crafted else "none of the attacks crafts a model"
        raise UsageError(
            f'adversary.view = "{MALICIOUS}" needs one crafted model, but {named}: name imprint, trap_weights or '
            "fishing, each in a plan of its own."
        )
    return next(iter(crafted.values()))


def public_sample(public: Public | None, whitening: Whitening) -> PublicSample:
    """Return the public images from which a malicious server takes its numbers."""
    if public is None or public.examples is None or len(public.examples.labels) < 2:
        raise UsageError(
            f'adversary.view = "{MALICIOUS}" needs public images, but the clients have all of the data: set '
            "adversary.public, or lower federation.examples."
        )
    return PublicSample(public.examples.images, whitening)


Group = TypeVar("Group", bound=Hashable)


def joined(views: Sequence[tuple[View, Group]], together: bool | Literal["also"]) -> list[tuple[View, Group]]:
    """Return the views with the group of clients that each sees; with `together`, join the views of each group."""
    if together is False:
        return list(views)
    views_by_group = values_by_key((group, view) for view, group in views)
    least = 2 if together == "also" else 0  # with `together = true`, Together itself refuses a single round
    joined_views: list[tuple[View, Group]] = [
        (Together(tuple(same)), group) for group, same in views_by_group.items() if len(same) >= least
    ]
    return [*views, *joined_views] if together == "also" else joined_views


# Code outside fedglass.

READERS = ("datasets", "initialisations")
"""Kinds whose names may end with the path of a file."""
KIND_OF_KEY = {
    "data": "datasets",
    "public": "datasets",
    "model": "models",
    "init": "initialisations",
    "rule": "rules",
    "behaviour": "behaviours",
    "defences": "defences",
    "defended": "defences",
    "attacks": "attacks",
    "labels": "labels",
    "loss": "losses",
    "refine": "refinements",
    "names": "metrics",
    "metric": "metrics",
}
"""The keys of a plan that name registered parts, or have tables that do."""


@dataclass(frozen=True)
class Code:
    """A part of a plan that is made by code outside fedglass."""

    kind: str
    name: str
    origin: str
    """`package X 1.2` for a part of an installed package; the name itself if it is imported by that name."""

    def __str__(self) -> str:
        origin = "" if self.origin == self.name else f" of {self.origin}"
        return f"{self.name} ({KINDS[self.kind].noun}{origin})"


def code_of(table: BaseModel, kind: str = "") -> tuple[Code, ...]:
    """Return all code outside fedglass that a plan or one of its tables runs, in the order of the plan.

    `kind` is that of the part that the table itself names. Code that only a bundle names never runs.
    """
    return tuple(dict.fromkeys(_code_in(table, kind)))


def _code_in(value: object, kind: str) -> Iterator[Code]:
    """Yield the code in the value of a key that names parts of this kind."""
    if isinstance(value, str) and kind:
        yield from code_named(kind, value)
    elif isinstance(value, list):
        for entry in value:
            yield from _code_in(entry, kind)
    elif isinstance(value, BaseModel):
        for key in type(value).model_fields:
            named = kind if key == "name" else KIND_OF_KEY.get(key, "")
            yield from _code_in(getattr(value, key), named)


def code_named(kind: str, text: str) -> Iterator[Code]:
    """Yield the code that a name stands for, unless it is built in."""
    first, colon, path = text.partition(":")
    if kind in READERS and first in names(kind):
        text, colon = first, ""
    elif kind == "datasets" and not (is_dotted(first) and ("." in first or is_importable(first))):
        return  # a path, or an unknown format
    elif kind in READERS:
        text = f"{first}:{path.partition(':')[0]}"
    origin = origin_of(kind, text)
    if origin != BUILT_IN and (colon or origin != text):
        yield Code(kind, text, origin)
