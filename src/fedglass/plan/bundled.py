"""A bundle as something to audit: a view of every message that is looked at, with all that is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedglass.audit.recorded import Recorded
from fedglass.bundle.facts import RESERVED, best
from fedglass.bundle.reader import Bundle
from fedglass.core.errors import UsageError
from fedglass.core.params import buffers_of, weights_of
from fedglass.core.registry import BUILT_IN, origin_of
from fedglass.fl.protection import Protection
from fedglass.plan.bundle_beside import others_of, sent_beside
from fedglass.plan.bundle_choice import Choice, chosen
from fedglass.plan.bundle_settled import Settled, opened, settled_facts
from fedglass.plan.bundle_table import BundleTable
from fedglass.plan.bundle_told import attendance_of, base_of, doubts_of, overlooked_in, told_beside
from fedglass.plan.defences import defences_of
from fedglass.plan.keys import DefenceTable
from fedglass.plan.public import public_of
from fedglass.plan.recording import defended_in_words, knows_of
from fedglass.plan.schema import AdversaryTable
from fedglass.plan.tensor_files import tensors_of
from fedglass.plan.together import joined
from fedglass.rounds.bundled import Reading, rule_in_words
from fedglass.rounds.transcript import Attendance, Participant, Round, Terms, Transcript
from fedglass.rounds.truth import Truths
from fedglass.rounds.untrained import with_still
from fedglass.rounds.views.aggregate import AggregateView
from fedglass.rounds.views.server import ServerView
from fedglass.rounds.views.together import Together
from fedglass.rounds.views.view import Knows, View


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
    everywhere = Attendance(transcript.terms.clients, attendance_of(bundle, choice))
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
    rounds = {index: with_still(past, unprotected) for index, past in rounds.items()}
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
