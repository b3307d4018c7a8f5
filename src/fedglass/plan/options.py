"""Options of a recipe or a defence that come from a file: their names, types and ranges are checked."""

from __future__ import annotations

import functools
import inspect
import math
import typing
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from fedglass.audit.public import Public
from fedglass.core.errors import DataError, UsageError, unknown_name
from fedglass.core.foreign import refused
from fedglass.core.registry import factory, find, make, parameters
from fedglass.data.catalogue import load, located
from fedglass.federation.views import Together, View
from fedglass.fl.release import Protection
from fedglass.plan.schema import AdversaryTable
from fedglass.plan.tables import DefenceTable, Named

PLAIN = (int, float, bool, str)
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
}
"""Of the options with these names; the others are not negative. The parts check the rest themselves."""
MOST: Mapping[str, int] = {
    **dict.fromkeys(("iterations", "warm_up", "finish"), 10_000_000),
    **dict.fromkeys(("restarts", "width"), 10_000),
}
"""Far beyond what is asked for in earnest, of the options with these names."""
LARGEST = 1_000_000_000
"""The largest number of any other option."""


def checked_options(where: str, make: Callable[..., object], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, fit to be passed to `make`.

    >>> def recipe(iterations: int = 10, tv: float = 0.1): ...
    >>> checked_options("attack 'x'", recipe, {"tv": 1})
    {'tv': 1.0}
    >>> checked_options("attack 'x'", recipe, {"iterations": "many"})
    Traceback (most recent call last):
    fedglass.core.errors.UsageError: attack 'x': iterations must be of type int, got 'many': no quotes.
    """
    hints = _hints(make)
    plain = {name: hints[name] for name in parameters(make) if _is_plain(hints.get(name))}
    for name in options:
        if name not in plain:
            raise UsageError(f"{where}: {unknown_name('option', name, plain)}")
    found = {name: _checked(where, name, plain[name], value) for name, value in options.items()}
    otherwise = NOT_NEGATIVE if _is_ours(make) else ANY  # of others' options nobody knows the range
    for name, value in found.items():
        _check_range(where, name, value, otherwise)
    return found


def _is_ours(make: Callable[..., object]) -> bool:
    told = make.func if isinstance(make, functools.partial) else make
    return str(getattr(told, "__module__", "")).startswith("fedglass.")


def _hints(make: Callable[..., object]) -> dict[str, Any]:
    """The types of a factory's options; of a callable value those of its call, of a partial those of its function."""
    if isinstance(make, functools.partial):
        return _hints(make.func)
    told = make if inspect.isroutine(make) or inspect.isclass(make) else type(make).__call__
    with refused(lambda words: UsageError(f"The types of the options of {make!r} can not be read: {words}.")):
        return typing.get_type_hints(told)


def _is_plain(hint: Any) -> bool:
    """Whether a value of that type can be written in a plan."""
    if hint in PLAIN or hint is type(None) or hint is Ellipsis:
        return True
    parts = typing.get_args(hint)
    return bool(parts) and all(map(_is_plain, parts))


def _checked(where: str, name: str, hint: Any, value: Any) -> Any:
    try:
        # Strict, since a type has one spelling in TOML: "5" is not 5, and true is not 1.
        found = TypeAdapter(hint).validate_python(_as_tuples(value) if _takes_tuples(hint) else value, strict=True)
    except ValidationError as error:
        kind = hint.__name__ if isinstance(hint, type) else str(hint)
        advice = ": no quotes" if isinstance(value, str) else ""
        raise UsageError(f"{where}: {name} must be of type {kind}, got {value!r}{advice}.") from error
    return found


def _check_range(where: str, name: str, value: Any, otherwise: Range) -> None:
    allowed, words = RANGES.get(name, otherwise)
    most = MOST.get(name, LARGEST)
    for number in _numbers(value):
        if not (math.isfinite(number) and allowed(number)):
            raise UsageError(f"{where}: {name} must be {words}, got {value!r}.")
        if number > most:
            raise UsageError(f"{where}: {name} must be at most {most:,}, got {value!r}.")


def _takes_tuples(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple or any(map(_takes_tuples, typing.get_args(hint)))


def _as_tuples(value: Any) -> Any:
    """Lists stand for tuples, for which TOML has no spelling."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _numbers(value: Any) -> Iterator[float]:
    """The numbers in a value, however deep."""
    if isinstance(value, tuple | list):
        for inner in value:
            yield from _numbers(inner)
    elif isinstance(value, int | float):
        yield value


def defaults_in_words(make: Callable[..., object]) -> str:
    """The options of a recipe or a defence that a plan can set, with their defaults.

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


# The parts that tables of a plan name, and the defences of a client.


def made(kind: str, table: Named) -> Any:
    """The part of that kind which a table names, with the table's options."""
    options = checked_options(find(kind, table.name).title, factory(kind, table.name), table.options)
    return make(kind, table.name, **options)


def defences_of(tables: Sequence[DefenceTable]) -> Protection:
    """At most one gradient function, and the releases one after another."""
    return Protection.of([made("defences", table) for table in tables])


# The data that a plan gives the adversary beside the message.


def public_of(adversary: AdversaryTable, shape: tuple[int, int, int], folder: Path) -> Public | None:
    """The set that `adversary.public` names, in the shape of the private images; None where it names none."""
    if adversary.public is None:
        return None
    channels, height, width = shape
    data = load(located(adversary.public, folder))
    if data.shape[0] != channels:
        raise DataError(
            f"adversary.public: expected images of {channels} channel(s) as the private ones have, got {data.shape[0]} "
            f"in {data.name}: choose another set, or leave it out."
        )
    if data.shape != shape:
        data = data.resized((height, width))
    return Public.given(data.images, data.labels)


# Rounds one by one, at once, or both, as `adversary.together` says.


People = TypeVar("People", bound=Hashable)


def joined(views: Sequence[tuple[View, People]], together: bool | Literal["also"]) -> list[tuple[View, People]]:
    """The views, each with whose messages it sees; those of the same people as one where that is asked for."""
    if together is False:
        return list(views)
    groups: dict[People, list[View]] = {}
    for view, people in views:
        groups.setdefault(people, []).append(view)
    least = 2 if together == "also" else 0  # who asks for nothing else is told if there is only one
    found: list[tuple[View, People]] = [
        (Together(tuple(alike)), people) for people, alike in groups.items() if len(alike) >= least
    ]
    return [*views, *found] if together == "also" else found
