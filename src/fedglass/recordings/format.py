"""The JSON of a bundle: facts with their sources, one file for each round, and `manifest.json`.

A fact has a name and, for each source, a value. A declared value and one that was read off the running code may
contradict each other: both are stored. The manifest anchors every other file by its digest.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from fedglass.core.errors import DataError, UsageError
from fedglass.recordings.sizes import LONGEST_TEXT, array_entries, has_binary, metric_size

Source = Literal["read", "measured", "declared"]
"""Read off the running code or the message, measured from tensors, or declared by a user; the first counts most."""
SOURCES: tuple[Source, ...] = ("read", "measured", "declared")
FREE = "x-"
"""The prefix of names of facts that fedglass carries along without checking their type."""
RESERVATIONS = "x-reservations"
"""What a recorder saw of a training that fedglass's own does not have, as sentences for users."""
RESERVATION_IDS = "x-reservation-ids"
"""The same as identifiers (`fedglass.recorders.read.Reservation`), for code to decide by."""
EXTRA_ARRAYS = "x-further-arrays"
"""By name, the shapes of arrays that a client sent in addition to those of the model, such as control variates."""
INPUTS = "x-inputs"
"""The shape of a network's input, if it is not an image of channels, height and width."""
INCOMPLETE = "x-lost"
"""Of a federation: true if its recorder could not store everything."""
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


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Part(_Table):
    """A defence, a rule or anything else that has a name and options."""

    name: Text
    options: Annotated[dict[Text, Plain], Field(max_length=100)] = {}


class WhiteningFact(_Table):
    """The normalisation of pixels in [0, 1]."""

    mean: Channels
    std: Channels


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
    "whitening": WhiteningFact,
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
            for source, value in by_source.items():
                if source not in SOURCES:
                    raise ValueError(f"{name}: unknown source {source!r}, expected one of {', '.join(SOURCES)}")
                self._check(name, value)
        return sheet

    def told(self, facts: Mapping[str, Any], source: Source) -> FactSheet:
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


def disputed(sheet: FactSheet) -> Iterator[tuple[str, dict[Source, Any]]]:
    """Yield the facts on which two sources disagree, with the values by source."""
    for name, by_source in sheet.items():
        values = list(by_source.values())
        if any(value != values[0] for value in values[1:]):
            yield name, by_source


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


FORMAT: Literal[2] = 2
"""Format 1 is a saved transcript (`fedglass.recordings.saved`)."""
MANIFEST = "manifest.json"
UNSIGNED = "0" * 64
MOST_BYTES = 16 * 2**30
"""The largest size of one file."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
TensorFile = Annotated[str, StringConstraints(pattern=r"^round-[0-9]{5,9}-[a-z]{4,10}(-[0-9]{5,9})?\.safetensors$")]
RoundFile = Annotated[str, StringConstraints(pattern=r"^round-[0-9]{5,9}-[0-9]{4,9}\.json$")]
Index = Annotated[int, Field(ge=0, lt=10**9)]
Length = Annotated[int, Field(ge=0, le=2**40)]
DType = Literal["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"]
"""The types that an array may have, as safetensors calls them."""
Key = Annotated[str, StringConstraints(max_length=500)]


def _sheet(facts: Facts) -> Any:
    return Annotated[dict[Key, dict[Text, Any]], Field(max_length=1000), AfterValidator(facts.checked)]


class ArrayFacts(_Table):
    """One tensor of a file."""

    name: Key
    dtype: DType
    shape: Annotated[list[Length], Field(max_length=16)]


class FileRef(_Table):
    """A file of tensors and what it must be."""

    file: TensorFile
    sha256: Sha256
    bytes: Length
    form: Literal["state", "update"]
    """The weights themselves, or what is to be added to those that were sent."""
    arrays: Annotated[list[ArrayFacts], Field(min_length=1, max_length=100_000)]
    """In the order in which they were sent: a list of NumPy arrays has no other names."""


class MessageFacts(_Table):
    """A client in a round."""

    client: Text
    received: FileRef | None = None
    """What the server got; None where that was not seen."""
    sent: FileRef | None = None
    """What this client was sent, where that is not what all were."""
    absent: Words | None = None
    """Why it was called and sent nothing."""
    facts: _sheet(OF_CLIENT) = {}  # type: ignore[valid-type] # a type that is made from the table of facts


class RoundFacts(_Table):
    """One round."""

    index: Index
    sent: FileRef | None = None
    aggregated: FileRef | None = None
    messages: Annotated[list[MessageFacts], Field(max_length=100_000)] = []
    facts: _sheet(OF_ROUND) = {}  # type: ignore[valid-type] # a type that is made from the table of facts


class RoundRef(_Table):
    """A round's own file."""

    index: Index
    file: RoundFile
    sha256: Sha256
    bytes: Length


class Manifest(_Table):
    """`manifest.json`."""

    format: Literal[2] = FORMAT
    sha256: Sha256 = UNSIGNED
    """Of the file's own bytes, with these 64 digits as zeros."""
    fedglass: Words
    writer: Text = "recorder"
    """Who recorded: `server`, a client's name, ..."""
    facts: _sheet(OF_FEDERATION) = {}  # type: ignore[valid-type] # a type that is made from the table of facts
    clients: Annotated[list[Text], Field(max_length=100_000)] = []
    """In the order in which they were first met."""
    always: Annotated[dict[Text, _sheet(OF_CLIENT)], Field(max_length=100_000)] = {}  # type: ignore[valid-type] # as above
    """Facts of clients that hold in every round."""
    rounds: Annotated[list[RoundRef], Field(max_length=100_000)] = []


def sheet(facts: Any) -> FactSheet:
    """Return the facts of a table as a sheet: pydantic knows the type, a type checker does not."""
    typed: FactSheet = facts
    return typed


def signed(manifest: Manifest) -> str:
    """Return the text of a manifest with its own digest in it."""
    text = manifest.model_copy(update={"sha256": UNSIGNED}).model_dump_json(indent=1) + "\n"
    return text.replace(UNSIGNED, hashlib.sha256(text.encode()).hexdigest(), 1)


def is_signed(data: bytes, claimed: str) -> bool:
    """Check that the manifest's bytes are those that it was signed with.

    >>> data = signed(Manifest(fedglass="1")).encode()
    >>> is_signed(data, Manifest.model_validate_json(data).sha256), is_signed(data + b" ", "0" * 64)
    (True, False)
    """
    return re.fullmatch(r"[0-9a-f]{64}", claimed) is not None and (
        hashlib.sha256(data.replace(claimed.encode(), UNSIGNED.encode(), 1)).hexdigest() == claimed
    )
