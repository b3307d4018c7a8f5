"""Facts about a recorded federation: their names and types, values by source, and sizes of what is not stored.

A fact has a name and, for each source, a value. A declared value and one that was read off the running code may
contradict each other: both are stored. Of what a client sends in addition to its model (metrics, control variates,
states of optimisers) recorders store sizes only. No attack reads the content, but an audit must know that it left: it
may be a picture.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, StringConstraints, TypeAdapter, ValidationError

from fedglass.core.errors import DataError, UsageError
from fedglass.core.text import some

Source = Literal["read", "measured", "declared"]
"""Read off the running code or the message, measured from tensors, or declared by a user; the first counts most."""
SOURCES: tuple[Source, ...] = ("read", "measured", "declared")
FREE = "x-"
"""The prefix of names of facts that fedglass carries along without checking their type."""
RESERVATIONS = "x-reservations"
"""What a recorder saw of a training that fedglass's own does not have, as sentences for users."""
RESERVATION_IDS = "x-reservation-ids"
"""The same as identifiers (`fedglass.recorders.training_facts.Reservation`), for code to decide by."""
EXTRA_ARRAYS = "x-further-arrays"
"""By name, the shapes of arrays that a client sent in addition to those of the model, such as control variates."""
INPUTS = "x-inputs"
"""The shape of a network's input, if it is not an image of channels, height and width."""
INCOMPLETE = "x-lost"
"""Of a federation: true if its recorder could not store everything."""
ACCOUNTANT = "x-privacy-accountant"
"""Of a client in a round: Opacus's accountant, with the noise multiplier, the rate and the steps that it counted."""
METRIC_SIZES = "x-metric-sizes"
"""By name, how many numbers and characters each metric holds; recorded if one contains what JSON cannot hold."""
DEEPEST = 8
LONGEST_VALUE = 200_000

Text = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Words = Annotated[str, StringConstraints(max_length=2000)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Whole = Annotated[int, Field(ge=0, le=10**9)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
Channels = Annotated[list[Finite], Field(min_length=1, max_length=16)]


def _plain(value: Any) -> Any:
    """Check that JSON can hold a value, not too deep and not too long."""
    text = "" if _depth(value) > DEEPEST else json.dumps(value, allow_nan=False, ensure_ascii=False)
    text.encode()  # half of a surrogate pair is not text
    if not text or len(text) > LONGEST_VALUE:
        raise ValueError(f"must be JSON of at most {DEEPEST} levels and {LONGEST_VALUE} characters")
    return value


def _depth(value: Any, level: int = 0) -> int:
    if level > DEEPEST:
        return level
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max((_depth(entry, level + 1) for entry in inner), default=level)


Plain = Annotated[Any, AfterValidator(_plain)]


class Part(BaseModel, frozen=True, extra="forbid", strict=True):
    """A defence, a rule or anything else that has a name and options."""

    name: Text
    options: Annotated[dict[Text, Plain], Field(max_length=100)] = {}


def _ordered(ends: list[int]) -> list[int]:
    if ends[0] > ends[1]:
        raise ValueError("the lower end of a range comes first")
    return ends


Range = Annotated[list[Count], Field(min_length=2, max_length=2), AfterValidator(_ordered)]

OBJECTIVE, UNKNOWN_LOSS = "objective", "unknown"
"""The fact that names the loss with its options, and the name of a loss that the recorder cannot name."""

FEDERATION: dict[str, Any] = {
    "framework": Text,
    "model": Text,
    "shape": Annotated[list[Count], Field(min_length=3, max_length=3)],
    "classes": Annotated[int, Field(ge=1, le=100_000)],
    "class_names": Annotated[list[Words], Field(max_length=100_000)],
    "whitening": Annotated[dict[Literal["mean", "std"], Channels], Field(min_length=2)],
    "rule": Part,
    "defences": Annotated[list[Part], Field(max_length=20)],
    "sees": Literal["each", "aggregate"],
    "behaviours": Annotated[list[Words], Field(max_length=1000)],
    "origin": Words,
}
"""Facts of the whole federation, with the type of their values."""

ROUND: dict[str, Any] = {
    "rule": Part,
    "kept": Annotated[list[Text], Field(max_length=100_000)],
}
"""Facts of one round."""

CLIENT: dict[str, Any] = {
    "examples": Count | Range | Literal["unknown"],
    "weight": Positive,
    "config": Annotated[dict[Text, Plain], Field(max_length=1000)],
    "optimiser": Text,
    "lr": Positive,
    "options": Annotated[dict[Text, Plain], Field(max_length=100)],
    "epochs": Count,
    "steps": Whole,
    "batch_sizes": Annotated[list[Count], Field(min_length=1, max_length=100_000)],
    "batch_size": Count,
    "batch_norm": Literal["frozen", "batch", "none"],
    "shuffle": bool,
    "clip": Positive,
    "label_smoothing": Share,
    "loss": Text,
    OBJECTIVE: Part,
    "untrained": Annotated[list[Text], Field(max_length=100_000)],
    "defences": Annotated[list[Part], Field(max_length=20)],
    "filters": Annotated[list[Text], Field(max_length=100)],
    "metrics": Annotated[dict[Text, Plain], Field(max_length=1000)],
}
"""Facts of one client in one round, or in all of them."""

FactSheet = dict[str, dict[Source, Any]]


class Facts:
    """The facts of one subject, checked by the table of its kind."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._types = {name: TypeAdapter(kind, config=None) for name, kind in table.items()}
        self._free: TypeAdapter[Any] = TypeAdapter(Plain)

    def checked(self, sheet: FactSheet) -> FactSheet:
        """Return the same sheet; raise ValueError for a value of another type or an unknown name."""
        for name, by_source in sheet.items():
            for value in by_source.values():
                self._check(name, value)
        return sheet

    def sheet(self, facts: Mapping[str, Any], source: Source) -> FactSheet:
        """Return facts of one source as a sheet; raise UsageError for a value of another type or an unknown name."""
        if source not in SOURCES:
            raise UsageError(f"A fact's source must be one of {', '.join(SOURCES)}, got {source!r}.")
        sheet: FactSheet = {name: {source: plain(value)} for name, value in facts.items() if value is not None}
        if isinstance(metrics := facts.get("metrics"), Mapping) and has_binary(metrics):
            sheet[METRIC_SIZES] = {source: {str(name): list(metric_size(value)) for name, value in metrics.items()}}
        try:
            return self.checked(sheet)
        except ValueError as error:
            raise UsageError(f"The fact {error}.") from error

    def _check(self, name: str, value: Any) -> None:
        if name not in self._types and not name.startswith(FREE):
            raise ValueError(
                f"{name!r} is not known, expected one of {', '.join(self._types)}, or a name that begins with {FREE!r}"
            )
        try:
            self._types.get(name, self._free).validate_python(value, strict=True)
        except ValidationError as error:
            raise ValueError(f"{name}: {error.errors(include_url=False, include_input=False)[0]['msg']}") from error
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{name}: {error}") from error


OF_FEDERATION, OF_ROUND, OF_CLIENT = Facts(FEDERATION), Facts(ROUND), Facts(CLIENT)


def overlay(sheet: FactSheet, more: FactSheet) -> FactSheet:
    """Return both sheets; if the same source has two values for a fact, the later one wins."""
    names = {**sheet, **more}
    return {name: {**sheet.get(name, {}), **more.get(name, {})} for name in names}


def merge_or_fail(sheet: FactSheet, more: FactSheet) -> FactSheet:
    """Return the sheets of two recorders together; the same kind of source must have the same values."""
    for name, by_source in more.items():
        for source, value in by_source.items():
            if sheet.get(name, {}).get(source, value) != value:
                raise DataError(
                    f"Two recorders disagree on {name!r} ({source}): {str(sheet[name][source])[:80]} and "
                    f"{str(value)[:80]}. Correct one of them, or join without one."
                )
    return overlay(sheet, more)


def preferred(sheet: FactSheet, name: str, default: Any = None) -> Any:
    """Return the value of the most trusted source."""
    by_source = sheet.get(name, {})
    return next((by_source[source] for source in SOURCES if source in by_source), default)


def plain(value: Any) -> Any:
    """Return a value as JSON has it; bytes, arrays, NaN and anything else that JSON cannot hold become text."""
    if isinstance(value, BaseModel):
        return plain(value.model_dump())
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        return [plain(entry) for entry in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, bytes | bytearray):
        return f"({len(value)} bytes)"
    if (count := array_entries(value)) is not None:
        return f"({count} numbers)"
    if hasattr(value, "item"):
        value = value.item()  # of NumPy or torch
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)[:LONGEST_TEXT]


# Sizes of what a client sends in addition to its model.

MANY_NUMBERS = 64
"""The number of numbers from which on extra content of a reply may be a picture, of eight by eight pixels."""
MANY_CHARACTERS = 200
"""The number of characters from which on it may be anything."""
LONGEST_TEXT = 2000
"""Characters that a bundle holds of a value which JSON cannot hold."""


def sizes_of_extras(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the size of everything in a reply that is more than a figure or a few words, by name.

    Replies carry control variates, states of optimisers or anything that a client adds to its model. Only the size is
    recorded: no attack reads it, but an audit must know that it left.
    """
    sizes = {str(name): size_of_extra(value) for name, value in values.items()}
    return {name: size for name, size in sizes.items() if size is not None}


def size_of_extra(value: Any) -> Any:
    """Return the shape of an array, the length of bytes, text or a list; None for a figure or a few words.

    >>> sizes = map(size_of_extra, (0.5, "epoch 3", [1.0] * 10, {"control": [1.0] * 100}, b"1234"))
    >>> list(sizes)
    [None, None, None, {'control': [100]}, [4]]
    """
    shape = getattr(value, "shape", None)
    if shape is not None:
        return [int(side) for side in shape] if len(shape) else None
    if isinstance(value, bytes | bytearray | memoryview):
        return [len(value)]
    if isinstance(value, str):
        return [len(value)] if len(value) >= MANY_CHARACTERS else None
    if isinstance(value, Mapping):
        inner = sizes_of_extras(value)
        return inner or ([len(value)] if len(value) >= MANY_NUMBERS else None)
    if isinstance(value, list | tuple | set | frozenset):
        large = len(value) >= MANY_NUMBERS or any(size_of_extra(entry) is not None for entry in value)
        return [len(value)] if large else None
    return None if value is None or isinstance(value, bool | int | float) else type(value).__name__


def large_metrics(metrics: Mapping[str, Any], sizes: Any = None) -> list[str]:
    """Return the names of metrics that are more than a figure or a few words, each or all together.

    Args:
        sizes: The sizes that a recorder stored, as a file has them; None in bundles of earlier versions.

    >>> large_metrics({"loss": 0.1, "picture": [0.5] * 64, "raw": b"12"})
    ['picture', 'raw']
    """
    if not (_are_sizes(sizes) and set(sizes) == set(metrics)):
        sizes = {name: metric_size(value) for name, value in metrics.items()}
    large = [n for n, (count, length) in sizes.items() if count >= MANY_NUMBERS or length >= MANY_CHARACTERS]
    numbers, characters = (sum(column) for column in zip(*sizes.values(), strict=True)) if sizes else (0, 0)
    # A picture may be sent a pixel at a time.
    return large or [some(list(sizes))] * (numbers >= MANY_NUMBERS or characters >= MANY_CHARACTERS)


def _are_sizes(value: Any) -> bool:
    """Check a fact of a file, which may hold anything."""
    return isinstance(value, dict) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(number, int) for number in pair)
        for pair in value.values()
    )


def metric_size(value: Any) -> tuple[int, int]:
    """Return how many numbers and how many characters there are in a metric; bytes may hold any number of either."""
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        sizes = [metric_size(entry) for entry in (value.values() if isinstance(value, Mapping) else value)]
        return sum(count for count, _ in sizes), sum(length for _, length in sizes)
    if isinstance(value, bytes | bytearray):
        return len(value), MANY_CHARACTERS
    if (count := array_entries(value)) is not None:
        return count, 0
    if value is None or isinstance(value, bool | int | float) or hasattr(value, "item"):
        return 1, 0
    text = str(value)[:LONGEST_TEXT]
    # Bundles of earlier versions have these words for arrays and bytes, and no sizes next to them.
    old = re.fullmatch(r"\((\d+) (bytes|numbers)\)", text)
    return (0, len(text)) if old is None else (int(old[1]), MANY_CHARACTERS * (old[2] == "bytes"))


def has_binary(value: Any) -> bool:
    """Check for bytes or arrays."""
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return any(has_binary(entry) for entry in (value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, bytes | bytearray) or array_entries(value) is not None


def array_entries(value: Any) -> int | None:
    """Return the number of entries of an array or tensor; None of anything else, and of a scalar."""
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return None
    if hasattr(value, "numel"):
        return int(value.numel())
    size = getattr(value, "size", None)
    return size if isinstance(size, int) else None
