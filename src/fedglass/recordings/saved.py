"""The manifest of a saved transcript: what is in which file, checked before anything is believed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from fedglass import __version__
from fedglass.core.errors import DataError, FedglassError, UsageError
from fedglass.core.files import make_folder, read_file, write_atomic
from fedglass.core.optimisers import OPTIMISERS
from fedglass.core.tensors import Params, buffers_of, weights_of
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.federation.transcript import Message, Participant, Round, Terms, Transcript
from fedglass.federation.truth import BatchLabels, Examples, Truths
from fedglass.recordings.format import MOST_BYTES
from fedglass.recordings.truth_files import FACTS as TRUTH_FACTS
from fedglass.recordings.truth_files import TENSORS as TRUTH
from fedglass.recordings.truth_files import write_truths

FORMAT: Literal[1] = 1

Text = Annotated[str, StringConstraints(max_length=2000)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z_.-]{1,100}$")]
Count = Annotated[int, Field(ge=1)]
Names = Annotated[list[Text], Field(max_length=100_000)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Held(_Table):
    """A file of tensors and what it must be."""

    file: FileName
    sha256: Sha256


class OptimiserFacts(_Table):
    """An optimiser by name, with its options."""

    name: Text
    options: dict[Text, float | bool | list[float]] = {}

    @classmethod
    def of(cls, training: Training) -> OptimiserFacts:
        kind = next((name for name, made in OPTIMISERS.items() if made is type(training.optimiser)), None)
        if kind is None:
            raise UsageError(
                f"A transcript can not name the optimiser {training.optimiser!r}, expected one of "
                f"{', '.join(OPTIMISERS)}: save it without the clients' training."
            )
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(training.optimiser).items()}
        return cls(name=kind, options=plain)

    def value(self) -> Any:
        if self.name not in OPTIMISERS:
            raise ValueError(f"unknown optimiser {self.name!r}, expected one of {', '.join(OPTIMISERS)}")
        plain = {name: tuple(v) if isinstance(v, list) else v for name, v in self.options.items()}
        return OPTIMISERS[self.name](**plain)


class TrainingFacts(_Table):
    """A client's training as it was declared."""

    lr: float
    epochs: Count
    batch_size: Count | None
    batch_norm: Literal["frozen", "batch"]
    optimiser: OptimiserFacts
    shuffle: bool
    steps: Count | None
    clip: float | None
    label_smoothing: float

    @classmethod
    def of(cls, training: Training) -> TrainingFacts:
        told = {"batch_norm": training.batch_norm.value, "optimiser": OptimiserFacts.of(training)}
        return cls.model_validate({**vars(training), **told})

    def value(self) -> Training:
        told = {"batch_norm": BatchNorm(self.batch_norm), "optimiser": self.optimiser.value()}
        return Training(**{**dict(self), **told})


class ParticipantFacts(_Table):
    """A participant of a round."""

    name: Text
    examples: Count
    training: TrainingFacts | None
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    steps: Count | None
    weight: Count | None = None
    known_as: Text = ""
    counted: bool = True
    untrained: Names = []

    @classmethod
    def of(cls, known: Participant) -> ParticipantFacts:
        training = None if known.training is None else TrainingFacts.of(known.training)
        return cls.model_validate({**vars(known), "training": training, "untrained": list(known.untrained)})

    def value(self) -> Participant:
        training = None if self.training is None else self.training.value()
        return Participant(**{**dict(self), "training": training, "untrained": tuple(self.untrained)})


class RoundFacts(_Table):
    """A round: its own file, and one of each message."""

    index: Annotated[int, Field(ge=0)]
    models: Held
    participants: Annotated[list[ParticipantFacts], Field(min_length=1, max_length=100_000)]
    messages: dict[Text, Held]
    kept: Names


class TermsFacts(_Table):
    """What everybody in the federation knows."""

    shape: tuple[Count, Count, Count]
    classes: Annotated[int, Field(ge=2)]
    mean: list[float]
    std: list[float]
    clients: Names
    rule: Text
    class_names: Names | None
    defences: dict[Text, Names] | None
    behaviours: Names

    @classmethod
    def of(cls, terms: Terms) -> TermsFacts:
        facts = asdict(terms)
        whitening = facts.pop("whitening")
        return cls.model_validate({**facts, "mean": list(whitening["mean"]), "std": list(whitening["std"])})

    def value(self) -> Terms:
        return Terms(
            self.shape,
            self.classes,
            Whitening(tuple(self.mean), tuple(self.std)),
            tuple(self.clients),
            self.rule,
            None if self.class_names is None else tuple(self.class_names),
            None if self.defences is None else {name: tuple(words) for name, words in self.defences.items()},
            tuple(self.behaviours),
        )


class Manifest(_Table):
    """`manifest.json`."""

    format: Literal[1] = FORMAT
    fedglass: Text
    origin: Text
    terms: TermsFacts
    rounds: Annotated[list[RoundFacts], Field(min_length=1, max_length=100_000)]


def facts_of(index: int, past: Round, models: Held, messages: dict[str, Held]) -> RoundFacts:
    """One round of a manifest."""
    people = [ParticipantFacts.of(p) for p in past.participants]
    return RoundFacts(index=index, models=models, participants=people, messages=messages, kept=list(past.accepted))


# Transcripts and truths on disk: safetensors and JSON, no pickle, every file with its hash in the manifest.


MANIFEST = "manifest.json"
LONGEST = 64 * 2**20
"""Bytes of a manifest, and of what a file of tensors holds beside these."""
SEPARATOR = "/"
"""Between the part of a round and a tensor's own name."""


def save_transcript(transcript: Transcript, directory: Path) -> None:
    """Write one file for each round and message, and last the manifest: a crash leaves no half of a transcript."""
    make_folder(directory)
    rounds = []
    for index, past in sorted(transcript.rounds.items()):
        _check_storable(past, index)
        parts = {"before": past.before, "buffers": past.buffers, "step": past.step, "after": past.buffers_after}
        models = _store(directory, f"round-{index:05}.safetensors", parts)
        messages = {
            m.client: _store(
                directory, f"round-{index:05}-{i:05}.safetensors", {"update": m.update, "buffers": m.buffers}
            )
            for i, m in enumerate(past.messages)
        }
        rounds.append(facts_of(index, past, models, messages))
    terms = TermsFacts.of(transcript.terms)
    manifest = Manifest(fedglass=__version__, origin=transcript.origin, terms=terms, rounds=rounds)
    write_atomic(directory / MANIFEST, manifest.model_dump_json(indent=1) + "\n")


def _check_storable(past: Round, index: int) -> None:
    others = past.clients_with_own_model([message.client for message in past.messages])
    if others:
        raise UsageError(
            f"A saved transcript has one model for each round, and {others[0]!r} was sent one of its own in round "
            f"{index}: keep the bundle that it was read from."
        )


def load_transcript(directory: Path, model: nn.Module) -> Transcript:
    """The transcript of a directory; `model` is the architecture, which no file can bring along."""
    manifest = saved_manifest(directory)
    rounds = {facts.index: _round(directory, facts, model) for facts in manifest.rounds}
    _check_order(directory, rounds)
    return Transcript(model, _terms(directory / MANIFEST, manifest.terms), rounds, manifest.origin)


def saved_manifest(directory: Path) -> Manifest:
    """What a directory is said to hold."""
    manifest = _manifest(directory / MANIFEST)
    _check_names(directory / MANIFEST, manifest)
    for facts in manifest.rounds:
        _check_people(directory / MANIFEST, facts)
    return manifest


def _check_people(path: Path, facts: RoundFacts) -> None:
    present = [p.name for p in facts.participants]
    strangers = [name for name in (*facts.messages, *facts.kept) if name not in present]
    if strangers or len(set(present)) != len(present):
        raise DataError(
            f"{path}: round {facts.index} names {strangers[:1] or 'a participant twice'}, expected messages of its "
            "participants, each once: save the transcript again."
        )


def saved_parts(directory: Path, held: Held, *needed: str) -> dict[str, dict[str, Tensor]]:
    """The parts of a file as it has them, whatever the model; those that are needed must be there."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, tensor in _tensors(directory, held).items():
        part, _, name = key.partition(SEPARATOR)
        found.setdefault(part, {})[name] = tensor
    lacking = [part for part in needed if part not in found]
    if lacking:
        raise DataError(f"{directory / held.file} holds no {lacking[0]!r}: save the transcript again.")
    return found


def save_truths(truths: Truths, directory: Path) -> None:
    """Write the private side, for the eyes of its owner alone."""
    make_folder(directory)
    examples = {name: (own.images, own.labels) for name, own in truths.examples.items()}
    write_truths(directory, examples, truths.batch_labels, truths.taken, truths.order)


def load_truths(directory: Path) -> Truths:
    """What `save_truths` wrote."""
    path = directory / TRUTH_FACTS
    try:
        facts = json.loads(_read(path, LONGEST))
        clients, told = [str(name) for name in facts["clients"]], facts["batch_labels"]
        tensors = _tensors(directory, Held(file=TRUTH, sha256=facts["sha256"]))
        examples = {
            name: Examples(tensors[f"{i}{SEPARATOR}images"], tensors[f"{i}{SEPARATOR}labels"])
            for i, name in enumerate(clients)
        }
        batch_labels = {(int(entry["round"]), str(entry["client"])): _labels(entry["batches"]) for entry in told}
        rows = {(int(e["round"]), str(e["client"])): tuple(map(int, e["rows"])) for e in facts.get("taken", [])}
        order = {(int(e["round"]), str(e["client"])): _labels(e["batches"]) for e in facts.get("order", [])}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is not a sidecar of truths ({_first(error)}): save the truths again.") from error
    for (_, client), taken in rows.items():
        count = len(examples[client].labels) if client in examples else 0
        if not taken or not all(0 <= row < count for row in taken):
            raise DataError(f"{path}: rows of {client!r} must lie in its {count} examples: save the truths again.")
    for (turn, client), batches in order.items():
        count = len(examples[client].labels) if client in examples else 0
        may = set(rows.get((turn, client), range(count)))
        if not batches or not all(batch and may.issuperset(batch) for batch in batches):
            raise DataError(f"{path}: batches of {client!r} must be rows that it trained on: save the truths again.")
    return Truths(examples, batch_labels, rows, order)


def _labels(batches: list[list[int]]) -> BatchLabels:
    return tuple(tuple(int(label) for label in batch) for batch in batches)


def _manifest(path: Path) -> Manifest:
    text = _read(path, LONGEST)
    try:
        found = json.loads(text)
        newer = isinstance(found, dict) and isinstance(found.get("format"), int) and found["format"] > FORMAT
        if newer:
            raise DataError(
                f"{path} has format {found['format']}, expected at most {FORMAT}: a newer fedglass wrote it, use that."
            )
        return Manifest.model_validate(found)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is not the manifest of a transcript ({_first(error)}): it is damaged or of another kind; save the "
            "transcript again."
        ) from error


def _check_names(path: Path, manifest: Manifest) -> None:
    """Every round and every client comes once."""
    rounds, clients = [str(facts.index) for facts in manifest.rounds], manifest.terms.clients
    twice = next((name for names in (rounds, clients) for name, n in Counter(names).items() if n > 1), None)
    if twice is not None:
        raise DataError(
            f"{path} names {twice!r} twice, expected each round and each client once: save the transcript again."
        )


def _terms(path: Path, facts: TermsFacts) -> Terms:
    try:
        terms = facts.value()
    except FedglassError as error:
        raise DataError(f"{path}: {error}") from error
    if len(terms.whitening.mean) not in (1, terms.shape[0]):
        raise DataError(
            f"{path}: the whitening has {len(terms.whitening.mean)} means, expected one for each of the "
            f"{terms.shape[0]} channels: save the transcript again."
        )
    return terms


def _round(directory: Path, facts: RoundFacts, model: nn.Module) -> Round:
    weights, buffers = weights_of(model), buffers_of(model)
    like = {"before": weights, "buffers": buffers, "step": weights, "after": buffers}
    models = _parts(directory, facts.models, like, optional="after")
    messages = []
    for client, held in facts.messages.items():
        parts = _parts(directory, held, {"update": weights, "buffers": buffers}, optional="buffers")
        messages.append(Message(client, parts["update"], parts["buffers"]))
    try:
        participants = tuple(p.value() for p in facts.participants)
    except (FedglassError, ValueError, TypeError) as error:
        raise DataError(f"{directory / MANIFEST}: round {facts.index}: {error}") from error
    return Round(
        models["before"],
        models["buffers"],
        participants,
        tuple(messages),
        models["step"],
        models["after"],
        tuple(facts.kept),
    )


def _check_order(directory: Path, rounds: Mapping[int, Round]) -> None:
    """A round starts where the one before it ended, but for the rounding of a step that was taken from two models."""
    for index, past in rounds.items():
        following = rounds.get(index + 1)
        if following is not None and not all(_continues(past, following, name) for name in past.before):
            raise DataError(
                f"{directory}: round {index + 1} does not start where round {index} ended: files of different "
                "rounds or federations were mixed; save the transcript again."
            )


def _continues(past: Round, following: Round, name: str) -> bool:
    before, step = past.before[name], past.step[name]
    after, found = (tensor.nan_to_num() for tensor in (before + step, following.before[name]))
    if torch.equal(after, found):
        return True
    size = torch.maximum(before.abs(), after.abs())
    return bool(((after - found).abs() <= 2 * torch.finfo(after.dtype).eps * size).all())


def _store(directory: Path, name: str, parts: Mapping[str, Params]) -> Held:
    tensors = {
        f"{part}{SEPARATOR}{key}": tensor.detach().cpu().contiguous().clone()
        for part, params in parts.items()
        for key, tensor in params.items()
    }
    data = save(tensors)
    write_atomic(directory / name, data)
    return Held(file=name, sha256=_sha256(data))


def _parts(directory: Path, held: Held, like: Mapping[str, Params], *, optional: str) -> dict[str, dict[str, Tensor]]:
    """The named parts of a file, of just the names, shapes and types that the model has; one may be left out."""
    most = LONGEST + sum(t.numel() * t.element_size() for params in like.values() for t in params.values())
    tensors = _tensors(directory, held, most)
    if not any(name.startswith(f"{optional}{SEPARATOR}") for name in tensors):
        like = {**like, optional: {}}
    wanted = {f"{part}{SEPARATOR}{key}": (part, key) for part, params in like.items() for key in params}
    odd = sorted(set(wanted) ^ set(tensors))
    for name, (part, key) in wanted.items():
        model = like[part][key]
        if name in tensors and (tensors[name].shape != model.shape or tensors[name].dtype != model.dtype):
            odd.append(name)
    if odd:
        raise DataError(
            f"{directory / held.file} does not fit the model at {odd[0]!r} ({len(odd)} such): load the transcript with "
            "the architecture that it was recorded from."
        )
    found: dict[str, dict[str, Tensor]] = {part: {} for part in like}
    for name, (part, key) in wanted.items():
        found[part][key] = tensors[name]
    return found


def _tensors(directory: Path, held: Held, most: int = MOST_BYTES) -> dict[str, Tensor]:
    path = directory / held.file
    data = _read(path, most)
    if _sha256(data) != held.sha256:
        raise DataError(f"{path} is not the file that the manifest names (other SHA-256): restore it or save again.")
    try:
        return load(data)
    except SafetensorError as error:
        raise DataError(f"{path} can not be read as safetensors ({error}): save the transcript again.") from error


def _read(path: Path, most: int) -> bytes:
    try:
        return read_file(path, most)
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}; name the directory of a saved transcript.") from error


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _first(error: BaseException) -> str:
    """The first problem in a few words."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"{type(error).__name__}: {error}"[:200]
