"""Canaries of a recording: the fact in the bundle, and the keys that stay with the auditor.

A bundle says how many canaries a message holds, and a commitment to their key. The key gives directions and coins. It
is drawn from the system's random numbers when the training begins, and is stored next to the bundle, never in it: who
knows it could take the canaries out again, or treat them in another way than data. It tells nothing of the data or of
the noise. The commitment shows that the coins were not chosen afterwards.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from fedglass.core.errors import DataError, UsageError
from fedglass.core.files import make_folder, write_atomic
from fedglass.fl.canaries import Canaries
from fedglass.recordings.facts import RESERVATION_IDS, RESERVATIONS, preferred
from fedglass.recordings.format import read_at_most
from fedglass.recordings.reader import Bundle
from fedglass.recordings.writer import BundleWriter

CANARIES = "x-canaries"
"""Of a client in a round: how many canaries its message holds, what they are, and a commitment to their key."""
FOLDER = "-canaries"
"""The end of the name of the folder next to a bundle that holds the keys."""
INSERTED = "Canaries were inserted into the training, so that the message holds more than the data."
LONGEST = 10 * 2**20
Unit = Literal["example", "update"]
Digest = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=1, le=10_000_000)]


class CanaryFact(BaseModel, frozen=True, extra="forbid", strict=True):
    """What a bundle says of the canaries in a message."""

    count: Count
    unit: Unit
    commitment: Digest


class CanaryKey(BaseModel, frozen=True, extra="forbid", strict=True):
    """Seed, number and kind of the canaries in one message; the names are those of the tensors that hold them."""

    seed: Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]
    count: Count
    unit: Unit
    names: Annotated[list[str], Field(max_length=100_000)] = []

    @classmethod
    def drawn(cls, count: int, unit: Unit) -> CanaryKey:
        """Return a new key that no one can predict."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UsageError(f"canaries must be a whole number of at least 1, or 0 for none, got {count!r}.")
        return cls(seed=secrets.token_hex(16), count=count, unit=unit)

    @property
    def canaries(self) -> Canaries:
        """The canaries that follow from the key."""
        return Canaries(int(self.seed, 16), self.count)

    def commitment(self, client: str, index: int) -> str:
        """Return a digest by which the key of a message can be recognised, and nothing else."""
        text = "\n".join([self.seed, str(self.count), self.unit, str(index), client, *self.names])
        return hashlib.sha256(text.encode()).hexdigest()


class KeyFile(BaseModel, frozen=True, extra="forbid", strict=True):
    """The keys of a client, by round."""

    format: Literal[1] = 1
    client: str
    rounds: dict[str, CanaryKey] = {}


def store_key(writer: BundleWriter, path: Path, client: str, index: int, key: CanaryKey) -> None:
    """Write a key to the file of a client's keys, and its commitment to the bundle."""
    keys = _read(path) if path.exists() else KeyFile(client=client)
    make_folder(path.parent)
    write_atomic(path, keys.model_copy(update={"rounds": {**keys.rounds, str(index): key}}).model_dump_json() + "\n")
    fact = CanaryFact(count=key.count, unit=key.unit, commitment=key.commitment(client, index))
    known = writer.round(index).message(client).facts
    facts = {
        CANARIES: fact.model_dump(),
        RESERVATIONS: [*preferred(known, RESERVATIONS, []), INSERTED],
        RESERVATION_IDS: [*preferred(known, RESERVATION_IDS, []), "canaries"],
    }
    writer.training(client, index, facts, source="read")


def keys_folder(folder: str | Path) -> Path:
    """Return the folder of the keys that belong to a bundle."""
    place = Path(folder)
    return place.with_name(place.name + FOLDER)


def messages_with_canaries(bundle: Bundle, folder: Path) -> Iterator[tuple[str, int, CanaryKey]]:
    """Yield client, round and key of each message that holds canaries; a key must be the one that was committed to."""
    facts = dict(_facts(bundle))
    if not facts:
        raise UsageError(
            f"{bundle.folder} holds no canaries, which a lower bound on epsilon needs: record with canaries=1000."
        )
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder, expected the keys of the canaries: name it with --keys.")
    files = (_read(path) for path in sorted(folder.glob("*.json")))
    keys = {(file.client, int(index)): key for file in files for index, key in file.rounds.items()}
    for (client, index), fact in facts.items():
        key = keys.get((client, index))
        if key is None:
            raise DataError(f"{folder} lacks the key of {client!r} in round {index}: add the keys of all clients.")
        if key.commitment(client, index) != fact.commitment:
            raise DataError(
                f"{folder}: the key of {client!r} in round {index} is not the one of the recording: use the keys that "
                "were stored with it."
            )
        yield client, index, key


def _facts(bundle: Bundle) -> Iterator[tuple[tuple[str, int], CanaryFact]]:
    for index, round_ in bundle.rounds.items():
        for message in round_.messages:
            value = preferred(message.facts, CANARIES)
            if value is None or message.received is None:
                continue
            try:
                yield (message.client, index), CanaryFact.model_validate(value)
            except ValidationError as error:
                raise DataError(
                    f"{bundle.folder}: {CANARIES} of {message.client!r} is damaged: record again."
                ) from error


def _read(path: Path) -> KeyFile:
    try:
        file = KeyFile.model_validate_json(read_at_most(path, most=LONGEST))
        [int(index) for index in file.rounds]
    except ValueError as error:
        raise DataError(
            f"{path} is not a file of canary keys: name the folder that the recorder has written."
        ) from error
    return file
