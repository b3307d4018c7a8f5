"""Makes one bundle of those that a server and its clients have recorded, each in a folder of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedglass.core.errors import DataError, UsageError
from fedglass.core.files import temporary_folder
from fedglass.core.tensors import RUNNING, subtract
from fedglass.federation.transcript import MEAN_RULE
from fedglass.recordings.files import contents
from fedglass.recordings.format import FactSheet, Held, sheet, united
from fedglass.recordings.reader import Bundle, read_bundle, same
from fedglass.recordings.saved import (
    FORMAT,
    LONGEST,
    MANIFEST,
    ParticipantFacts,
    RoundFacts,
    TermsFacts,
    TrainingFacts,
    saved_manifest,
    saved_parts,
)
from fedglass.recordings.writer import BundleWriter, RoundWriter


def join(into: str | Path, folders: Sequence[str | Path], *, names: Mapping[str, str] | None = None) -> Bundle:
    """Read all folders with every check, and write what they hold together as one bundle; the truths stay apart.

    `names` gives clients their names in the new bundle, where recorders have called the same one differently. What
    two recorders have seen of the same message must be the same.
    """
    if not folders:
        raise UsageError("Name at least one folder of a bundle to join, got none.")
    called, place = {} if names is None else names, Path(into)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"{place} is there already: name a new folder for the joined bundle.")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        # What can not be joined to the end would be a bundle as well, of which nobody sees what it lacks.
        with temporary_folder(place.parent) as unfinished:
            made = unfinished / "joined"
            writer = BundleWriter(made, writer="joined")
            for folder in folders:
                _take(writer, read_bundle(folder), called)
            made.replace(place)
    except OSError as error:
        raise UsageError(f"Cannot write to {place}: {error.strerror}; choose another folder.") from error
    return read_bundle(place)


def _take(writer: BundleWriter, bundle: Bundle, names: Mapping[str, str]) -> None:
    writer.tell(united(writer.known, bundle.facts))
    for client, told in bundle.manifest.always.items():
        name = names.get(client, client)
        writer.tell_always(name, united(writer.always(name), sheet(told)))
    for client in bundle.clients:
        writer.meet(names.get(client, client))
    for index, past in bundle.rounds.items():
        new = writer.round(index)
        if past.sent is not None and _new(bundle, past.sent, writer, new.told.sent):
            new.sent(bundle.arrays(past.sent))
        for message in past.messages:
            _take_message(new, bundle, index, message.client, names.get(message.client, message.client))
        if past.aggregated is not None and _new(bundle, past.aggregated, writer, new.told.aggregated):
            new.aggregated(bundle.arrays(past.aggregated), form=past.aggregated.form)
        new.tell(united(sheet(new.told.facts), _renamed(sheet(past.facts), names)))


def _take_message(new: RoundWriter, bundle: Bundle, index: int, client: str, name: str) -> None:
    message, writer = bundle.message(client, index), new.bundle
    assert message is not None, "it is one of the round's own"
    known = new.message(name)
    if message.sent is not None and _new(bundle, message.sent, writer, known.sent):
        new.sent(bundle.arrays(message.sent), client=name)
    if message.received is not None and _new(bundle, message.received, writer, known.received):
        new.received(name, bundle.arrays(message.received), form=message.received.form)
    if message.absent is not None and known.received is None:
        new.absent(name, message.absent)
    new.tell_client(name, united(sheet(new.message(name).facts), sheet(message.facts)))


def _renamed(told: FactSheet, names: Mapping[str, str]) -> FactSheet:
    """The names of those that the rule kept are clients' too."""
    kept = {source: [names.get(name, name) for name in clients] for source, clients in told.get("kept", {}).items()}
    return {**told, "kept": kept} if kept else told


def _new(bundle: Bundle, held: Held, writer: BundleWriter, known: Held | None) -> bool:
    """Whether it is not there yet; what is there and differs is refused."""
    if known is None:
        return True
    one, other = bundle.arrays(held), writer.arrays(known)
    if held.form != known.form or not _equal(one, other):
        raise DataError(
            f"{bundle.folder / held.file} differs from what another recorder saw of it: record clients where their "
            "messages leave, after every defence, or join without that folder."
        )
    return False


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return list(one) == list(other) and all(same(one[name], other[name]) for name in one)


# A saved transcript (format 1) as a bundle (format 2), which every command reads; the model is not needed for it.


Parts = Mapping[str, Mapping[str, Tensor]]
NAME = 200
"""Characters of a name in a bundle."""


def is_saved(folder: Path) -> bool:
    """Whether a folder is that of a saved transcript."""
    try:
        found = json.loads(contents(folder / MANIFEST, most=LONGEST))
    except (DataError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("format") == FORMAT


def bundle_of_saved(saved: Path, into: Path) -> Bundle:
    """Write what a transcript holds to a new folder: its updates to the last bit, its defences in words alone."""
    manifest = saved_manifest(saved)
    writer = BundleWriter(into, writer="a saved transcript", facts=_terms(manifest.terms))
    for client in manifest.terms.clients:
        told = None if manifest.terms.defences is None else manifest.terms.defences.get(client, [])
        defences = None if told is None else [{"name": _named(words)} for words in told]
        writer.training(client, None, {"defences": defences})
    for past in manifest.rounds:
        _write(writer, past, saved)
    return read_bundle(into)


def _write(writer: BundleWriter, past: RoundFacts, saved: Path) -> None:
    turn, models = writer.round(past.index), saved_parts(saved, past.models, "before", "step")
    turn.sent({**models["before"], **models.get("buffers", {})})
    for person in past.participants:
        after = models.get("after", {})
        if person.name in past.messages:
            parts = saved_parts(saved, past.messages[person.name], "update")
            after = parts.get("buffers", {})
            message = {**parts["update"], **_moved(saved, models, after)}
            turn.received(person.name, message, form="update")
        writer.training(person.name, past.index, _facts(person, _constants(models.get("buffers", {}), after)))
    # Without its running statistics an aggregate is no start of the next round, which tells both.
    if "after" in models or "buffers" not in models:
        step = {**models["step"], **_moved(saved, models, models.get("after", {}))}
        turn.aggregated(step, form="update", kept=list(past.kept))


def _moved(saved: Path, models: Parts, after: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Running statistics as a difference, as an update has them."""
    before = models.get("buffers", {})
    if any(name not in before or before[name].shape != tensor.shape for name, tensor in after.items()):
        raise DataError(f"{saved} has other running statistics after a round than before: save the transcript again.")
    return subtract(after, {name: before[name] for name in after})


def _terms(terms: TermsFacts) -> dict[str, Any]:
    mean = terms.rule == MEAN_RULE
    return {
        "shape": terms.shape,
        "classes": terms.classes,
        "class_names": terms.class_names,
        "whitening": {"mean": terms.mean, "std": terms.std},
        "rule": {"name": "mean" if mean else terms.rule[:NAME]},
        "behaviours": terms.behaviours,
    }


def _constants(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[str]:
    """Buffers that are no running statistics and stay: such are the layers that a transcript's model does not train."""
    own = [name for name in before if name.rpartition(".")[2] not in RUNNING]
    return [name for name in own if torch.equal(before[name], after.get(name, before[name]))]


def _facts(person: ParticipantFacts, constants: Sequence[str]) -> dict[str, Any]:
    told = {"examples": person.examples if person.counted else "unknown", "weight": person.weight}
    named = {"x-known-as": person.known_as or None, "untrained": [*person.untrained, *constants] or None}
    if person.training is None:
        return {**told, **named, "lr": person.lr, "steps": person.steps}
    return {**told, **named, **_training(person.training, person.examples)}


def _training(training: TrainingFacts, examples: int) -> dict[str, Any]:
    same = training.model_dump(include={"lr", "epochs", "batch_norm", "shuffle", "steps", "clip", "label_smoothing"})
    optimiser = {"optimiser": training.optimiser.name, "options": training.optimiser.options}
    return {**same, **optimiser, "batch_size": training.batch_size or examples, "loss": "cross_entropy"}


def _named(words: str) -> str:
    """A defence by its words.

    >>> _named("Defended by Clip(norm=1.0).")
    'Clip(norm=1.0)'
    """
    return words.removeprefix("Defended by ").removesuffix(".")[:NAME]
