"""Saved transcripts (format 1): safetensors and one JSON manifest with the digest of every file; no pickle.

`Transcript.save` and `Transcript.load` end here. A recording has format 2 (`fedglass.recordings.reader`); `fedglass
join` makes a bundle of a saved transcript.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from fedglass import __version__
from fedglass.core.errors import DataError, FedglassError, UsageError
from fedglass.core.files import make_folder, parse_json, read_file, write_atomic
from fedglass.core.losses import Loss
from fedglass.core.optimisers import OPTIMISERS
from fedglass.core.tensors import Params, buffers_of, weights_of
from fedglass.core.types import MOST_LOCAL_STEPS, BatchNorm, Training
from fedglass.federation.transcript import Message, Participant, Round, Terms, Transcript
from fedglass.fl.loss.targets import name_and_options, named_loss
from fedglass.recordings.facts import Part
from fedglass.recordings.format import MANIFEST, MOST_BYTES, Sha256, to_safetensors
from fedglass.recordings.reader import first_problem

FORMAT: Literal[1] = 1
LONGEST = 64 * 2**20
"""Bytes of a manifest, and of a file of tensors without the tensors."""
SEPARATOR = "/"
"""Separates the part of a round from a tensor's own name."""

Text = Annotated[str, StringConstraints(max_length=2000)]
FileName = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z_.-]{1,100}$")]
Count = Annotated[int, Field(ge=1, le=10**9)]
Names = Annotated[list[Text], Field(max_length=100_000)]


class SavedFile(BaseModel, frozen=True, extra="forbid"):
    """A file of tensors and its digest."""

    file: FileName
    sha256: Sha256


def _named_optimiser(optimiser: Any) -> Any:
    """Return the name and the options of an optimiser; what is read from a file has them already."""
    if isinstance(optimiser, dict | list | str | int | float | None):
        return optimiser
    name = next((name for name, kind in OPTIMISERS.items() if kind is type(optimiser)), None)
    if name is None:
        raise UsageError(
            f"A transcript cannot name the optimiser {optimiser!r}, expected one of {', '.join(OPTIMISERS)}: save it "
            "without the clients' training."
        )
    return {"name": name, "options": vars(optimiser)}


def _named_loss(loss: Any) -> Any:
    """Return the name and the options of a loss; what is read from a file has them already."""
    if isinstance(loss, dict | list | str | int | float | None):
        return loss
    named = name_and_options(loss)
    if named is None:
        raise UsageError(
            f"A transcript cannot name the loss {loss!r}, which is not built in: save it without the clients' training."
        )
    return {"name": named[0], "options": named[1]}


SavedLoss = Annotated[Part | None, BeforeValidator(_named_loss)]


def _loss(part: Part | None) -> Loss | None:
    """Return the built-in loss of that name; a file runs no other code."""
    if part is None:
        return None
    options = {name: tuple(v) if isinstance(v, list) else v for name, v in part.options.items()}
    return named_loss(part.name, options, own=False)


class SavedTraining(BaseModel, frozen=True, extra="forbid"):
    """The declared training of a client."""

    lr: float
    epochs: Count
    batch_size: Count | None
    batch_norm: BatchNorm
    optimiser: Annotated[Part, BeforeValidator(_named_optimiser)]
    shuffle: bool
    steps: Count | None
    clip: float | None
    label_smoothing: float
    loss: SavedLoss = None


class SavedParticipant(BaseModel, frozen=True, extra="forbid"):
    """A participant of a round."""

    name: Text
    examples: Count
    training: SavedTraining | None
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    steps: Count | None
    weight: Count | None = None
    known_as: Text = ""
    counted: bool = True
    untrained: Names = []
    loss: SavedLoss = None

    def value(self) -> Participant:
        training = None
        if self.training is not None:
            name, options = self.training.optimiser.name, self.training.optimiser.options
            if name not in OPTIMISERS:
                raise ValueError(f"unknown optimiser {name!r}, expected one of {', '.join(OPTIMISERS)}")
            optimiser = OPTIMISERS[name](**{key: tuple(v) if isinstance(v, list) else v for key, v in options.items()})
            loss = _loss(self.training.loss)
            training = Training(**{**dict(self.training), "optimiser": optimiser, "loss": loss})
            if training.local_steps(self.examples) > MOST_LOCAL_STEPS:
                raise ValueError(f"{self.name[:100]!r} takes more than {MOST_LOCAL_STEPS:,} local steps")
        values = {"training": training, "untrained": tuple(self.untrained), "loss": _loss(self.loss)}
        return Participant(**{**dict(self), **values})


class SavedRound(BaseModel, frozen=True, extra="forbid"):
    """A round: one file of its models, and one file of each message."""

    index: Annotated[int, Field(ge=0, lt=10**9)]
    models: SavedFile
    participants: Annotated[list[SavedParticipant], Field(min_length=1, max_length=100_000)]
    messages: dict[Text, SavedFile]
    kept: Names


class SavedTerms(BaseModel, frozen=True, extra="forbid"):
    """The public facts of a federation."""

    shape: tuple[Count, Count, Count]
    classes: Annotated[int, Field(ge=1, le=100_000)]
    mean: list[float]
    std: list[float]
    clients: Names
    rule: Text
    class_names: Names | None
    defences: dict[Text, Names] | None
    behaviours: Names


class SavedManifest(BaseModel, frozen=True, extra="forbid"):
    """`manifest.json`."""

    format: Literal[1] = FORMAT
    fedglass: Text
    origin: Text
    terms: SavedTerms
    rounds: Annotated[list[SavedRound], Field(min_length=1, max_length=100_000)]


def save_transcript(transcript: Transcript, directory: Path) -> None:
    """Write one file for each round and message, and last the manifest: a crash leaves no half of a transcript."""
    make_folder(directory)
    rounds = []
    for index, round_ in sorted(transcript.rounds.items()):
        personalised = round_.clients_with_own_model([message.client for message in round_.messages])
        if personalised:
            raise UsageError(
                f"A saved transcript has one model for each round, and {personalised[0]!r} was sent one of its own in "
                f"round {index}: keep the bundle that it was read from."
            )
        parts = {"before": round_.before, "buffers": round_.buffers, "step": round_.step, "after": round_.buffers_after}
        models = _write_parts(directory, f"round-{index:05}.safetensors", parts)
        messages = {}
        for i, message in enumerate(round_.messages):
            parts = {"update": message.update, "buffers": message.buffers}
            messages[message.client] = _write_parts(directory, f"round-{index:05}-{i:05}.safetensors", parts)
        participants = [SavedParticipant.model_validate(p, from_attributes=True) for p in round_.participants]
        kept = list(round_.accepted)
        rounds.append(SavedRound(index=index, models=models, participants=participants, messages=messages, kept=kept))
    facts = asdict(transcript.terms)
    terms = SavedTerms.model_validate({**facts.pop("whitening"), **facts})
    manifest = SavedManifest(fedglass=__version__, origin=transcript.origin, terms=terms, rounds=rounds)
    write_atomic(directory / MANIFEST, manifest.model_dump_json(indent=1) + "\n")


def load_transcript(directory: Path, model: nn.Module) -> Transcript:
    """Read the transcript of a directory; `model` is the architecture, which no file contains."""
    manifest = read_saved_manifest(directory)
    rounds = {saved.index: _read_round(directory, saved, model) for saved in manifest.rounds}
    for index, round_ in rounds.items():
        following = rounds.get(index + 1)
        if following is not None and not all(_continues(round_, following, name) for name in round_.before):
            raise DataError(
                f"{directory}: round {index + 1} does not start where round {index} ended: files of different "
                "rounds or federations were mixed; save the transcript again."
            )
    return Transcript(model, _terms(directory / MANIFEST, manifest.terms), rounds, manifest.origin)


def read_saved_manifest(directory: Path) -> SavedManifest:
    """Read the manifest of a saved transcript, and check that every round, client and participant comes once."""
    path = directory / MANIFEST
    text = read_saved_bytes(path, LONGEST)
    try:
        content = parse_json(text)
        version = content.get("format") if isinstance(content, dict) else None
        if isinstance(version, int) and version > FORMAT:
            raise DataError(
                f"{path} has format {version}, expected at most {FORMAT}: a newer fedglass wrote it, use that."
            )
        manifest = SavedManifest.model_validate(content)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is not the manifest of a transcript ({first_problem(error)}): it is damaged or of another kind; "
            "save the transcript again."
        ) from error
    rounds, clients = [str(saved.index) for saved in manifest.rounds], manifest.terms.clients
    twice = next((name for names in (rounds, clients) for name, n in Counter(names).items() if n > 1), None)
    if twice is not None:
        raise DataError(
            f"{path} names {twice!r} twice, expected each round and each client once: save the transcript again."
        )
    for saved in manifest.rounds:
        names = {participant.name for participant in saved.participants}
        unknown = [name for name in (*saved.messages, *saved.kept) if name not in names]
        if unknown or len(names) != len(saved.participants):
            raise DataError(
                f"{path}: round {saved.index} names {unknown[:1] or 'a participant twice'}, expected messages of its "
                "participants, each once: save the transcript again."
            )
    return manifest


def _terms(path: Path, saved: SavedTerms) -> Terms:
    facts = {**saved.model_dump(exclude={"mean", "std"}), "whitening": {"mean": saved.mean, "std": saved.std}}
    try:
        terms = TypeAdapter(Terms).validate_python(facts)
    except FedglassError as error:
        raise DataError(f"{path}: {error}") from error
    if len(terms.whitening.mean) not in (1, terms.shape[0]):
        raise DataError(
            f"{path}: the whitening has {len(terms.whitening.mean)} means, expected one for each of the "
            f"{terms.shape[0]} channels: save the transcript again."
        )
    return terms


def _read_round(directory: Path, saved: SavedRound, model: nn.Module) -> Round:
    weights, buffers = weights_of(model), buffers_of(model)
    like = {"before": weights, "buffers": buffers, "step": weights, "after": buffers}
    models = _read_parts(directory, saved.models, like, optional="after")
    messages = []
    for client, file in saved.messages.items():
        parts = _read_parts(directory, file, {"update": weights, "buffers": buffers}, optional="buffers")
        messages.append(Message(client, parts["update"], parts["buffers"]))
    try:
        participants = tuple(participant.value() for participant in saved.participants)
    except (FedglassError, ValueError, TypeError) as error:
        raise DataError(f"{directory / MANIFEST}: round {saved.index}: {error}") from error
    before, buffers, step, after = (models[part] for part in like)
    return Round(before, buffers, participants, tuple(messages), step, after, tuple(saved.kept))


def _continues(round_: Round, following: Round, name: str) -> bool:
    """Check that a round starts where the one before it ended, but for the rounding of a difference of two models."""
    before, step = round_.before[name], round_.step[name]
    after, sent_next = (tensor.nan_to_num() for tensor in (before + step, following.before[name]))
    if torch.equal(after, sent_next):
        return True
    size = torch.maximum(before.abs(), after.abs())
    return bool(((after - sent_next).abs() <= 2 * torch.finfo(after.dtype).eps * size).all())


def _write_parts(directory: Path, name: str, parts: Mapping[str, Params]) -> SavedFile:
    tensors = {f"{part}{SEPARATOR}{key}": tensor for part, params in parts.items() for key, tensor in params.items()}
    data, digest = to_safetensors(tensors)
    write_atomic(directory / name, data)
    return SavedFile(file=name, sha256=digest)


def read_saved_parts(directory: Path, file: SavedFile, *needed: str) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a file by part and name, whatever the model is; check that the needed parts are there."""
    parts: dict[str, dict[str, Tensor]] = {}
    for key, tensor in read_saved_tensors(directory, file).items():
        part, _, name = key.partition(SEPARATOR)
        parts.setdefault(part, {})[name] = tensor
    missing = [part for part in needed if part not in parts]
    if missing:
        raise DataError(f"{directory / file.file} holds no {missing[0]!r}: save the transcript again.")
    return parts


def _read_parts(
    directory: Path, file: SavedFile, like: Mapping[str, Params], *, optional: str
) -> dict[str, dict[str, Tensor]]:
    """Return the parts of a file, with exactly the names, shapes and types of the model; one part may be left out."""
    most = LONGEST + sum(t.numel() * t.element_size() for params in like.values() for t in params.values())
    tensors = read_saved_tensors(directory, file, most)
    if not any(name.startswith(f"{optional}{SEPARATOR}") for name in tensors):
        like = {**like, optional: {}}
    expected = {f"{part}{SEPARATOR}{key}": tensor for part, params in like.items() for key, tensor in params.items()}
    wrong = sorted(set(expected) ^ set(tensors))
    for name in expected:
        tensor, of_model = tensors.get(name), expected[name]
        if tensor is not None and (tensor.shape != of_model.shape or tensor.dtype != of_model.dtype):
            wrong.append(name)
    if wrong:
        raise DataError(
            f"{directory / file.file} does not fit the model at {wrong[0]!r} ({len(wrong)} such): load the transcript "
            "with the architecture that it was recorded from."
        )
    return {part: {key: tensors[f"{part}{SEPARATOR}{key}"] for key in params} for part, params in like.items()}


def read_saved_tensors(directory: Path, file: SavedFile, most: int = MOST_BYTES) -> dict[str, Tensor]:
    """Read the tensors of a file and check its digest."""
    path = directory / file.file
    data = read_saved_bytes(path, most)
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise DataError(f"{path} is not the file that the manifest names (other SHA-256): restore it or save again.")
    try:
        return load(data)
    except SafetensorError as error:
        raise DataError(f"{path} cannot be read as safetensors ({error}): save the transcript again.") from error


def read_saved_bytes(path: Path, most: int) -> bytes:
    """Read a file of at most so many bytes."""
    try:
        return read_file(path, most)
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}; name the directory of a saved transcript.") from error


# Sentences that a transcript holds about defences.


def defence_text(defence: object) -> str:
    """Return the sentence of `Terms.defences` about one defence."""
    return f"Defended by {defence}."


def defence_name(text: str) -> str:
    """Return the defence of such a sentence, for saved transcripts, which hold nothing else of it.

    >>> defence_name(defence_text("Clip(norm=1.0)"))
    'Clip(norm=1.0)'
    """
    prefix, suffix = defence_text("\0").split("\0")
    return text.removeprefix(prefix).removesuffix(suffix)
