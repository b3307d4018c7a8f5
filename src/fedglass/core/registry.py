"""The registry of all parts that a plan can name: built in, of an installed package, or the user's own.

A part is registered where it is defined:

    @register("rules", "krum", summary="the update nearest to its neighbours", paper="Blanchard et al., 2017, https://...")
    class Krum: ...

Built-in parts are found by importing the modules of the package that holds their kind: of a name that begins with that
of a module, that module alone. An installed package brings parts by entry points of the group `fedglass.<kind>`. A name
with a colon, `package.module:name`, is imported. A name that is built in means the built-in part, whatever else is
installed.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import itertools
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedglass.core.errors import (
    DataError,
    ModelError,
    UsageError,
    check_allowed,
    imported,
    is_importable,
    refused,
    unknown_name,
)
from fedglass.core.text import cited, docstring, part_in_words, uncited

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
BUILT_IN = "built in"


@dataclass(frozen=True)
class PartKind:
    """A role that plans fill by name."""

    noun: str
    package: str
    """The package or the module that registers the built-in ones; without it there are none."""
    methods: tuple[str, ...] = ()
    """Methods that a part of this kind has; none where the kind checks its parts itself."""
    one_is_enough: bool = False
    """Whether one of the methods makes it such a part."""
    error: type[UsageError] = UsageError
    in_plans: bool = True
    """Whether plans name such parts; executors are named by commands, networks of diffusion models by their folders."""


KINDS: Mapping[str, PartKind] = {
    "attacks": PartKind("attack", "fedglass.recipes", ("run", "check", "energy_of")),
    "defences": PartKind("defence", "fedglass.defend", ("release", "gradient"), one_is_enough=True),
    "losses": PartKind("loss", "fedglass.fl.loss", ("value",)),
    "labels": PartKind("labels", "fedglass.attack.labels", ("bind",)),
    "rules": PartKind("rule", "fedglass.fl.aggregate", ("init", "aggregate")),
    "behaviours": PartKind("behaviour", "fedglass.federation.behaviours", ("examples", "update", "describe")),
    "models": PartKind("model", "fedglass.models", error=ModelError),
    "datasets": PartKind("dataset", "fedglass.data", error=DataError),
    "initialisations": PartKind("initialisation", "fedglass.models", ("apply",)),
    "metrics": PartKind("metric", "fedglass.metrics"),
    "exact": PartKind("exact method", "fedglass.attack.exact", in_plans=False),
    "refinements": PartKind("refinement", "fedglass.attack.refine", ("refine",)),
    "executors": PartKind("executor", "fedglass.execution", ("run",), in_plans=False),
    "denoisers": PartKind("denoiser", "fedglass.diffusion", ("forward", "options"), in_plans=False),
    "autoencoders": PartKind("autoencoder", "fedglass.diffusion", ("encode", "decode", "options"), in_plans=False),
    "gans": PartKind("GAN", "fedglass.diffusion", ("draw", "options"), in_plans=False),
}


@dataclass(frozen=True, eq=False)
class Entry:
    """A part by name: the function that makes it, a line about it, its paper, and its origin."""

    kind: str
    name: str
    value: Any
    """A function or a class that makes the part; a metric or an exact method is the part itself."""
    summary: str
    paper: str = ""
    origin: str = BUILT_IN
    """`built in`, `package X 1.2`, or `package.module:name`."""
    problem: str = ""
    """The reason that it cannot be used, as a sentence; empty where it can."""

    @property
    def built_in(self) -> bool:
        return self.origin == BUILT_IN

    @property
    def title(self) -> str:
        """The part in an error message, such as `attack 'dlg'`."""
        return f"{KINDS[self.kind].noun} {self.name!r}"


_REGISTERED: dict[str, dict[tuple[str, str], tuple[int, Entry]]] = {}
"""By kind; then by module and name, since another package may use a name that is built in.

Each entry has its place in the order of all registrations, which within a module is that of its lines."""
_PLACES = itertools.count()


def register(kind: str, name: str, *, summary: str, paper: str = "") -> Callable[[T], T]:
    """Return a decorator that registers a part under a name, and leaves it as it is.

    Outside of fedglass it serves a script, whose parts can then be named; an installed package also names its parts in
    an entry point, for which this gives the summary and the paper.
    """
    registered = _REGISTERED.setdefault(_checked(kind), {})
    module = str(sys._getframe(1).f_globals.get("__name__", "__main__"))
    origin = BUILT_IN if module.startswith("fedglass.") else f"{module}:{name}"

    def note(value: T) -> T:
        elsewhere = (entry for (place, _), (_, entry) in registered.items() if place != module and entry.name == name)
        if origin == BUILT_IN and any(entry.built_in for entry in elsewhere):
            raise UsageError(
                f"{module} registers the {KINDS[kind].noun} {name!r}, which is built in already: rename it."
            )
        registered[module, name] = next(_PLACES), Entry(kind, name, value, summary, paper, origin)
        return value

    return note


def built_in(kind: str) -> Mapping[str, Entry]:
    """Return the parts of fedglass itself, by module and then in the order of their definition."""
    _discover(KINDS[_checked(kind)].package)
    return {entry.name: entry for entry in _registered(kind) if entry.built_in}


def names(kind: str) -> tuple[str, ...]:
    """Return every name that can be used, without importing code of others."""
    return tuple(
        dict.fromkeys([*built_in(kind), *(e.name for e in _registered(kind)), *(p.name for p in _points(kind))])
    )


def entries(kind: str) -> tuple[Entry, ...]:
    """Return all entries, the built-in parts first; those that cannot be used have a `problem`."""
    listed = list(built_in(kind).values())
    taken = {entry.name: BUILT_IN for entry in listed}
    for entry in _of_others(kind):
        if entry.name in taken:
            noun, first = KINDS[kind].noun, taken[entry.name]
            whose = f"a built-in {noun} has" if first == BUILT_IN else f"the {noun} of {first} has"
            problem = f"It is ignored, since {whose} the name {entry.name!r}: rename one of the two."
            entry = replace(entry, problem=problem)
        taken.setdefault(entry.name, entry.origin)
        listed.append(entry)
    return tuple(listed)


def summaries(kind: str) -> dict[str, str]:
    """Return name and summary of every part that can be used."""
    return {entry.name: entry.summary for entry in entries(kind) if not entry.problem}


def find(kind: str, name: str) -> Entry:
    """Return the part of that name: built in, registered, of an installed package, or `package.module:name`."""
    place = _place(kind, name)
    if place is not None:
        return place if isinstance(place, Entry) else _loaded(kind, place)
    if ":" in name:
        value = imported(KINDS[kind].noun, name, KINDS[kind].error)
        return _described(Entry(kind, name, value, "", origin=name))
    raise unknown_name(KINDS[kind].noun, name, names(kind), "name one of your own as package.module:name")


def summary_of(kind: str, part: object) -> str:
    """Return a part as a phrase: its registered name, its options, and what it does.

    >>> summary_of("rules", make("rules", "krum", byzantine=2))
    'krum (byzantine 2): the one update that lies closest to its neighbours'
    """
    entry = next((entry for entry in _registered(kind) if entry.value is type(part)), None)
    return part_in_words(part) if entry is None else f"{part_in_words(part, entry.name)}: {entry.summary}"


def origin_of(kind: str, name: str) -> str:
    """Return the origin of a name, as in `Entry.origin`, without importing its code.

    >>> origin_of("models", "lenet"), origin_of("models", "mypackage.models:make")
    ('built in', 'mypackage.models:make')
    """
    place = _place(kind, name)
    if place is None:
        return name
    return place.origin if isinstance(place, Entry) else _package(place)


def factory(kind: str, name: str) -> Callable[..., Any]:
    """Return the function or class that makes the part of that name."""
    entry = find(kind, name)
    if not callable(entry.value):
        raise KINDS[kind].error(
            f"The {entry.title} is {type(entry.value).__name__}, expected a function or a class that makes one."
        )
    return entry.value  # type: ignore[no-any-return]  # callable() does not narrow Any


def make(kind: str, name: str, /, **options: object) -> Any:
    """Make the part of that name with these options.

    >>> make("rules", "mean")
    WeightedMean()
    """
    makes, entry = factory(kind, name), find(kind, name)
    _check_options(entry, options)
    part = call(entry, makes, options)
    requirements = KINDS[kind]
    missing = [method for method in requirements.methods if not callable(getattr(part, method, None))]
    if missing and (not requirements.one_is_enough or missing == list(requirements.methods)):
        raise requirements.error(
            f"The {entry.title} made {type(part).__name__}, which has no method {' or '.join(missing)}: return the "
            f"{requirements.noun} itself, with {'one' if requirements.one_is_enough else 'all'} of "
            f"{', '.join(requirements.methods)}."
        )
    return part


def call(entry: Entry, makes: Callable[..., Any], options: Mapping[str, object]) -> Any:
    """Call a factory. Exceptions in code of others become one sentence; errors of our own stay as they are."""
    if entry.built_in:
        return makes(**options)
    with refused(lambda words: KINDS[entry.kind].error(f"The {entry.title} failed: {words}.")):
        return makes(**options)


def takes(makes: Callable[..., Any], option: str) -> bool:
    """Return whether a factory takes an option of that name by keyword.

    >>> takes(lambda path, split: None, "path"), takes(lambda: None, "path")
    (True, False)
    """
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameter = parameters(makes).get(option)
    return parameter is not None and parameter.kind in by_keyword


def parameters(makes: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a factory, none if it has no signature."""
    try:
        return inspect.signature(makes).parameters
    except (TypeError, ValueError):
        return {}


def _checked(kind: str) -> str:
    if kind not in KINDS:
        raise unknown_name("kind of parts", kind, KINDS)
    return kind


def _own(kind: str, name: str) -> Entry | None:
    """Return the built-in part of that name; import all modules of its kind only if none is called like it."""
    for module in _called_like(name, KINDS[_checked(kind)].package):
        importlib.import_module(module)
        for entry in _registered(kind):
            if entry.built_in and entry.name == name:
                return entry
    return built_in(kind).get(name)


def _place(kind: str, name: str) -> Entry | EntryPoint | None:
    """Return what has that name: a built-in part, the entry point of an installed package, or a registered part."""
    if (ours := _own(kind, name)) is not None:
        return ours
    others: list[Entry | EntryPoint] = [*_points(kind), *_registered(kind)]
    return next((other for other in others if other.name == name), None)


def _called_like(name: str, package: str) -> Iterator[str]:
    """The modules of a package with whose names a name begins, the longest first.

    >>> list(_called_like("dlg_adam", "fedglass.recipes")), list(_called_like("my.module:dlg", "fedglass.recipes"))
    (['fedglass.recipes.dlg'], [])
    """
    spec = importlib.util.find_spec(package)
    if not name.isidentifier() or name.startswith("_") or spec is None or spec.submodule_search_locations is None:
        return
    name_parts = name.split("_")
    for end in range(len(name_parts), 0, -1):
        module = f"{package}.{'_'.join(name_parts[:end])}"
        if importlib.util.find_spec(module) is not None:
            yield module


@functools.cache
def _discover(package: str) -> None:
    """Import the modules of a package, or a single module, so that they register their parts."""
    if importlib.util.find_spec(package) is None:
        return
    for module in pkgutil.iter_modules(getattr(importlib.import_module(package), "__path__", ())):
        importlib.import_module(f"{package}.{module.name}")


def _registered(kind: str) -> list[Entry]:
    registered = _REGISTERED.get(kind, {})
    return [registered[key][1] for key in sorted(registered, key=lambda key: (key[0], registered[key][0]))]


def entry_points(group: str) -> Iterable[EntryPoint]:
    """Return the entry points of installed packages; `importlib.metadata` is imported only when it is needed."""
    from importlib.metadata import entry_points as installed

    return installed(group=group)


def _points(kind: str) -> list[EntryPoint]:
    return sorted(entry_points(group=f"fedglass.{kind}"), key=lambda point: (point.name, _package(point)))


def _package(point: EntryPoint) -> str:
    return f"package {point.dist.name} {point.dist.version}" if point.dist else f"package of {point.value}"


def _of_others(kind: str) -> Iterator[Entry]:
    """Yield the parts of installed packages, and those that other imported modules have registered."""
    listed: list[Any] = []
    for point in _points(kind):
        try:
            entry = _loaded(kind, point)
            listed.append(entry.value)
        except UsageError as error:
            entry = Entry(kind, point.name, None, "", origin=_package(point), problem=str(error))
        yield entry
    for entry in _registered(kind):
        if not entry.built_in and not any(entry.value is value for value in listed):
            yield entry


def _loaded(kind: str, point: EntryPoint) -> Entry:
    """Return the part of an installed package, described by its registration or by its docstring."""
    noun, origin = KINDS[kind].noun, _package(point)
    check_allowed(f"{noun} {point.name!r} of {origin}", KINDS[kind].error)

    def refusal(problem: str) -> UsageError:
        title = f"The {noun} {point.name!r} of {origin} ({point.value})"
        return KINDS[kind].error(f"{title} does not load: {problem}. Repair or uninstall that package.")

    with refused(refusal):
        value = point.load()
    for entry in _registered(kind):
        if entry.value is value:
            return replace(entry, name=point.name, origin=origin)
    return _described(Entry(kind, point.name, value, "", origin=origin))


def _described(entry: Entry) -> Entry:
    """Return the entry with the first line of its docstring, and the paper that it names as an attribute or cites."""
    text = docstring(entry.value)
    paper = getattr(entry.value, "paper", "")
    return replace(
        entry,
        summary=uncited(text.partition("\n\n")[0]),
        paper=paper if isinstance(paper, str) and paper else "; ".join(cited(text)),
    )


def _check_options(entry: Entry, options: Mapping[str, object]) -> None:
    accepted = parameters(entry.value)
    title = entry.title[0].upper() + entry.title[1:]
    if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        for option in options:
            if option not in accepted:
                raise UsageError(f"{title}: {unknown_name('option', option, accepted)}")
    gathered = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [o for o, p in accepted.items() if p.default is p.empty and p.kind not in gathered and o not in options]
    if missing:
        raise UsageError(f"{title} needs the option {missing[0]!r}: add it.")


# Names of parts that read a file: `npz:faces.npz`, `file:w.safetensors`, `package.module:reader:faces.db`. A part reads
# a file when its factory takes a `path`. The names of such parts win over modules of the same name.


def reads_path(entry: Entry) -> bool:
    """Return whether a path belongs to the name of the part."""
    return callable(entry.value) and takes(entry.value, "path")


def listed_name(entry: Entry) -> str:
    """Return the name as lists show it.

    >>> listed_name(find("initialisations", "file")), listed_name(find("initialisations", "lecun"))
    ('file:PATH', 'lecun')
    """
    return f"{entry.name}:PATH" if reads_path(entry) else entry.name


def split_path(kind: str, text: str) -> tuple[str, str | None]:
    """Split a text into the name of a part and the path behind it, None where it names no part that reads one.

    >>> split_path("initialisations", "file:a/b:c"), split_path("initialisations", "lecun")
    (('file', 'a/b:c'), ('lecun', None))
    """
    name, colon, path = text.partition(":")
    if name in names(kind):
        return (name, path) if reads_path(find(kind, name)) else (text, None)
    function, _, path = path.partition(":")
    reader = f"{name}:{function}"
    with contextlib.suppress(UsageError):  # the caller that needs the part itself reports this in full
        if colon and is_importable(name) and reads_path(find(kind, reader)):
            return reader, path
    return text, None


def located_at(kind: str, text: str, folder: Path) -> str:
    """Return the same name with its path, where it has one, taken from that folder."""
    name, path = split_path(kind, text)
    return f"{name}:{folder / Path(path).expanduser()}" if path else text
