"""Reads a bundle with every check: what is returned is whole, and what it says of itself holds."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedglass.core.errors import DataError
from fedglass.recordings.files import DTYPE_NAMES, read_at_most, read_exactly
from fedglass.recordings.format import (
    FORMAT,
    MANIFEST,
    MOST_BYTES,
    FactSheet,
    FileRef,
    Manifest,
    MessageFacts,
    RoundFacts,
    RoundRef,
    is_signed,
    overlay,
    sheet,
)

MOST_JSON_BYTES = 64 * 2**20
"""Bytes of a JSON file."""
T = TypeVar("T", bound=BaseModel)


@dataclass(frozen=True, eq=False)
class Bundle:
    """What was recorded of a federation; tensors are read when they are asked for."""

    folder: Path
    manifest: Manifest
    rounds: Mapping[int, RoundFacts]

    @property
    def facts(self) -> FactSheet:
        """Of the whole federation."""
        return sheet(self.manifest.facts)

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.manifest.clients)

    def message(self, client: str, index: int) -> MessageFacts | None:
        """What is known of a client in a round."""
        return next((m for m in self.rounds[index].messages if m.client == client), None)

    def of(self, client: str) -> dict[int, MessageFacts]:
        """All rounds of a client, whether it sent anything or not."""
        found = {index: self.message(client, index) for index in self.rounds}
        return {index: message for index, message in found.items() if message is not None}

    def facts_of(self, client: str, index: int) -> FactSheet:
        """What is told of a client in a round: what holds always, and over it what was told of that round."""
        message = self.message(client, index)
        always = sheet(self.manifest.always.get(client, {}))
        return always if message is None else overlay(always, sheet(message.facts))

    def arrays(self, held: FileRef) -> dict[str, Tensor]:
        """The tensors of a file, in the order in which they were sent."""
        return read_tensors(self.folder, held)


def read_index(folder: Path) -> tuple[Manifest, dict[int, RoundFacts]]:
    """The JSON of a bundle, checked; its tensors are not looked at."""
    manifest = _manifest(folder / MANIFEST)
    _each_once(folder / MANIFEST, "round", [str(each.index) for each in manifest.rounds])
    _each_once(folder / MANIFEST, "client", manifest.clients)
    strangers = [name for name in manifest.always if name not in manifest.clients]
    if strangers:
        _refuse(folder / MANIFEST, f"tells of {strangers[0]!r}, which is none of its clients")
    rounds = {each.index: _round(folder, each, manifest.clients) for each in manifest.rounds}
    return manifest, rounds


def read_tensors(folder: Path, held: FileRef) -> dict[str, Tensor]:
    """The tensors of a file, whose digest, names, types and shapes must be those that the manifest tells."""
    path = folder / held.file
    if held.bytes > MOST_BYTES:
        _refuse(path, f"is said to have {held.bytes} bytes, expected at most {MOST_BYTES}")
    data = read_exactly(path, held.bytes, held.sha256)
    try:
        found = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, RuntimeError) as error:
        raise DataError(f"{path} can not be read as safetensors ({_first(error)}): record it again.") from error
    told = {array.name: (array.dtype, tuple(array.shape)) for array in held.arrays}
    _each_once(path, "array", [array.name for array in held.arrays])
    held_by_file = {name: (DTYPE_NAMES.get(tensor.dtype), tuple(tensor.shape)) for name, tensor in found.items()}
    odd = [name for name in {**told, **held_by_file} if told.get(name) != held_by_file.get(name)]
    if odd:
        _refuse(path, f"holds other arrays than the bundle tells, such as {odd[0][:100]!r}")
    return {name: found[name] for name in told}


def files_of(past: RoundFacts) -> Iterator[FileRef]:
    """All files of a round."""
    own = [held for message in past.messages for held in (message.sent, message.received)]
    yield from (held for held in (past.sent, *own, past.aggregated) if held is not None)


def _manifest(path: Path) -> Manifest:
    data = read_at_most(path, most=MOST_JSON_BYTES)
    found = _json(path, data)
    version = found.get("format") if isinstance(found, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise DataError(
            f"{path} has format {version}, expected at most {FORMAT}: a newer fedglass recorded it; install that one."
        )
    if version == 1:
        raise DataError(
            f"{path} is that of a transcript which was saved whole (format 1), not of a recording: make a bundle of it "
            f"with `fedglass join NEW {path.parent}`, or load it with Transcript.load and audit it in Python."
        )
    if type(version) is not int:  # 2.0 is equal to 2, and no version
        _refuse(path, f"has the format {str(version)[:50]!r}, expected {FORMAT}")
    manifest = _valid(path, Manifest, found)
    if not is_signed(data, manifest.sha256):
        _refuse(path, "was changed after it was recorded (other SHA-256)")
    return manifest


def _round(folder: Path, listed: RoundRef, clients: list[str]) -> RoundFacts:
    path = folder / listed.file
    if listed.bytes > MOST_JSON_BYTES:
        _refuse(path, f"is said to have {listed.bytes} bytes, expected at most {MOST_JSON_BYTES}")
    data = read_exactly(path, listed.bytes, listed.sha256)
    past = _valid(path, RoundFacts, _json(path, data))
    if past.index != listed.index or not listed.file.startswith(f"round-{past.index:05}-"):
        _refuse(path, f"is that of round {past.index}, expected round {listed.index}")
    _each_once(path, "client", [message.client for message in past.messages])
    for message in past.messages:
        _check_message(path, past.index, message, clients)
    for held, name in ((past.sent, "sent"), (past.aggregated, "aggregated")):
        _check_name(path, held, f"round-{past.index:05}-{name}.safetensors")
    strangers = [name for told in past.facts.get("kept", {}).values() for name in told if name not in _names(past)]
    if strangers:
        _refuse(path, f"says that the rule kept {strangers[0]!r}, which took no part in the round")
    return past


def _names(past: RoundFacts) -> list[str]:
    return [message.client for message in past.messages]


def _check_message(path: Path, index: int, message: MessageFacts, clients: list[str]) -> None:
    if message.client not in clients:
        _refuse(path, f"tells of {message.client!r}, which is none of the bundle's clients")
    position = clients.index(message.client)
    _check_name(path, message.received, f"round-{index:05}-client-{position:05}.safetensors")
    _check_name(path, message.sent, f"round-{index:05}-sent-{position:05}.safetensors")
    if message.absent is not None and message.received is not None:
        _refuse(path, f"says that {message.client!r} was absent, and has its message")


def _check_name(path: Path, held: FileRef | None, expected: str) -> None:
    """A file has the name of its round and client: one of another can not take its place."""
    if held is not None and held.file != expected:
        _refuse(path, f"names {held.file!r}, expected {expected!r}")


def _json(path: Path, data: bytes) -> Any:
    try:
        return json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not the JSON of a bundle ({_first(error)}): copy the bundle again.") from error


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _valid(path: Path, kind: type[T], found: Any) -> T:
    try:
        return kind.model_validate(found)
    except (ValidationError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not the JSON of a bundle ({_first(error)}): record it again.") from error


def _each_once(path: Path, what: str, names: list[str]) -> None:
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        _refuse(path, f"names the {what} {twice[:100]!r} twice")


def _refuse(path: Path, what: str) -> NoReturn:
    raise DataError(f"{path} {what}: the bundle is damaged or was put together wrongly; copy it again, or record anew.")


def _first(error: BaseException) -> str:
    """The first problem in a few words."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]
    return f"{type(error).__name__}: {error}"[:200]


# Opens a bundle: all files are there and are those that were recorded, and each round starts where the last ended.


def read_bundle(folder: str | Path) -> Bundle:
    """The bundle in a folder, every file of it checked."""
    place = Path(folder)
    if not place.is_dir():
        raise DataError(f"{place} is no folder, expected that of a bundle: name the folder that was recorded.")
    _check_recorded(place)
    manifest, rounds = read_index(place)
    bundle = Bundle(place, manifest, dict(sorted(rounds.items())))
    for past in bundle.rounds.values():
        _check_round(bundle, past)
    for index in bundle.rounds:
        _check_continues(bundle, index)
    return bundle


def _check_recorded(place: Path) -> None:
    """Refuse a folder that nobody recorded to; the one above it, or beside it, is named easily in its place."""
    try:
        names = os.listdir(place)
    except OSError:
        return  # said of the file that can not be opened
    if MANIFEST in names or any(name.startswith("round-") for name in names):
        return
    near = sorted(name for name in names if os.path.isfile(place / name / MANIFEST))
    such = f", such as {place / near[0]}" if near else ""
    raise DataError(f"{place} holds no bundle: name the folder that was recorded{such}.")


def _check_round(bundle: Bundle, past: RoundFacts) -> None:
    """Every file is read once; what has the same name has the same shape in all of them."""
    shapes: dict[str, tuple[int, ...]] = {}
    for held in files_of(past):
        read_tensors(bundle.folder, held)
        for array in held.arrays:
            shape = tuple(array.shape)
            if shapes.setdefault(array.name, shape) != shape:
                raise DataError(
                    f"{bundle.folder / held.file}: {array.name[:100]!r} has shape {shape}, expected "
                    f"{shapes[array.name]} as in the rest of round {past.index}: models were mixed; record anew."
                )


def _check_continues(bundle: Bundle, index: int) -> None:
    """out(t) = in(t + 1), where both were recorded."""
    past, following = bundle.rounds[index], bundle.rounds.get(index + 1)
    if past.aggregated is None or following is None or following.sent is None:
        return
    after, found = bundle.arrays(past.aggregated), bundle.arrays(following.sent)
    if past.aggregated.form == "update":
        if past.sent is None:
            return
        after = _added(bundle.arrays(past.sent), after)
    odd = [name for name in {**after, **found} if name not in after or name not in found]
    odd += [name for name in after if name in found and not equal_up_to_rounding(after[name], found[name])]
    if odd:
        raise DataError(
            f"{bundle.folder}: round {index + 1} does not start where round {index} ended, at {odd[0][:100]!r}: rounds "
            "were mixed, or before and after swapped; record anew."
        )


def _added(before: dict[str, Tensor], step: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: b + step[name] if name in step else b for name, b in before.items()}


def equal_up_to_rounding(one: Tensor, other: Tensor) -> bool:
    """Equal but for the rounding of a sum, and of the types in which both were sent."""
    if one.shape != other.shape:
        return False
    coarse = max((_grain(t) for t in (one, other)), default=0.0)
    a, b = one.double().nan_to_num(nan=0.123), other.double().nan_to_num(nan=0.123)
    size = torch.maximum(a.abs(), b.abs())
    return bool(((a - b).abs() <= 4 * coarse * size).all())


def _grain(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0.0
