"""The JSON of a bundle: `manifest.json`, which anchors every other file by its digest, and one file for each round."""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from fedglass.bundle.facts import OF_CLIENT, OF_FEDERATION, OF_ROUND, Facts, FactSheet, Text, Words

FORMAT: Literal[2] = 2
"""1 is a transcript that was saved whole (`fedglass.rounds.storage`)."""
MANIFEST = "manifest.json"
UNSIGNED = "0" * 64
MOST_BYTES = 16 * 2**30
"""Of one file."""
DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")
"""That an array may have, as safetensors calls them."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
TensorFile = Annotated[str, StringConstraints(pattern=r"^round-[0-9]{5,9}-[a-z]{4,10}(-[0-9]{5,9})?\.safetensors$")]
RoundFile = Annotated[str, StringConstraints(pattern=r"^round-[0-9]{5,9}-[0-9]{4,9}\.json$")]
Index = Annotated[int, Field(ge=0, lt=10**9)]
Length = Annotated[int, Field(ge=0, le=2**40)]
Side = Annotated[int, Field(ge=0, le=2**40)]
Key = Annotated[str, StringConstraints(max_length=500)]


def _sheet(facts: Facts) -> Any:
    return Annotated[dict[Key, dict[Text, Any]], Field(max_length=1000), AfterValidator(facts.checked)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ArrayFacts(_Table):
    """One tensor of a file."""

    name: Key
    dtype: Literal[DTYPES]  # type: ignore[valid-type] # a tuple of literals, as Literal takes it
    shape: Annotated[list[Side], Field(max_length=16)]


class Held(_Table):
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
    received: Held | None = None
    """What the server got; None where that was not seen."""
    sent: Held | None = None
    """What this client was sent, where that is not what all were."""
    absent: Words | None = None
    """Why it was called and sent nothing."""
    facts: _sheet(OF_CLIENT) = {}  # type: ignore[valid-type] # a type that is made from the table of facts


class RoundFacts(_Table):
    """One round."""

    index: Index
    sent: Held | None = None
    aggregated: Held | None = None
    messages: Annotated[list[MessageFacts], Field(max_length=100_000)] = []
    facts: _sheet(OF_ROUND) = {}  # type: ignore[valid-type] # a type that is made from the table of facts


class Listed(_Table):
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
    rounds: Annotated[list[Listed], Field(max_length=100_000)] = []


def sheet(told: Any) -> FactSheet:
    """A sheet of facts out of a table, whose type pydantic knows and a type checker does not."""
    found: FactSheet = told
    return found


def signed(manifest: Manifest) -> str:
    """The text of a manifest with its own digest in it."""
    text = manifest.model_copy(update={"sha256": UNSIGNED}).model_dump_json(indent=1) + "\n"
    return text.replace(UNSIGNED, hashlib.sha256(text.encode()).hexdigest(), 1)


def is_signed(data: bytes, claimed: str) -> bool:
    """Whether the manifest's bytes are those that it was signed with.

    >>> data = signed(Manifest(fedglass="1")).encode()
    >>> is_signed(data, Manifest.model_validate_json(data).sha256), is_signed(data + b" ", "0" * 64)
    (True, False)
    """
    return re.fullmatch(r"[0-9a-f]{64}", claimed) is not None and (
        hashlib.sha256(data.replace(claimed.encode(), UNSIGNED.encode(), 1)).hexdigest() == claimed
    )
