"""A bundle that is opened, and what must be known of it before its model can be built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedglass.audit.recorded import Recorded
from fedglass.core.errors import DataError, UsageError
from fedglass.core.registry import BUILT_IN, origin_of
from fedglass.core.tensors import buffers_of, weights_of
from fedglass.core.types import Whitening
from fedglass.federation.transcript import Participant, ParticipantsByRound, Round, Terms, Transcript, mark_untrained
from fedglass.federation.truth import Truths
from fedglass.federation.views import AggregateView, Knows, ServerView, Together, View
from fedglass.fl.release import Protection
from fedglass.models.catalogue import build
from fedglass.plan.loose_files import defended_in_words, knows_of, tensors_of
from fedglass.plan.options import defences_of, joined, public_of
from fedglass.plan.recording_tables import BundleTable
from fedglass.plan.schema import AdversaryTable
from fedglass.plan.selection import (
    Choice,
    attendance_of,
    base_of,
    chosen,
    doubts_of,
    no_images,
    others_of,
    overlooked_in,
    sent_beside,
    told_beside,
)
from fedglass.plan.tables import DefenceTable
from fedglass.recordings.format import RESERVED, best
from fedglass.recordings.reader import Bundle, read_bundle
from fedglass.recordings.transcript import Reading, rule_in_words
from fedglass.recordings.truth_files import truths_beside


@dataclass(frozen=True, eq=False)
class Settled:
    """What must be known of a bundle before its model can be built."""

    model: str
    shape: tuple[int, int, int]
    classes: int
    whitening: Whitening

    def built(self) -> nn.Module:
        return build(self.model, shape=self.shape, classes=self.classes)


def opened(table: BundleTable, folder: Path) -> tuple[Bundle, Truths | None]:
    """The bundle of a table, every file of it checked, and the truths that the table names."""
    bundle = read_bundle(folder / Path(table.bundle).expanduser())
    if not bundle.rounds:
        raise DataError(f"{bundle.folder} holds no round yet: record one first.")
    if table.truth is None:
        return bundle, None
    return bundle, truths_beside(folder / Path(table.truth).expanduser(), bundle.clients, base_of(bundle))


def settled_facts(table: BundleTable, bundle: Bundle, truths: Truths | None) -> Settled:
    """What the plan says, or else what the bundle tells; what neither does is asked for by its key."""
    facts, own = bundle.facts, next(iter(truths.examples.values()), None) if truths is not None else None
    shape = table.shape or best(facts, "shape") or (None if own is None else list(own.images.shape[1:]))
    told = best(facts, "whitening")
    whitening = table.whitening.value() if table.whitening is not None else _whitening(told)
    classes = table.classes or best(facts, "classes")
    missing = [
        key for key, value in {"shape": shape, "classes": classes, "whitening": whitening}.items() if value is None
    ]
    if missing:
        raise UsageError(("shape" in missing and no_images(bundle)) or _asked_for(bundle, missing))
    assert shape is not None, "it was asked for"
    assert classes is not None, "it was asked for"
    assert whitening is not None, "it was asked for"
    channels, height, width = shape
    if len(whitening.mean) not in (1, channels):
        raise UsageError(f"{bundle.folder}: the whitening must have one mean for each of the {channels} channels.")
    for client, kept in ({} if truths is None else truths.examples).items():
        if tuple(kept.images.shape[1:]) != (channels, height, width):
            raise DataError(
                f"recording.truth has images of shape {tuple(kept.images.shape[1:])} of {client!r}, expected "
                f"{(channels, height, width)} as {bundle.folder} tells: correct one of them."
            )
        if not (len(kept.labels) and int(kept.labels.min()) >= 0 and int(kept.labels.max()) < classes):
            raise DataError(
                f"recording.truth has labels of {client!r} that are none of the {classes} classes which "
                f"{bundle.folder} tells (0 is the first): correct one of them."
            )
    return Settled(model_of(table, bundle), (channels, height, width), classes, whitening)


def _asked_for(bundle: Bundle, missing: Sequence[str]) -> str:
    """Where what a bundle does not tell may come from: a server does not know how its clients see their images."""
    apart = bundle.manifest.writer == "server" and "shape" in missing
    return (
        f"{bundle.folder} does not tell its {', '.join(missing)}, expected in the bundle or the plan: "
        + ("put the clients' own recordings beside it with `fedglass join`, or " if apart else "")
        + f"add {', '.join(f'recording.{key}' for key in missing)} to a plan, which `fedglass init --from "
        f"{bundle.folder}` writes."
    )


def model_of(table: BundleTable, bundle: Bundle) -> str:
    """The model that the plan names, or a built-in one that the bundle names: no data file may run code."""
    if table.model is not None:
        return table.model
    told = best(bundle.facts, "model")
    if told is None:
        raise UsageError(f"{bundle.folder} does not name its model: say which with --model or recording.model.")
    if origin_of("models", told) != BUILT_IN:
        raise UsageError(
            f"{bundle.folder} names the model {told!r}, which is code that is not part of fedglass: if you trust it, "
            f"say so with --model {told}, and --code DIR for the folder that it is in, or recording.model."
        )
    return str(told)


def _whitening(told: dict[str, Any] | None) -> Whitening | None:
    return None if told is None else Whitening(tuple(told["mean"]), tuple(told["std"]))


# A bundle as something to audit: a view of every message that is looked at, with all that is known of it.


def recorded_bundle(table: BundleTable, adversary: AdversaryTable, folder: Path) -> list[Recorded]:
    """The messages that are looked at; those whose truth is known and those whose is not are apart."""
    _check_adversary(table, adversary)
    bundle, truths = opened(table, folder)
    settled = settled_facts(table, bundle, truths)
    counts = {} if truths is None else {name: len(own.labels) for name, own in truths.examples.items()}
    model = settled.built()
    reading = Reading(bundle, model, counts, _rest(table, model, folder))
    choice = chosen(bundle, adversary.view if "view" in adversary.model_fields_set else None, table.rounds, table.whose)
    transcript, protections = _transcript(table, reading, settled, choice)
    views = _views(choice, transcript.terms.clients, base_of(bundle))
    views = [
        (view, people)
        for view, people in joined(views, adversary.together)
        if adversary.together != "also" or _can_be(view, transcript, truths)
    ]
    known = [view for view, clients in views if truths is not None and clients and set(clients) <= set(truths.examples)]
    unknown = [view for view, _ in views if view not in known]
    name, public = table.name or Path(table.bundle).name, public_of(adversary, settled.shape, folder)
    doubts = doubts_of(bundle, reading.model, choice)
    everywhere = ParticipantsByRound(transcript.terms.clients, attendance_of(bundle, choice))
    lacking, aside = overlooked_in(bundle, choice), others_of(reading, choice)
    beside, reserved = sent_beside(bundle, reading.model, choice), told_beside(bundle, choice, RESERVED)
    knows = knows_of(adversary)

    def source(name: str, views: list[View], truths: Truths | None) -> Recorded:
        told = Recorded(transcript, truths, tuple(views), knows, name, public, protections, doubts, everywhere)
        return replace(told, overlooked=lacking, beside=beside, reserved=reserved, aside=aside)

    scored = [source(name, known, truths)] if known else []
    return scored + ([source(f"{name}, truth not kept" if known else name, unknown, None)] if unknown else [])


def _rest(table: BundleTable, model: nn.Module, folder: Path) -> dict[str, Tensor]:
    """The weights that the plan names beside those that travelled."""
    if table.weights is None:
        return {}
    known = {**weights_of(model), **buffers_of(model)}
    return tensors_of("recording.weights", folder / Path(table.weights).expanduser(), known, optional=set(known))


def _check_adversary(table: BundleTable, adversary: AdversaryTable) -> None:
    if (adversary.knows_labels or adversary.knows_batch_labels) and table.truth is None:
        raise UsageError("adversary.knows_labels needs recording.truth, from which the labels would come.")
    for key, instead in (("client", "recording.whose"), ("round", "recording.rounds")):
        if key in adversary.model_fields_set:
            raise UsageError(
                f"adversary.{key} is for simulations, and a bundle has names and numbers of its own: give {instead}."
            )


def _transcript(
    table: BundleTable, reading: Reading, settled: Settled, choice: Choice
) -> tuple[Transcript, dict[str, Protection]]:
    bundle, base = reading.bundle, base_of(reading.bundle)
    rounds = {index - base: _told(reading.round(index, choice.whose(index)), table) for index in choice.rounds}
    clients = tuple(dict.fromkeys((*bundle.clients, *(p.name for past in rounds.values() for p in past.participants))))
    words, protections = _defences(table, bundle, choice, clients)
    unprotected = [client for client in clients if not (words or {}).get(client)]
    rounds = {index: mark_untrained(past, unprotected) for index, past in rounds.items()}
    rules = {rule_in_words(bundle, index) for index in choice.rounds}
    terms = Terms(
        settled.shape,
        settled.classes,
        settled.whitening,
        clients,
        rules.pop() if len(rules) == 1 else f"one of {', '.join(sorted(rules))}",
        _names(best(bundle.facts, "class_names"), settled.classes),
        words,
        tuple(best(bundle.facts, "behaviours", ())),
    )
    return Transcript(reading.model, terms, rounds), protections


def _names(told: Sequence[str] | None, classes: int) -> tuple[str, ...] | None:
    """Of all classes, or none: a name that is missing would be the next one's."""
    return None if told is None or len(told) != classes else tuple(told)


def _told(past: Round, table: BundleTable) -> Round:
    """The round with what the plan gives: a training in place of the bundle's, and examples where it tells none."""
    training = None if table.training is None else table.training.value()

    def told(person: Participant) -> Participant:
        if training is not None:
            person = replace(person, training=training, lr=None, steps=None)
        if table.examples is not None and not person.counted:
            person = replace(person, examples=table.examples, counted=True)
        return person

    return replace(past, participants=tuple(map(told, past.participants)))


def _defences(
    table: BundleTable, bundle: Bundle, choice: Choice, clients: Sequence[str]
) -> tuple[dict[str, tuple[str, ...]] | None, dict[str, Protection]]:
    """What protects each client in words, and what of it can be played again; nobody's where somebody has not said."""
    if table.defended is not None:
        shield = defences_of(table.defended) if isinstance(table.defended, list) else None
        words = dict.fromkeys(clients, defended_in_words(table.defended))
        return words, {} if shield is None else dict.fromkeys(clients, shield)
    general = best(bundle.facts, "defences")
    told = {
        client: best(bundle.facts_of(client, index), "defences", general)
        for index in choice.rounds
        for client in choice.people(index) or clients
    }
    if any(parts is None for parts in told.values()):
        return None, {}
    words = {client: tuple(f"Defended by {_in_words(part)}." for part in parts) for client, parts in told.items()}
    played = {client: _played(parts) for client, parts in told.items() if parts}
    return words, {client: shield for client, shield in played.items() if shield is not None}


def _in_words(part: Mapping[str, Any]) -> str:
    options = ", ".join(f"{name}={value!r}" for name, value in (part.get("options") or {}).items())
    return f"{part['name']}({options}), as the bundle says"


def _played(parts: Sequence[Mapping[str, Any]]) -> Protection | None:
    """Built-in defences with options that they take; None where one is of another kind."""
    if any(origin_of("defences", part["name"]) != BUILT_IN or ":" in part["name"] for part in parts):
        return None
    try:
        return defences_of([DefenceTable(name=part["name"], **(part.get("options") or {})) for part in parts])
    except (UsageError, TypeError, ValueError):
        return None


def _views(choice: Choice, clients: Sequence[str], base: int) -> list[tuple[View, tuple[str, ...]]]:
    """Each with the names of those whose truth is needed to score it."""
    found: list[tuple[View, tuple[str, ...]]] = []
    for index in choice.rounds:
        if choice.view == "aggregate":
            found.append((AggregateView(index - base), choice.people(index)))
        else:
            own = choice.whose(index)
            found += [(ServerView(clients.index(client), index - base), (client,)) for client in own]
    return found


def _can_be(view: View, transcript: Transcript, truths: Truths | None) -> bool:
    """Whether rounds that are looked at together have the same examples behind them, as far as anybody knows."""
    if not isinstance(view, Together):
        return True
    try:
        view.see(transcript, Knows(), truths)
    except UsageError:
        return False
    return True
