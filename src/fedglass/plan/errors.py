"""What is wrong with a plan, in one sentence: the field, what was expected, what came, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, Tag, ValidationError
from pydantic_core import ErrorDetails

Place = Sequence[str | int]
LENGTHS = {"too_long": ("max_length", "at most"), "too_short": ("min_length", "at least")}


def in_one_sentence(error: ValidationError, schema: type[BaseModel], content: Mapping[str, Any]) -> str:
    """The first problem in words, and how many more there are."""
    problems = error.errors(include_url=False)
    # A key that is not there is often just misspelt: name the misspelling first.
    problems.sort(key=lambda problem: (problem["type"] != "extra_forbidden", _is_of_another_kind(problem)))
    more = len({_field(p["loc"], content) for p in problems}) - 1
    rest = f" ({more} more problem{'s' if more > 1 else ''} after this one.)" if more > 0 else ""
    return _sentence(problems[0], schema, content) + rest


def _is_of_another_kind(problem: ErrorDetails) -> bool:
    """Whether a branch of a union was not meant at all: what is wrong inside the one that was says more."""
    last = problem["loc"][-1] if problem["loc"] else 0
    mistaken = problem["type"].endswith("_type") or problem["type"] == "literal_error"
    return mistaken and isinstance(last, str) and _is_branch(last)


def _sentence(problem: ErrorDetails, schema: type[BaseModel], content: Mapping[str, Any]) -> str:
    field = _field(problem["loc"], content)
    if problem["type"] == "extra_forbidden":
        return _unknown_key(problem["loc"], schema, field)
    if problem["type"] == "missing":
        return f"{field} is missing: {_missing(field, problem['input'])}"
    if problem["type"] == "value_error":
        said = str(problem["ctx"]["error"]) if "ctx" in problem else problem["msg"]
        return f"{field}: {said}." if field else f"{said[0].upper()}{said[1:]}."
    if problem["type"] in LENGTHS:
        limit, words = LENGTHS[problem["type"]]
        length = problem["ctx"]["actual_length"]
        return f"{field}: expected {words} {problem['ctx'][limit]:,} entries, got {length:,}: correct it in the plan."
    expected = problem["msg"].removeprefix("Input should be ").removeprefix("String should have ")
    expected = expected[0].lower() + expected[1:]
    return f"{field}: expected {expected}, got {_shown(problem['input'])}: correct it in the plan."


def _missing(field: str, table: Any) -> str:
    """What to do about a key that is not there."""
    if not field.endswith("recording.whitening") and not field.endswith("].whitening"):
        return "add it to the plan."
    # It can not be guessed, and a wrong one hides a leak: the line for none is there to be copied.
    shape = table.get("shape") if isinstance(table, dict) else None
    channels = shape[0] if isinstance(shape, list) and shape and shape[0] in range(1, 17) else 3
    mean, std = ([number] * channels for number in (0.0, 1.0))
    return (
        "it says how the clients normalised their pixels. Add their channel means and deviations or, where they did "
        f"not normalise, whitening = {{ mean = {mean}, std = {std} }}, with one number for each channel."
    )


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
    for i, step in enumerate(place):
        if isinstance(step, str) and step in table.model_fields:
            table = _table(table.model_fields[step].annotation, place[i + 1 :]) or table
    return list(table.model_fields)


def _table(annotation: Any, place: Place = ()) -> type[BaseModel] | None:
    """The table inside an annotation such as `list[Table]` or `Table | None`; of several, the one that `place` tags."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    tags = [part.tag for part in get_args(annotation) if isinstance(part, Tag)]
    if tags and tags[0] not in place:
        return None
    return next((found for part in get_args(annotation) if (found := _table(part, place)) is not None), None)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
