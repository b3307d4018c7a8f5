"""Errors, sorted by what the user can do about them.

Every message is one sentence or two: the field, what was expected, what came, what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

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


def unknown_name(kind: str, name: str, valid_names: Iterable[str]) -> UsageError:
    """Return the error for a name that is not in a catalogue, with the nearest one that is.

    >>> print(unknown_name("attack", "idgl", ["dlg", "idlg", "inverting_gradients"]))
    Unknown attack 'idgl': did you mean 'idlg'? Known: dlg, idlg, inverting_gradients.
    """
    names = sorted(valid_names)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f": did you mean {near[0]!r}?" if near else "."
    return UsageError(f"Unknown {kind} {name!r}{hint} Known: {', '.join(names)}.")
