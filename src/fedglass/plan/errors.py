"""What is wrong with a plan, in one sentence: the field, what was expected, what came, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

Place = Sequence[str | int]


def in_one_sentence(error: ValidationError, schema: type[BaseModel], content: Mapping[str, Any]) -> str:
    """The first problem in words, and how many more there are."""
    problems = error.errors(include_url=False)
    # A key that is not there is often just misspelt: name the misspelling first.
    problems.sort(key=lambda problem: problem["type"] != "extra_forbidden")
    more = len({_field(p["loc"], content) for p in problems}) - 1
    rest = f" ({more} more problem{'s' if more > 1 else ''} after this one.)" if more > 0 else ""
    return _sentence(problems[0], schema, content) + rest


def _sentence(problem: ErrorDetails, schema: type[BaseModel], content: Mapping[str, Any]) -> str:
    field = _field(problem["loc"], content)
    if problem["type"] == "extra_forbidden":
        return _unknown_key(problem["loc"], schema, field)
    if problem["type"] == "missing":
        return f"{field} is missing: add it to the plan."
    if problem["type"] == "value_error":
        said = str(problem["ctx"]["error"]) if "ctx" in problem else problem["msg"]
        return f"{field}: {said}." if field else f"{said[0].upper()}{said[1:]}."
    expected = problem["msg"].removeprefix("Input should be ")
    expected = expected[0].lower() + expected[1:]
    return f"{field}: expected {expected}, got {_shown(problem['input'])}: correct it in the plan."


def _unknown_key(place: Place, schema: type[BaseModel], field: str) -> str:
    known = _keys(schema, place[:-1])
    near = difflib.get_close_matches(str(place[-1]), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{field} is not a key of a plan: {hint}Known here: {', '.join(sorted(known))}."


def _field(place: Place, content: Mapping[str, Any]) -> str:
    """The place as the user wrote it: `federation.training.lr`, `attacks[1].name`."""
    text = ""
    for i, step in enumerate(place):
        if isinstance(step, int):
            # A single [federation] table is read as a list of one: it has no index in the file.
            written_as_table = i == 1 and isinstance(content.get(str(place[0])), dict)
            text += "" if written_as_table else f"[{step}]"
        elif not _is_branch(step):
            text += f".{step}" if text else step
    return text


def _is_branch(step: str) -> bool:
    """Whether a step names a branch of a union, which the user never wrote."""
    return any(mark in step for mark in "[(-") or step in ("int", "float", "str", "bool")


def _keys(schema: type[BaseModel], place: Place) -> list[str]:
    """The keys that the table at that place may have."""
    table: type[BaseModel] = schema
    for step in place:
        if isinstance(step, str) and step in table.model_fields:
            table = _table(table.model_fields[step].annotation) or table
    return list(table.model_fields)


def _table(annotation: Any) -> type[BaseModel] | None:
    """The table inside an annotation such as `list[Table]` or `Table | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _table(part)) is not None), None)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
