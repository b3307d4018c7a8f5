"""A saved transcript (format 1) as a bundle (format 2), which every command reads; the model is not needed for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedglass.bundle.check import read_bundle
from fedglass.bundle.files import contents
from fedglass.bundle.reader import Bundle
from fedglass.bundle.writer import BundleWriter
from fedglass.core.errors import DataError
from fedglass.core.params import subtract
from fedglass.core.statistics import RUNNING
from fedglass.fl.aggregate.mean import WeightedMean
from fedglass.rounds.manifest import FORMAT, ParticipantFacts, RoundFacts, TermsFacts, TrainingFacts
from fedglass.rounds.storage import LONGEST, MANIFEST, saved_manifest, saved_parts

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
    mean = terms.rule == repr(WeightedMean())
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
