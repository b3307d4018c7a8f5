"""Reader of bundles: `read_bundle` checks every file of a folder, and reads each file once.

The manifest has the digest of every other file. The bytes of a file are read, hashed and parsed in one go, so that no
other bytes are used than those that were checked. The arrays stay in memory up to `MOST_CACHED_BYTES` for each bundle;
of a larger one, the files that were used least recently are dropped, and read and checked again when they are needed.
"""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from fedglass.core.errors import DataError
from fedglass.core.files import parse_json
from fedglass.models.names import Names, names_of
from fedglass.recordings.facts import FactSheet, overlay, preferred
from fedglass.recordings.format import (
    DTYPE_NAMES,
    FORMAT,
    MANIFEST,
    MOST_BYTES,
    FileRef,
    Manifest,
    MessageFacts,
    RoundFacts,
    RoundRef,
    is_signed,
    read_at_most,
    read_exactly,
)

MOST_JSON_BYTES = 64 * 2**20
"""Bytes of a JSON file."""
MOST_CACHED_BYTES = 2 * 2**30
"""Bytes of arrays that are kept in memory for each bundle."""
T = TypeVar("T", bound=BaseModel)


@dataclass(eq=False)
class Bundle:
    """A recorded federation; its arrays are shared by all callers, and must not be changed in place."""

    folder: Path
    manifest: Manifest
    rounds: Mapping[int, RoundFacts]
    """In order, by the federation's own numbers."""
    most_cached_bytes: int = MOST_CACHED_BYTES
    _cached_bytes: int = field(default=0, init=False, repr=False)
    _cached: OrderedDict[str, tuple[int, dict[str, Tensor]]] = field(
        default_factory=OrderedDict, init=False, repr=False
    )
    """Size and arrays by file; the file that was used least recently comes first."""

    @property
    def facts(self) -> FactSheet:
        """The facts of the whole federation."""
        return self.manifest.facts

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.manifest.clients)

    @property
    def first_round(self) -> int:
        """The number of the federation's first round, recorded or not: some frameworks count from 0, others from 1."""
        return 0 if 0 in self.rounds else 1

    def message(self, client: str, index: int) -> MessageFacts | None:
        """Return the entry of a client in a round."""
        return next((m for m in self.rounds[index].messages if m.client == client), None)

    def facts_of(self, client: str, index: int) -> FactSheet:
        """Return the facts of a client in a round; those of the round override those of all rounds."""
        message = self.message(client, index)
        always = self.manifest.always.get(client, {})
        return always if message is None else overlay(always, message.facts)

    def received_from(self, client: str) -> dict[int, FileRef]:
        """Return the files of what the server got from a client, by round."""
        messages = ((index, self.message(client, index)) for index in self.rounds)
        return {index: m.received for index, m in messages if m is not None and m.received is not None}

    def defences_of(self, client: str, index: int) -> list[dict[str, Any]] | None:
        """Return the defences of a client in a round, or else those of the whole federation; None if unknown."""
        parts: list[dict[str, Any]] | None = preferred(
            self.facts_of(client, index), "defences", preferred(self.facts, "defences")
        )
        return parts

    def rule_of(self, index: int) -> dict[str, Any] | None:
        """Return the aggregation rule of a round, or else that of the whole federation; None if unknown."""
        rule: dict[str, Any] | None = preferred(self.rounds[index].facts, "rule", preferred(self.facts, "rule"))
        return rule

    def arrays(self, ref: FileRef) -> dict[str, Tensor]:
        """Return the tensors of a file, in the order in which they were sent."""
        if ref.file not in self._cached:
            self._cached[ref.file] = ref.bytes, read_tensors(self.folder, ref)
            self._cached_bytes += ref.bytes
        self._cached.move_to_end(ref.file)
        arrays = dict(self._cached[ref.file][1])
        while self._cached_bytes > self.most_cached_bytes:
            _, (dropped_bytes, _) = self._cached.popitem(last=False)
            self._cached_bytes -= dropped_bytes
        return arrays

    def names(self, ref: FileRef, model: nn.Module) -> Names:
        """Return how the names in a file lead to those of a model."""
        arrays = [(array.name, tuple(array.shape)) for array in ref.arrays]
        return names_of(arrays, model, str(self.folder / ref.file))


def read_bundle(folder: str | Path) -> Bundle:
    """Read the bundle in a folder, and check every file of it.

    All files are there and are those that were recorded, and each round starts where the last one ended.
    """
    place = Path(folder)
    if not place.is_dir():
        raise DataError(f"{place} is not a folder, expected that of a bundle: name the folder that was recorded.")
    _check_is_bundle(place)
    manifest, rounds = read_index(place)
    bundle = Bundle(place, manifest, dict(sorted(rounds.items())))
    for index, round_ in bundle.rounds.items():
        _check_shapes(bundle, round_)
        _check_continues(bundle, index - 1)
    return bundle


def read_index(folder: Path) -> tuple[Manifest, dict[int, RoundFacts]]:
    """Read and check the JSON files of a bundle, without its tensors."""
    path = folder / MANIFEST
    manifest = _read_manifest(path)
    _check_unique(path, "round", [str(ref.index) for ref in manifest.rounds])
    _check_unique(path, "client", manifest.clients)
    positions = {name: position for position, name in enumerate(manifest.clients)}
    unknown = [name for name in manifest.always if name not in positions]
    if unknown:
        _refuse(path, f"has facts of {unknown[0]!r}, which is not one of its clients")
    rounds = {ref.index: _read_round(folder, ref, positions) for ref in manifest.rounds}
    return manifest, rounds


def read_tensors(folder: Path, ref: FileRef) -> dict[str, Tensor]:
    """Read the tensors of a file, and check its digest and their names, types and shapes against the bundle's JSON."""
    path = folder / ref.file
    if ref.bytes > MOST_BYTES:
        _refuse(path, f"is said to have {ref.bytes} bytes, expected at most {MOST_BYTES}")
    data = read_exactly(path, ref.bytes, ref.sha256)
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, RuntimeError) as error:
        raise DataError(f"{path} cannot be read as safetensors ({first_problem(error)}): record it again.") from error
    _check_unique(path, "array", [array.name for array in ref.arrays])
    expected = {array.name: (array.dtype, tuple(array.shape)) for array in ref.arrays}
    present = {name: (DTYPE_NAMES.get(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()}
    wrong = [name for name in {**expected, **present} if expected.get(name) != present.get(name)]
    if wrong:
        _refuse(path, f"holds other arrays than the bundle names, such as {wrong[0][:100]!r}")
    return {name: tensors[name] for name in expected}


def files_of(round_: RoundFacts) -> Iterator[FileRef]:
    """Yield all tensor files of a round."""
    of_clients = [ref for message in round_.messages for ref in (message.sent, message.received)]
    yield from (ref for ref in (round_.sent, *of_clients, round_.aggregated) if ref is not None)


def present_clients(round_: RoundFacts) -> tuple[str, ...]:
    """Return the clients that sent something in a round."""
    return tuple(message.client for message in round_.messages if message.absent is None)


def aggregated_clients(round_: RoundFacts) -> tuple[str, ...]:
    """Return the clients in the aggregate of a round."""
    accepted = preferred(round_.facts, "kept")
    return tuple(name for name in present_clients(round_) if accepted is None or name in accepted)


def equal_up_to_rounding(one: Tensor, other: Tensor) -> bool:
    """Check that two tensors are equal but for the rounding of a sum, and of the types in which both were sent."""
    if one.shape != other.shape:
        return False
    coarsest = max(torch.finfo(t.dtype).eps if t.is_floating_point() else 0.0 for t in (one, other))
    a, b = one.double().nan_to_num(nan=0.123), other.double().nan_to_num(nan=0.123)
    size = torch.maximum(a.abs(), b.abs())
    return bool(((a - b).abs() <= 4 * coarsest * size).all())


def _check_is_bundle(place: Path) -> None:
    """Refuse a folder without a recording, and name a bundle inside it if there is one."""
    try:
        names = os.listdir(place)
    except OSError:
        return  # the file that cannot be opened is named later
    if MANIFEST in names or any(name.startswith("round-") for name in names):
        return
    nearby = sorted(name for name in names if os.path.isfile(place / name / MANIFEST))
    hint = f", such as {place / nearby[0]}" if nearby else ""
    raise DataError(f"{place} holds no bundle: name the folder that was recorded{hint}.")


def _check_shapes(bundle: Bundle, round_: RoundFacts) -> None:
    """Read every file of a round; arrays of the same name must have the same shape in all of them."""
    shapes: dict[str, tuple[int, ...]] = {}
    for ref in files_of(round_):
        bundle.arrays(ref)
        for array in ref.arrays:
            shape = tuple(array.shape)
            if shapes.setdefault(array.name, shape) != shape:
                raise DataError(
                    f"{bundle.folder / ref.file}: {array.name[:100]!r} has shape {shape}, expected "
                    f"{shapes[array.name]} as in the other files of round {round_.index}: models were mixed; record "
                    "it again."
                )


def _check_continues(bundle: Bundle, index: int) -> None:
    """Check that the model after a round is the one that the next round sent, if both were recorded."""
    round_, following = bundle.rounds.get(index), bundle.rounds.get(index + 1)
    if round_ is None or round_.aggregated is None or following is None or following.sent is None:
        return
    after, sent_next = bundle.arrays(round_.aggregated), bundle.arrays(following.sent)
    if round_.aggregated.form == "update":
        if round_.sent is None:
            return
        step, before = after, bundle.arrays(round_.sent)
        after = {name: tensor + step[name] if name in step else tensor for name, tensor in before.items()}
    wrong = [name for name in {**after, **sent_next} if name not in after or name not in sent_next]
    wrong += [n for n in after if n in sent_next and not equal_up_to_rounding(after[n], sent_next[n])]
    if wrong:
        raise DataError(
            f"{bundle.folder}: round {index + 1} does not start where round {index} ended, at {wrong[0][:100]!r}: "
            "rounds were mixed, or before and after swapped; record it again."
        )


def _read_manifest(path: Path) -> Manifest:
    data = read_at_most(path, most=MOST_JSON_BYTES)
    content = _parse_json(path, data)
    version = content.get("format") if isinstance(content, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise DataError(
            f"{path} has format {version}, expected at most {FORMAT}: a newer fedglass recorded it; install that one."
        )
    if version == 1:
        raise DataError(
            f"{path} is that of a saved transcript (format 1), not of a recording: make a bundle of it with `fedglass "
            f"join NEW {path.parent}`, or load it with Transcript.load and audit it in Python."
        )
    if type(version) is not int:  # 2.0 is equal to 2, and not a version
        _refuse(path, f"has the format {str(version)[:50]!r}, expected {FORMAT}")
    manifest = _validate(path, Manifest, content)
    if not is_signed(data, manifest.sha256):
        _refuse(path, "was changed after it was recorded (other SHA-256)")
    return manifest


def _read_round(folder: Path, ref: RoundRef, positions: Mapping[str, int]) -> RoundFacts:
    path = folder / ref.file
    if ref.bytes > MOST_JSON_BYTES:
        _refuse(path, f"is said to have {ref.bytes} bytes, expected at most {MOST_JSON_BYTES}")
    round_ = _validate(path, RoundFacts, _parse_json(path, read_exactly(path, ref.bytes, ref.sha256)))
    if round_.index != ref.index or not ref.file.startswith(f"round-{round_.index:05}-"):
        _refuse(path, f"is that of round {round_.index}, expected round {ref.index}")
    participants = [message.client for message in round_.messages]
    _check_unique(path, "client", participants)
    for message in round_.messages:
        if message.client not in positions:
            _refuse(path, f"has facts of {message.client!r}, which is not one of the bundle's clients")
        position = positions[message.client]
        _check_file_name(path, message.received, f"round-{round_.index:05}-client-{position:05}.safetensors")
        _check_file_name(path, message.sent, f"round-{round_.index:05}-sent-{position:05}.safetensors")
        if message.absent is not None and message.received is not None:
            _refuse(path, f"says that {message.client!r} was absent, and has its message")
    for tensors, name in ((round_.sent, "sent"), (round_.aggregated, "aggregated")):
        _check_file_name(path, tensors, f"round-{round_.index:05}-{name}.safetensors")
    present = set(participants)
    unknown = [name for accepted in round_.facts.get("kept", {}).values() for name in accepted if name not in present]
    if unknown:
        _refuse(path, f"says that the rule kept {unknown[0]!r}, which took no part in the round")
    return round_


def _check_file_name(path: Path, ref: FileRef | None, expected: str) -> None:
    """Check that a file has the name of its round and client: the file of another one cannot replace it."""
    if ref is not None and ref.file != expected:
        _refuse(path, f"names {ref.file!r}, expected {expected!r}")


def _parse_json(path: Path, data: bytes) -> Any:
    try:
        return parse_json(data)
    except ValueError as error:
        raise DataError(
            f"{path} is not the JSON of a bundle ({first_problem(error)}): copy the bundle again."
        ) from error


def _validate(path: Path, kind: type[T], content: Any) -> T:
    try:
        return kind.model_validate(content)
    except (ValidationError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not the JSON of a bundle ({first_problem(error)}): record it again.") from error


def _check_unique(path: Path, what: str, names: list[str]) -> None:
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        _refuse(path, f"names the {what} {twice[:100]!r} twice")


def _refuse(path: Path, what: str) -> NoReturn:
    raise DataError(
        f"{path} {what}: the bundle is damaged or was put together wrongly; copy it again, or record it again."
    )


def first_problem(error: BaseException) -> str:
    """Return the first problem in a few words."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]
    return f"{type(error).__name__}: {error}"[:200]
