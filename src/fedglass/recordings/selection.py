"""Selection of the rounds and messages of a bundle that are audited, and from which view.

Also facts about the selected messages that are not in the arrays which attacks read: attendance, contradictions,
statements of the recorder, and further payload. Private examples may be in what was sent next to the model, and the
noise that hides them may be in another update. All are by round and client.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import nn

from fedglass.core.errors import FedglassError, UsageError
from fedglass.core.tensors import Params, moved_others, moved_statistics
from fedglass.core.text import some
from fedglass.core.types import Training
from fedglass.defend.dpsgd import DPSGD
from fedglass.defend.noise_model import NoiseModel, noise_model
from fedglass.fl.release import Protection
from fedglass.recordings.facts import EXTRA_ARRAYS, INCOMPLETE, METRIC_SIZES, large_metrics, preferred
from fedglass.recordings.format import FileRef
from fedglass.recordings.observed import beyond_clipping, contradictions_of, without_noise
from fedglass.recordings.reader import Bundle, aggregated_clients, present_clients
from fedglass.recordings.transcript import TranscriptReader

RecordedView = Literal["server", "aggregate"]
"""Each client's message, or the aggregate alone."""
MOST_MESSAGES = 100_000
"""Messages that one audit can select."""
TextsByClient = dict[tuple[int, str], tuple[str, ...]]
"""By round and client; the key of the round itself has no client's name."""
UNIDENTIFIED = "an unidentified client (recording incomplete)"
TINY = 1e-30
"""A learning rate at which noise inside local steps is none."""
MOST_STATEMENTS, MOST_LETTERS = 20, 300
"""How many statements of a recorder a report repeats, and how many characters of each."""


@dataclass(frozen=True, eq=False)
class Selection:
    """Messages of a bundle that are audited."""

    bundle: Bundle
    view: RecordedView
    rounds: tuple[int, ...]
    """By the federation's own numbers."""
    clients: tuple[str, ...] | None = None
    """The clients that were asked for; None for all of them."""
    skipped: tuple[str, ...] = ()
    """What is not audited, and why, as text."""
    unaudited: tuple[str, ...] = ()
    """Clients that took part and cannot be audited, unless the user left them out."""

    def clients_with_updates(self, index: int) -> tuple[str, ...]:
        """Return the clients with messages of a round that can be audited one by one."""
        round_ = self.bundle.rounds[index]
        return tuple(
            message.client
            for message in round_.messages
            if message.received is not None
            and (message.sent or round_.sent) is not None
            and (self.clients is None or message.client in self.clients)
        )

    def audited_clients(self, index: int) -> tuple[str, ...]:
        """Return the clients that are audited in a round."""
        return self.aggregated_clients(index) if self.view == "aggregate" else self.clients_with_updates(index)

    def defended_clients(self, index: int) -> set[tuple[str, str]]:
        """Return the clients that are audited in a round, each with its declared defences."""
        names = self.audited_clients(index)
        return {(name, json.dumps(self.bundle.defences_of(name, index), sort_keys=True)) for name in names}

    def respondents(self, index: int) -> tuple[str, ...]:
        """Return the clients that revealed something in a round: a server also sees updates that its rule rejects."""
        return (
            self.aggregated_clients(index) if self.view == "aggregate" else present_clients(self.bundle.rounds[index])
        )

    def aggregated_clients(self, index: int) -> tuple[str, ...]:
        """Return the clients in the aggregate of a round."""
        return aggregated_clients(self.bundle.rounds[index])


def select_messages(
    bundle: Bundle,
    view: str | None,
    rounds: Sequence[int] | Literal["all"] | None = None,
    clients: Sequence[str] | None = None,
) -> Selection:
    """Return the messages that were asked for, or by default some rounds in which every client appears.

    The default view is that of the federation's own server. Rounds and clients that cannot be audited are refused.
    """
    unknown = [name for name in clients or () if name not in bundle.clients]
    if unknown:
        raise UsageError(
            f"recording.whose names {unknown[0]!r}, expected clients of {bundle.folder}: "
            f"{', '.join(map(repr, bundle.clients[:10]))}."
        )
    if view not in ("server", "aggregate"):
        messages = any(message.received is not None for round_ in bundle.rounds.values() for message in round_.messages)
        view = "server" if messages and preferred(bundle.facts, "sees") != "aggregate" else "aggregate"
    recorded_view: RecordedView = "server" if view == "server" else "aggregate"
    everything = Selection(bundle, recorded_view, tuple(bundle.rounds), None if clients is None else tuple(clients))
    reasons = {index: _reason_to_skip(everything, index) for index in bundle.rounds}
    usable = tuple(index for index, reason in reasons.items() if not reason)
    if not usable:
        why = next(iter(reasons.values()), "it holds no round yet, record one first")
        raise UsageError(f"{bundle.folder} has nothing to attack: {why}.")
    if rounds is None:
        wanted: Sequence[int] = _rounds_with_every_client(replace(everything, rounds=usable))
    else:
        wanted = usable if rounds == "all" else rounds
    for index in wanted:
        if index not in reasons:
            recorded = ", ".join(map(str, list(reasons)[:20]))
            raise UsageError(f"recording.rounds names {index}, expected rounds of {bundle.folder}: {recorded}.")
        if reasons[index]:
            raise UsageError(f"recording.rounds cannot have {index}: {reasons[index]}; choose another.")
    selection = replace(everything, rounds=tuple(dict.fromkeys(wanted)))
    count = sum(
        1 if selection.view == "aggregate" else len(selection.clients_with_updates(index)) for index in selection.rounds
    )
    if count > MOST_MESSAGES:
        raise UsageError(f"{bundle.folder}: {count:,} messages are too many: choose recording.rounds and .whose.")
    # A user who names rounds or clients has decided what is audited, and the report says what that was. In the rounds
    # that are named every client is meant.
    meant = selection.rounds if isinstance(rounds, list | tuple) else tuple(bundle.rounds)
    respondents = dict.fromkeys(name for index in meant for name in selection.respondents(index))
    audited = {name for index in selection.rounds for name in selection.audited_clients(index)}
    return replace(
        selection,
        skipped=tuple(_skipped(selection, usable, reasons)),
        unaudited=tuple(name for name in respondents if name not in audited) if clients is None else (),
    )


def _reason_to_skip(selection: Selection, index: int) -> str:
    """Return why a round cannot be audited; empty if it can."""
    rounds = selection.bundle.rounds
    round_, following = rounds[index], rounds.get(index + 1)
    aggregate = selection.view == "aggregate"
    if round_.sent is None and (aggregate or not any(message.sent for message in round_.messages)):
        return f"round {index} was recorded without the model that was sent"
    if aggregate and round_.aggregated is None and (following is None or following.sent is None):
        return f"round {index} was recorded without its aggregate"
    aggregated = selection.aggregated_clients(index)
    personalised = [m.client for m in round_.messages if m.sent is not None and m.client in aggregated]
    if aggregate and personalised:
        return (
            f"in round {index} {personalised[0]} was sent a model of its own, so that the aggregate does not add to "
            "one model and only single messages can be audited"
        )
    if not aggregate and not selection.clients_with_updates(index):
        return f"round {index} was recorded without a message of those clients"
    return ""


def _rounds_with_every_client(usable: Selection) -> list[int]:
    """Return the first and the last round, and the first round of clients with other defences than in these.

    A client that no audit covers may leak, whatever the messages of the others show, and so may a client without the
    defences that it has in other rounds.
    """
    first, last = usable.rounds[0], usable.rounds[-1]
    indices, covered = {first, last}, usable.defended_clients(first) | usable.defended_clients(last)
    for index in usable.rounds:
        new = usable.defended_clients(index) - covered
        if new:
            indices.add(index)
            covered |= new
    return sorted(indices)


def _skipped(selection: Selection, usable: Sequence[int], reasons: dict[int, str]) -> Iterator[str]:
    yield from (reason for reason in reasons.values() if reason)
    unused = [str(index) for index in usable if index not in selection.rounds]
    if unused:
        yield f"rounds {', '.join(unused[:20])}: choose them with recording.rounds"
    for index in selection.rounds:
        round_ = selection.bundle.rounds[index]
        for message in round_.messages:
            if message.absent is not None:
                yield f"{message.client} in round {index}: absent ({message.absent or 'no reason given'})"
            elif selection.view == "server" and message.received is None:
                yield f"{message.client} in round {index}: its message was not seen"
            elif selection.view == "server" and message.sent is None and round_.sent is None:
                yield f"{message.client} in round {index}: the model that it was sent was not recorded"


# Facts about the selected messages.


def attendance_by_round(selection: Selection) -> dict[int, tuple[str, ...]]:
    """Return the clients of each recorded round, and all clients for one round of every gap in the numbers.

    There is also a gap before the first recorded round: a recording that begins with round 5 has missed four.
    """
    bundle = selection.bundle
    attendance = {index: selection.respondents(index) for index in bundle.rounds}
    for before, after in pairwise((bundle.first_round - 1, *bundle.rounds)):
        if after > before + 1:
            attendance[before + 1] = bundle.clients
    return attendance


def unaudited_clients(selection: Selection) -> tuple[str, ...]:
    """Return the clients that took part and are not audited; a client that the recorder lost has no name."""
    return (*selection.unaudited, *((UNIDENTIFIED,) if preferred(selection.bundle.facts, INCOMPLETE) else ()))


def certified_rounds(selection: Selection, protections: Mapping[str, Protection]) -> tuple[int, ...]:
    """Return the audited rounds and, where a certificate is possible, all others, which it covers as well."""
    if not protections:
        return selection.rounds
    return tuple(i for i in selection.bundle.rounds if i in selection.rounds or not _reason_to_skip(selection, i))


def contradictions_by_client(
    selection: Selection, reader: TranscriptReader, protections: Mapping[str, Protection]
) -> TextsByClient:
    """Return the contradictions between the recorded facts and the messages that are audited or certified.

    `protections` are the named defences, by client. A round that is not audited is only known to be clipped and to hold
    their noise.
    """
    bundle = selection.bundle
    contradictions = defaultdict[tuple[int, str], list[str]](list)
    for index in certified_rounds(selection, protections):
        round_ = bundle.rounds[index]
        sent = round_.sent or next(message.sent for message in round_.messages if message.sent is not None)
        for finding in contradictions_of(bundle, index, bundle.names(sent, reader.model).model):
            if not finding.statistics_only:
                contradictions[finding.round, finding.client].append(finding.text)
        if index not in selection.rounds:
            for client, text in _unprotected(selection, reader, index, protections):
                contradictions[index, client].append(text)
    return {key: tuple(dict.fromkeys(texts)) for key, texts in contradictions.items()}


def _unprotected(
    selection: Selection, reader: TranscriptReader, index: int, protections: Mapping[str, Protection]
) -> Iterator[tuple[str, str]]:
    """Yield the clients of a round whose messages hold less than their noise, were not clipped, or cannot be read.

    Buffers that moved have no noise either.
    """
    try:
        round_ = reader.round(index, selection.clients_with_updates(index))
    except FedglassError as error:
        yield "", str(error).rstrip(".")
        return
    people = {p.name: p for p in round_.participants}
    messages = [(m.client, m.update, (m.start or round_).buffers, m.buffers) for m in round_.messages]
    if selection.view == "aggregate":
        messages = [("", round_.step, round_.buffers, round_.buffers_after)]
    for client, update, *buffers in messages:
        behind = [people[name] for name in ([client] if client else round_.accepted)]
        moved = [*moved_statistics(*buffers), *moved_others(*buffers, averaged=not client)]
        if moved:
            yield client, f"{some(moved)} left with the update, and no noise covers it"
        total, square, norms = sum(p.weight or p.examples for p in behind), 0.0, list[float]()
        for p in behind:
            # The noise of a release does not depend on the training; that of unknown local steps is not known.
            model = noise_model(protections.get(p.name, Protection()), p.training or Training(lr=TINY), p.examples)
            if not isinstance(model, NoiseModel) or not model.testable:
                continue
            square += ((p.weight or p.examples) / total * model.std) ** 2
            if model.per_round is not None and not isinstance(model.plain.gradient, DPSGD):
                norms.append(model.per_round * model.std)
        kept = {name: tensor for name, tensor in update.items() if not all(name in p.untrained for p in behind)}
        yield from ((client, text) for text in without_noise(kept, math.sqrt(square)))
        if kept and len(norms) == len(behind):
            yield from ((client, text) for text in beyond_clipping(kept, max(norms), math.sqrt(square)))


def recorder_statements(selection: Selection, fact: str) -> TextsByClient:
    """Return the statements that recorders added about the selected messages as a free fact of this name."""
    statements: TextsByClient = {}
    for index in selection.rounds:
        for message in selection.bundle.rounds[index].messages:
            value = preferred(selection.bundle.facts_of(message.client, index), fact)
            texts = list(value if isinstance(value, dict | list) else [value])[:MOST_STATEMENTS] if value else []
            if texts:
                statements[index, message.client] = tuple(str(text)[:MOST_LETTERS] for text in texts)
    return statements


def extra_payload(selection: Selection, model: nn.Module, rounds: tuple[int, ...]) -> TextsByClient:
    """Return the names of what left with the messages of these rounds and no attack reads."""
    bundle = selection.bundle
    payload = defaultdict[tuple[int, str], list[str]](list)
    for key, texts in recorder_statements(replace(selection, rounds=rounds), EXTRA_ARRAYS).items():
        payload[key] += texts
    for index in rounds:
        round_ = bundle.rounds[index]
        for message in round_.messages:
            key = (index, message.client)
            facts = bundle.facts_of(message.client, index)
            large = large_metrics(preferred(facts, "metrics", {}), preferred(facts, METRIC_SIZES))
            payload[key] += [f"metric {name}" for name in large]
            ref = round_.aggregated if selection.view == "aggregate" else message.received
            if ref is not None and message.absent is None:
                payload[key] += divergent_aliases(bundle, ref, model)
    return {key: tuple(names) for key, names in payload.items() if names}


def unaudited_updates(reader: TranscriptReader, selection: Selection) -> dict[tuple[int, str], Params]:
    """Return the readable updates of clients in the selected rounds that the user did not ask for."""
    updates: dict[tuple[int, str], Params] = {}
    for index in selection.rounds if selection.view == "server" and selection.clients is not None else ():
        audited = selection.clients_with_updates(index)
        for client in replace(selection, clients=None).clients_with_updates(index):
            if client not in audited:
                with suppress(FedglassError):
                    (message,) = reader.round(index, [client]).messages
                    updates[index, client] = message.update
    return updates


def divergent_aliases(bundle: Bundle, ref: FileRef, model: nn.Module) -> Iterator[str]:
    """Yield second names of tensors of the model that were sent alone, or with other values than the first name.

    Attacks read the first name. torch names each parameter once, so that a defence that iterates over the
    parameters leaves out the second name.
    """
    first_names: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        first = first_names.setdefault(id(tensor), name)
        if first != name:
            aliases[name] = first
    if not aliases:
        return
    sent = bundle.names(ref, model).applied(bundle.arrays(ref))
    for name, first in aliases.items():
        if name in sent and (first not in sent or not torch.equal(sent[name], sent[first])):
            yield name
