"""Facts about the selected messages of a bundle that are not in the arrays which attacks read.

Attendance, contradictions, statements of the recorder, and further payload: private examples may be in what was sent
next to the model, and the noise that hides them may be in another update. All are by round and client.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import torch
from torch import nn

from fedglass.core.errors import FedglassError
from fedglass.core.tensors import Params
from fedglass.models.names import names_of
from fedglass.recordings.format import EXTRA_ARRAYS, INCOMPLETE, METRIC_SIZES, FileRef, preferred
from fedglass.recordings.observed import contradictions_of
from fedglass.recordings.reader import Bundle
from fedglass.recordings.selection import Selection
from fedglass.recordings.sizes import large_metrics
from fedglass.recordings.transcript import TranscriptReader

TextsByClient = dict[tuple[int, str], tuple[str, ...]]
"""By round and client; the key of the round itself has no client's name."""
UNIDENTIFIED = "an unidentified client (recording incomplete)"
MOST_STATEMENTS, MOST_LETTERS = 20, 300
"""How many statements of a recorder a report repeats, and how many characters of each."""


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


def contradictions_by_client(selection: Selection, model: nn.Module) -> TextsByClient:
    """Return the contradictions between the recorded facts and the messages."""
    bundle = selection.bundle
    contradictions: TextsByClient = {}
    for index in selection.rounds:
        round_ = bundle.rounds[index]
        sent = round_.sent or next(message.sent for message in round_.messages if message.sent is not None)
        names = names_of([(a.name, tuple(a.shape)) for a in sent.arrays], model, str(bundle.folder / sent.file))
        for finding in contradictions_of(bundle, index, names.model):
            if not finding.statistics_only:
                key = (finding.round, finding.client)
                contradictions[key] = (*contradictions.get(key, ()), finding.text)
    return contradictions


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


def extra_payload(selection: Selection, model: nn.Module) -> TextsByClient:
    """Return the names of what left with the selected messages and no attack reads."""
    bundle = selection.bundle
    payload = defaultdict[tuple[int, str], list[str]](list)
    for key, texts in recorder_statements(selection, EXTRA_ARRAYS).items():
        payload[key] += texts
    for index in selection.rounds:
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
    names = names_of([(a.name, tuple(a.shape)) for a in ref.arrays], model, str(bundle.folder / ref.file))
    sent = names.applied(bundle.arrays(ref))
    for name, first in aliases.items():
        if name in sent and (first not in sent or not torch.equal(sent[name], sent[first])):
            yield name
