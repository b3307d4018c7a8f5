"""One bundle from several: of the folders that a server and its clients have recorded, or of a saved transcript."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedglass.core.errors import DataError, UsageError
from fedglass.core.files import parse_json, temporary_folder
from fedglass.core.tensors import RUNNING, subtract
from fedglass.federation.transcript import MEAN_RULE, UNKNOWN_RULE
from fedglass.recordings.facts import FactSheet, merge_or_fail
from fedglass.recordings.format import MANIFEST, FileRef, MessageFacts, read_at_most, writing_to
from fedglass.recordings.reader import Bundle, equal_up_to_rounding, read_bundle
from fedglass.recordings.saved_transcripts import (
    FORMAT,
    LONGEST,
    SavedParticipant,
    SavedRound,
    defence_name,
    read_saved_manifest,
    read_saved_parts,
)
from fedglass.recordings.writer import BundleWriter, RoundWriter

NAME = 200
"""Characters of a name in a bundle."""


def join(into: str | Path, folders: Sequence[str | Path], *, names: Mapping[str, str] | None = None) -> Bundle:
    """Read all folders with every check, and write their contents as one bundle; the truths stay where they are.

    If recorders have seen the same message, it must be the same in all folders.

    Args:
        names: New names of clients, if recorders have given the same client different names.
    """
    if not folders:
        raise UsageError("Name at least one folder of a bundle to join, got none.")
    place = Path(into)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"{place} is there already: name a new folder for the joined bundle.")
    with writing_to(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        # Half of a joined bundle would be a valid bundle too, and a reader could not see what it lacks.
        with temporary_folder(place.parent) as unfinished:
            folder_of_all = unfinished / "joined"
            writer = BundleWriter(folder_of_all, writer="joined")
            for folder in folders:
                _add_bundle(writer, read_bundle(folder), names or {})
            folder_of_all.replace(place)
    return read_bundle(place)


def _add_bundle(writer: BundleWriter, bundle: Bundle, names: Mapping[str, str]) -> None:
    writer.add_facts(merge_or_fail(writer.manifest.facts, bundle.facts))
    for client, facts in bundle.manifest.always.items():
        name = names.get(client, client)
        writer.add_constant_facts(name, merge_or_fail(writer.manifest.always.get(name, {}), facts))
    for client in bundle.clients:
        writer.position_of(names.get(client, client))
    for index, round_ in bundle.rounds.items():
        new = writer.round(index)
        if round_.sent is not None and _is_new(bundle, round_.sent, writer, new.state.sent):
            new.sent(bundle.arrays(round_.sent))
        for message in round_.messages:
            _add_message(new, bundle, message, names.get(message.client, message.client))
        if round_.aggregated is not None and _is_new(bundle, round_.aggregated, writer, new.state.aggregated):
            new.aggregated(bundle.arrays(round_.aggregated), form=round_.aggregated.form)
        new.add_facts(merge_or_fail(new.state.facts, _with_names(round_.facts, names)))


def _add_message(new: RoundWriter, bundle: Bundle, message: MessageFacts, name: str) -> None:
    recorded, writer = new.message(name), new.bundle
    if message.sent is not None and _is_new(bundle, message.sent, writer, recorded.sent):
        new.sent(bundle.arrays(message.sent), client=name)
    if message.received is not None and _is_new(bundle, message.received, writer, recorded.received):
        new.received(name, bundle.arrays(message.received), form=message.received.form)
    if message.absent is not None and recorded.received is None:
        new.absent(name, message.absent)
    new.add_client_facts(name, merge_or_fail(new.message(name).facts, message.facts))


def _with_names(facts: FactSheet, names: Mapping[str, str]) -> FactSheet:
    """Return the facts of a round with the new names of the clients that its rule accepted."""
    accepted = {
        source: [names.get(name, name) for name in clients] for source, clients in facts.get("kept", {}).items()
    }
    return {**facts, "kept": accepted} if accepted else facts


def _is_new(bundle: Bundle, ref: FileRef, writer: BundleWriter, recorded: FileRef | None) -> bool:
    """Check that a file is not in the joined bundle yet; one that is there and differs is refused."""
    if recorded is None:
        return True
    one, other = bundle.arrays(ref), writer.arrays(recorded)
    equal = list(one) == list(other) and all(equal_up_to_rounding(one[name], other[name]) for name in one)
    if ref.form != recorded.form or not equal:
        raise DataError(
            f"{bundle.folder / ref.file} differs from what another recorder saw of it: record clients where their "
            "messages leave, after every defence, or join without that folder."
        )
    return False


def is_saved(folder: Path) -> bool:
    """Check whether a folder is that of a saved transcript (format 1)."""
    try:
        content = parse_json(read_at_most(folder / MANIFEST, most=LONGEST))
    except (DataError, ValueError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def bundle_of_saved(saved: Path, into: Path) -> Bundle:
    """Write a saved transcript as a bundle, which every command reads; the model is not needed for it.

    Updates are bit-identical; of the defences only the names are known.
    """
    manifest = read_saved_manifest(saved)
    terms = manifest.terms
    rule = None if terms.rule == UNKNOWN_RULE else {"name": "mean" if terms.rule == MEAN_RULE else terms.rule[:NAME]}
    facts = {
        **terms.model_dump(include={"shape", "classes", "class_names"}),
        "whitening": {"mean": terms.mean, "std": terms.std},
        "rule": rule,
        "behaviours": terms.behaviours,
    }
    writer = BundleWriter(into, writer="a saved transcript", facts=facts)
    for client in terms.clients:
        texts = None if terms.defences is None else terms.defences.get(client, [])
        defences = None if texts is None else [{"name": defence_name(text)[:NAME]} for text in texts]
        writer.training(client, None, {"defences": defences})
    for round_ in manifest.rounds:
        _write_saved_round(writer, round_, saved)
    return read_bundle(into)


def _write_saved_round(writer: BundleWriter, saved_round: SavedRound, saved: Path) -> None:
    round_, models = writer.round(saved_round.index), read_saved_parts(saved, saved_round.models, "before", "step")
    buffers = models.get("buffers", {})
    round_.sent({**models["before"], **buffers})
    for participant in saved_round.participants:
        after = models.get("after", {})
        if participant.name in saved_round.messages:
            parts = read_saved_parts(saved, saved_round.messages[participant.name], "update")
            after = parts.get("buffers", {})
            message = {**parts["update"], **_moved_buffers(saved, buffers, after)}
            round_.received(participant.name, message, form="update")
        # Buffers that are not running statistics and did not change are the untrained layers of a transcript.
        not_running = [name for name in buffers if name.rpartition(".")[2] not in RUNNING]
        constants = [name for name in not_running if torch.equal(buffers[name], after.get(name, buffers[name]))]
        facts = _client_facts(participant, constants)
        writer.training(participant.name, saved_round.index, facts)
    # Without running statistics an aggregate is not the start of the next round, which has both.
    if "after" in models or not buffers:
        step = {**models["step"], **_moved_buffers(saved, buffers, models.get("after", {}))}
        round_.aggregated(step, form="update", kept=list(saved_round.kept))


def _moved_buffers(saved: Path, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return running statistics as a difference, as an update has them."""
    if any(name not in before or before[name].shape != tensor.shape for name, tensor in after.items()):
        raise DataError(f"{saved} has other running statistics after a round than before: save the transcript again.")
    return subtract(after, {name: before[name] for name in after})


def _client_facts(participant: SavedParticipant, constants: Sequence[str]) -> dict[str, Any]:
    facts = {
        "examples": participant.examples if participant.counted else "unknown",
        "weight": participant.weight,
        "x-known-as": participant.known_as or None,
        "untrained": [*participant.untrained, *constants] or None,
    }
    training = participant.training
    if training is None:
        return {**facts, "lr": participant.lr, "steps": participant.steps}
    return {
        **facts,
        **training.model_dump(mode="json"),
        "optimiser": training.optimiser.name,
        "options": training.optimiser.options,
        "batch_size": training.batch_size or participant.examples,
        "loss": "cross_entropy" if training.loss is None else training.loss.name,
        "objective": None if training.loss is None else training.loss.model_dump(),
    }
