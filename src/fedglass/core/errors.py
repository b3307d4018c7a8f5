"""Errors, sorted by what the user can do about them.

Every message is one sentence or two: the field, what was expected, what came, what to do.

Code of others is imported by name unless that is forbidden, and its exceptions become one sentence.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LONGEST_MESSAGE = 2000
"""Characters of a message: it may quote a file of others."""


class FedglassError(Exception):
    """Anything that fedglass refuses to do, with a message meant for the user."""

    def __str__(self) -> str:
        text, half = super().__str__(), LONGEST_MESSAGE // 2
        return text if len(text) <= LONGEST_MESSAGE else f"{text[: half - 2]} … {text[1 - half :]}"


class UsageError(FedglassError):
    """The request itself is wrong: a name, an option, a field of the plan (exit code 2)."""


class DataError(UsageError):
    """A data file or an array does not hold what was promised."""


class ModelError(UsageError):
    """A model, its factory or its weights do not fit."""


class UpdateError(UsageError):
    """A recorded update does not belong to the model, or is not finite."""


class AuditError(FedglassError):
    """The audit could not complete (exit code 3)."""


def check_at_least(name: str, value: float, least: float) -> None:
    """Refuse an option that is below its least value."""
    if value < least:
        raise UsageError(f"{name} must be at least {least}, got {value}.")


def unknown_name(kind: str, name: str, valid_names: Iterable[str], otherwise: str = "") -> UsageError:
    """Return the error for a name that is not in a catalogue, with the nearest one that is, or what to do otherwise.

    >>> print(unknown_name("attack", "idgl", ["dlg", "idlg", "inverting_gradients"]))
    Unknown attack 'idgl': did you mean 'idlg'? Known: dlg, idlg, inverting_gradients.
    """
    names = sorted(valid_names)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f": did you mean {near[0]!r}?" if near else f": {otherwise}." if otherwise else "."
    return UsageError(f"Unknown {kind} {name!r}{hint} Known: {', '.join(names)}.")


_FORBIDDEN: ContextVar[bool] = ContextVar("code of others is forbidden", default=False)


@contextmanager
def no_code() -> Iterator[None]:
    """Refuse to import code of others until the context ends.

    >>> with no_code():
    ...     imported("model", "fractions:Fraction")
    Traceback (most recent call last):
    fedglass.core.errors.UsageError: The model 'fractions:Fraction' is not looked at without running its code.
    """
    before = _FORBIDDEN.set(True)
    try:
        yield
    finally:
        _FORBIDDEN.reset(before)


def check_allowed(title: str, refuse: type[UsageError] = UsageError) -> None:
    """Refuse what would run code of others where that is forbidden; `title` says what."""
    if _FORBIDDEN.get():
        raise refuse(f"The {title} is not looked at without running its code.")


@contextmanager
def refused(refusal: Callable[[str], UsageError]) -> Iterator[None]:
    """Turn exceptions of the code inside into the given refusal; our own errors pass.

    >>> with refused(lambda said: UsageError(f"It failed: {said}.")):
    ...     {}["width"]
    Traceback (most recent call last):
    fedglass.core.errors.UsageError: It failed: KeyError: 'width'.
    """
    try:
        yield
    except FedglassError:
        raise
    # Code of others may raise anything, and none of it may look like a fault of fedglass.
    except (Exception, SystemExit) as error:
        raise refusal(said(error)) from error


def said(error: BaseException) -> str:
    """Return an exception as text, without the full stop.

    >>> said(ValueError("Wrong."))
    'ValueError: Wrong'
    """
    return f"{type(error).__name__}: {error}".rstrip(".: ")


def imported(noun: str, name: str, refuse: type[UsageError] = UsageError) -> object:
    """Return the value that `package.module:name` names; `noun` says what it is used as.

    >>> imported("model", "fractions:Fraction")
    <class 'fractions.Fraction'>
    >>> imported("model", "fractions:Fractoin")
    Traceback (most recent call last):
    fedglass.core.errors.UsageError: The module 'fractions' has no 'Fractoin', which the model 'fractions:Fractoin'
    names: did you mean 'Fraction'?
    """
    module, _, path = name.partition(":")
    if not (is_dotted(module) and is_dotted(path)):
        raise refuse(f"The {noun} {name!r} is not of the form 'package.module:name': correct it.")
    check_allowed(f"{noun} {name!r}", refuse)

    def does_not_import(problem: str) -> UsageError:
        return refuse(
            f"The {noun} {name!r} does not import: {problem}. Expected 'package.module:name'; check the spelling, and "
            "that the package is installed or is in PYTHONPATH; --code DIR names a folder that holds code of your own."
        )

    with refused(does_not_import):
        value: object = importlib.import_module(module)
    for step in path.split("."):
        if not hasattr(value, step):
            near = difflib.get_close_matches(step, dir(value), n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "correct the name, or define it there."
            raise refuse(f"The module {module!r} has no {path!r}, which the {noun} {name!r} names: {hint}")
        value = getattr(value, step)
    return value


def is_dotted(text: str) -> bool:
    """Return whether a text can be the name of a module or of something in it.

    >>> is_dotted("package.module"), is_dotted("faces-1.npz")
    (True, False)
    """
    return all(part.isidentifier() for part in text.split("."))


def is_importable(module: str) -> bool:
    """Return whether the package of that module can be found, without importing it.

    >>> is_importable("importlib.metadata"), is_importable("no_such_package.module"), is_importable("C")
    (True, False, False)
    """
    return is_dotted(module) and importlib.util.find_spec(module.partition(".")[0]) is not None
