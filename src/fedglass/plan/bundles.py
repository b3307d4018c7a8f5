"""A bundle as something to audit: views of its selected messages, with everything that is known about each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fedglass.audit.recorded import Recorded
from fedglass.core.errors import DataError, UsageError
from fedglass.core.losses import is_class_labels
from fedglass.core.registry import BUILT_IN, origin_of
from fedglass.core.tensors import buffers_of, weights_of
from fedglass.core.types import Whitening
from fedglass.defend.filters import FILTERS
from fedglass.defend.noise_model import named_parts
from fedglass.federation.transcript import Participant, ParticipantsByRound, Round, Terms, Transcript, mark_untrained
from fedglass.federation.truth import Examples, Truths
from fedglass.federation.views import AggregateView, Knows, Naming, ServerView, Together, View
from fedglass.fl.loss.losses import CrossEntropy
from fedglass.fl.release import Protection
from fedglass.models.catalogue import build
from fedglass.plan.loose_files import defence_texts, knows_of, read_model_tensors
from fedglass.plan.options import defences_of, joined, public_of
from fedglass.plan.schema import AdversaryTable
from fedglass.plan.tables import BundleTable, PartTable
from fedglass.recordings.facts import INPUTS, RESERVATIONS, preferred
from fedglass.recordings.privacy import recorded_epsilons
from fedglass.recordings.reader import Bundle, read_bundle
from fedglass.recordings.saved_transcripts import defence_text
from fedglass.recordings.selection import (
    Selection,
    attendance_by_round,
    certified_rounds,
    contradictions_by_client,
    extra_payload,
    recorder_statements,
    select_messages,
    unaudited_clients,
    unaudited_updates,
)
from fedglass.recordings.transcript import TranscriptReader, loss_fact, rule_of
from fedglass.recordings.truth_files import read_truths

OpenBundle = tuple[Bundle, Truths | None]
ModelSpec = tuple[str, tuple[int, int, int], int, Whitening]
"""The name of a model, the shape of its images, its number of classes, and the normalisation of pixels."""


def open_bundle(table: BundleTable, folder: Path, read: Callable[[Path], Bundle] = read_bundle) -> OpenBundle:
    """Read the bundle of a table, every file of it checked, and the truths that the table names."""
    bundle = read(folder / Path(table.bundle).expanduser())
    if not bundle.rounds:
        raise DataError(f"{bundle.folder} holds no round yet: record one first.")
    if table.truth is None:
        return bundle, None
    return bundle, read_truths(folder / Path(table.truth).expanduser(), bundle.clients)


def recorded_bundle(table: BundleTable, adversary: AdversaryTable, folder: Path, opened: OpenBundle) -> list[Recorded]:
    """Return the audited messages of a bundle; those with a known truth and those without are two sources."""
    bundle, truths = opened
    spec = architecture, shape, classes, _ = model_spec(table, bundle, truths)
    model = build(architecture, shape=shape, classes=classes, single_output=True)
    counts = {} if truths is None else {name: len(examples.labels) for name, examples in truths.examples.items()}
    unsent: dict[str, Tensor] = {}  # weights that clients never send
    if table.weights is not None:
        state, path = {**weights_of(model), **buffers_of(model)}, folder / Path(table.weights).expanduser()
        unsent = read_model_tensors("recording.weights", path, state, optional=state)[1]
    reader = TranscriptReader(bundle, model, counts, unsent)
    view = adversary.view if "view" in adversary.model_fields_set else None
    selection = select_messages(bundle, view, table.rounds, table.whose)
    transcript, protections = _transcript(table, reader, spec, selection)
    clients = transcript.terms.clients
    views = [
        (view, behind)
        for view, behind in joined(_views(selection, clients), adversary.together)
        if adversary.together != "also" or _is_possible(view, transcript, truths)
    ]
    scored_views = [
        view for view, behind in views if truths is not None and behind and set(behind) <= set(truths.examples)
    ]
    unscored_views = [view for view, _ in views if view not in scored_views]
    name = table.name or Path(table.bundle).name
    source = Recorded(
        transcript,
        truths,
        tuple(scored_views or unscored_views),
        knows_of(adversary),
        name,
        public_of(adversary, shape, folder),
        protections,
        contradictions_by_client(selection, reader, protections),
        ParticipantsByRound(clients, attendance_by_round(selection)),
        unaudited_clients=unaudited_clients(selection),
        extra_payload=extra_payload(selection, model, certified_rounds(selection, protections)),
        recorder_caveats=recorder_statements(selection, RESERVATIONS),
        epsilons=recorded_epsilons(bundle),
        unaudited_updates=unaudited_updates(reader, selection),
        naming=Naming(clients),
        first_round=bundle.first_round,
    )
    if not scored_views:
        return [replace(source, truths=None)]
    if not unscored_views:
        return [source]
    return [source, replace(source, truths=None, views=tuple(unscored_views), name=f"{name}, truth not kept")]


def check_adversary(table: BundleTable, adversary: AdversaryTable) -> None:
    """Refuse what no bundle can give an adversary, before it is read."""
    if (adversary.knows_labels or adversary.knows_batch_labels) and table.truth is None:
        raise UsageError("adversary.knows_labels needs recording.truth, from which the labels would come.")
    for key, instead in (("client", "recording.whose"), ("round", "recording.rounds")):
        if key in adversary.model_fields_set:
            raise UsageError(
                f"adversary.{key} is for simulations, and a bundle has names and numbers of its own: give {instead}."
            )


def _transcript(
    table: BundleTable, reader: TranscriptReader, spec: ModelSpec, selection: Selection
) -> tuple[Transcript, dict[str, Protection]]:
    """Return the selected rounds as a transcript, and the defences of each client that can be run again."""
    bundle, (_, shape, classes, whitening) = reader.bundle, spec
    rounds = {
        index: _with_plan_facts(reader.round(index, selection.clients_with_updates(index)), table)
        for index in selection.rounds
    }
    participants = (participant.name for round_ in rounds.values() for participant in round_.participants)
    clients = tuple(dict.fromkeys((*bundle.clients, *participants)))
    has_buffers = bool(buffers_of(reader.model))
    texts, protections = _defences(table, bundle, selection, clients, has_buffers=has_buffers)
    unprotected = [client for client in clients if not (texts or {}).get(client)]
    rules = {rule_of(bundle, index) for index in selection.rounds}
    class_names = preferred(bundle.facts, "class_names")
    terms = Terms(
        shape,
        classes,
        whitening,
        clients,
        rules.pop() if len(rules) == 1 else f"one of {', '.join(sorted(rules))}",
        # All classes have a name, or none: a missing one would shift those after it.
        None if class_names is None or len(class_names) != classes else tuple(class_names),
        texts,
        tuple(preferred(bundle.facts, "behaviours", ())),
    )
    rounds = {index: mark_untrained(round_, unprotected) for index, round_ in rounds.items()}
    return Transcript(reader.model, terms, rounds), protections


def _with_plan_facts(round_: Round, table: BundleTable) -> Round:
    """Return the round with the plan's training, which overrides the bundle's, and examples that the bundle lacks."""
    training = None if table.training is None else table.training.value()

    def with_facts(participant: Participant) -> Participant:
        if training is not None:
            participant = replace(participant, training=training, lr=None, steps=None)
        if table.examples is not None and not participant.counted:
            participant = replace(participant, examples=table.examples, counted=True)
        return participant

    return replace(round_, participants=tuple(map(with_facts, round_.participants)))


def _defences(
    table: BundleTable, bundle: Bundle, selection: Selection, clients: Sequence[str], *, has_buffers: bool
) -> tuple[dict[str, tuple[str, ...]] | None, dict[str, Protection]]:
    """Return each client's defences as text, and those that can be run again.

    If the defences of one client are not known, none are credited to any client.
    """
    if table.defended is not None:
        texts = dict.fromkeys(clients, defence_texts(table.defended))
        if not isinstance(table.defended, list):
            return texts, {}
        return texts, dict.fromkeys(clients, defences_of(table.defended))
    declared = [  # in all rounds: a certificate also covers those that are not audited
        (client, bundle.defences_of(client, index))
        for index in bundle.rounds
        for client in selection.aggregated_clients(index) or (clients if index in selection.rounds else ())
    ]
    parts_by_client = {client: parts for client, parts in declared if parts is not None}
    if any(parts is None for _, parts in declared):
        return None, {}
    texts = {client: tuple(map(_defence_text, parts)) for client, parts in parts_by_client.items()}
    # One protection is run again for all rounds of a client: adaptive clipping has another norm in each.
    changing = {client for client, parts in declared if parts != parts_by_client[client]}
    protections = {client: protection_of(parts) for client, parts in parts_by_client.items() if parts}
    return texts, {
        client: protection
        for client, protection in protections.items()
        if protection is not None
        and client not in changing
        # A filter of another framework takes running statistics into account, which no replay has.
        and not (has_buffers and any(isinstance(part, FILTERS) for part in named_parts(protection.release)))
    }


def _defence_text(part: Mapping[str, Any]) -> str:
    options = ", ".join(f"{name}={value!r}" for name, value in (part.get("options") or {}).items())
    adaptive = ", and its epsilon is not computed" if (part.get("options") or {}).get("adaptive") is True else ""
    return defence_text(f"{part['name']}({options}), as the bundle says{adaptive}")


def protection_of(parts: Sequence[Mapping[str, Any]]) -> Protection | None:
    """Return built-in defences with options that they take; None if one of the parts is something else."""
    if any(origin_of("defences", part["name"]) != BUILT_IN or ":" in part["name"] for part in parts):
        return None
    try:
        return defences_of([PartTable(name=part["name"], **(part.get("options") or {})) for part in parts])
    except (UsageError, TypeError, ValueError):
        return None


def _views(selection: Selection, clients: Sequence[str]) -> list[tuple[View, tuple[str, ...]]]:
    """Return each view with the clients behind it: their truth is needed to score it."""
    if selection.view == "aggregate":
        return [(AggregateView(index), selection.aggregated_clients(index)) for index in selection.rounds]
    return [
        (ServerView(clients.index(client), index), (client,))
        for index in selection.rounds
        for client in selection.clients_with_updates(index)
    ]


def _is_possible(view: View, transcript: Transcript, truths: Truths | None) -> bool:
    """Check that rounds which are attacked together have the same examples behind them, as far as that is known."""
    if not isinstance(view, Together):
        return True
    try:
        view.see(transcript, Knows(), truths)
    except UsageError:
        return False
    return True


def model_spec(table: BundleTable, bundle: Bundle, truths: Truths | None) -> ModelSpec:
    """Return what the plan gives or else the bundle; what neither has is asked for by its key."""
    facts = bundle.facts
    owner = next(iter(truths.examples.values()), None) if truths is not None else None
    shape = table.shape or preferred(facts, "shape") or (None if owner is None else list(owner.images.shape[1:]))
    whitening, recorded = None if table.whitening is None else table.whitening.value(), preferred(facts, "whitening")
    if whitening is None and recorded is not None:
        whitening = Whitening(tuple(recorded["mean"]), tuple(recorded["std"]))
    classes = table.classes or preferred(facts, "classes")
    if shape is None or classes is None or whitening is None:
        values = {"shape": shape, "classes": classes, "whitening": whitening}
        missing = [key for key, value in values.items() if value is None]
        raise UsageError(("shape" in missing and input_problem(bundle)) or _ask_for(bundle, missing))
    channels, height, width = shape
    if len(whitening.mean) not in (1, channels):
        raise UsageError(f"{bundle.folder}: the whitening must have one mean for each of the {channels} channels.")
    for client, examples in ({} if truths is None else truths.examples).items():
        _check_truth(bundle, client, examples, (channels, height, width), classes, _ignored(bundle, client, table))
    return _model_name(bundle, table.model), (channels, height, width), classes, whitening


def _ignored(bundle: Bundle, client: str, table: BundleTable) -> frozenset[int]:
    """Return the labels that the loss of a client ignores, in the plan or as recorded."""
    losses = [] if table.training is None else [table.training.value().loss]
    losses += [(loss_fact(bundle.facts_of(client, index)) or {}).get("loss") for index in bundle.rounds]
    return frozenset(loss.ignore_index for loss in losses if isinstance(loss, CrossEntropy))


def _check_truth(
    bundle: Bundle,
    client: str,
    examples: Examples,
    shape: tuple[int, int, int],
    classes: int,
    ignored: frozenset[int],
) -> None:
    if tuple(examples.images.shape[1:]) != shape:
        raise DataError(
            f"recording.truth has images of shape {tuple(examples.images.shape[1:])} of {client!r}, expected {shape} "
            f"as {bundle.folder} says: correct one of them."
        )
    labels = examples.labels
    if not is_class_labels(labels):
        if labels.is_floating_point() and labels.shape[1] != classes:
            raise DataError(
                f"recording.truth has {labels.shape[1]} numbers as a target of {client!r}, expected {classes} as "
                f"{bundle.folder} says: correct one of them."
            )
        return
    if not len(labels) or any(label not in ignored and not 0 <= label < classes for label in set(labels.tolist())):
        raise DataError(
            f"recording.truth has labels of {client!r} outside the {classes} classes of {bundle.folder} (0 is the "
            "first): correct one of them."
        )


def input_problem(bundle: Bundle) -> str:
    """Return what to tell a user if the network's inputs were not images; empty if nothing says so."""
    shape = preferred(bundle.facts, INPUTS)
    if not isinstance(shape, list) or preferred(bundle.facts, "shape") is not None:
        return ""
    return (
        f"{bundle.folder} was recorded from a network with inputs of shape {str(tuple(shape))[:300]}, and fedglass "
        "attacks images (channels, height, width) only: it cannot tell what these messages reveal."
    )


def _ask_for(bundle: Bundle, missing: Sequence[str]) -> str:
    """Return where missing facts can come from: a server does not know how its clients normalise their images."""
    from_clients = bundle.manifest.writer == "server" and "shape" in missing
    return (
        f"{bundle.folder} does not have its {', '.join(missing)}, expected in the bundle or the plan: "
        + ("add the clients' own recordings with `fedglass join`, or " if from_clients else "")
        + f"add {', '.join(f'recording.{key}' for key in missing)} to a plan, which `fedglass init --from "
        f"{bundle.folder}` writes."
    )


def _model_name(bundle: Bundle, model: str | None) -> str:
    """Return the model that the user names, or a built-in one that the bundle names: no data file may run code."""
    if model is not None:
        return model
    recorded = preferred(bundle.facts, "model")
    if recorded is None:
        raise UsageError(f"{bundle.folder} does not name its model: say which with --model or recording.model.")
    if origin_of("models", recorded) != BUILT_IN:
        raise UsageError(
            f"{bundle.folder} names the model {recorded!r}, which is code that is not part of fedglass: if you trust "
            f"it, say so with --model {recorded}, and --code DIR for its folder, or recording.model."
        )
    return str(recorded)
