"""The code outside fedglass that a plan runs; it is listed before any of it is imported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel

from fedglass.core.foreign import is_dotted, is_importable
from fedglass.core.registry import BUILT_IN, KINDS, names, origin_of

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
