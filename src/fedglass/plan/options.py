"""The parts that a plan names, made with checked options: the names, types and ranges of options are validated.

Also here: the public data of the adversary, and views that are attacked together.
"""

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
    "ignore_index": ANY,
}
"""Name of an option -> its range; all other options are not negative. Parts check further conditions themselves."""
MOST: Mapping[str, int] = {
    **dict.fromkeys(("iterations", "warm_up", "finish"), 10_000_000),
    **dict.fromkeys(("restarts", "width"), 10_000),
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
    otherwise = NOT_NEGATIVE if _is_built_in(make) else ANY  # the ranges of other code are unknown
    for name, value in checked.items():
        _check_range(where, name, value, otherwise)
    return checked


def _is_built_in(make: Callable[..., object]) -> bool:
    function = make.func if isinstance(make, functools.partial) else make
    return str(getattr(function, "__module__", "")).startswith("fedglass.")


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


def made(kind: str, table: Named) -> Any:
    """Return the part that a table names, with the table's options."""
    options = checked_options(find(kind, table.name).title, factory(kind, table.name), table.options)
    return make(kind, table.name, **options)


def defences_of(tables: Sequence[DefenceTable]) -> Protection:
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


Group = TypeVar("Group", bound=Hashable)


def joined(views: Sequence[tuple[View, Group]], together: bool | Literal["also"]) -> list[tuple[View, Group]]:
    """Return the views with the group of clients that each sees; with `together`, join the views of each group."""
    if together is False:
        return list(views)
    views_by_group: dict[Group, list[View]] = {}
    for view, group in views:
        views_by_group.setdefault(group, []).append(view)
    least = 2 if together == "also" else 0  # with `together = true`, Together itself refuses a single round
    joined_views: list[tuple[View, Group]] = [
        (Together(tuple(same)), group) for group, same in views_by_group.items() if len(same) >= least
    ]
    return [*views, *joined_views] if together == "also" else joined_views
