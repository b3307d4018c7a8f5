"""Which rounds and whose messages of a bundle are looked at, and from where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from fedglass.core.errors import FedglassError, UsageError
from fedglass.core.tensors import Params
from fedglass.models.names import names_of
from fedglass.plan.tables import MOST_CASES
from fedglass.recordings.format import (
    EXTRA_ARRAYS,
    INCOMPLETE,
    INPUTS,
    FileRef,
    RoundFacts,
    large_metrics,
    preferred,
    sheet,
)
from fedglass.recordings.observed import contradictions_of
from fedglass.recordings.reader import Bundle
from fedglass.recordings.transcript import TranscriptReader

Seat = Literal["server", "aggregate"]


@dataclass(frozen=True, eq=False)
class Selection:
    """Messages of a bundle."""

    bundle: Bundle
    view: Seat
    rounds: tuple[int, ...]
    """By the federation's own numbers."""
    names: tuple[str, ...] | None = None
    """Whose; None for everybody's."""
    left: tuple[str, ...] = ()
    """What is not looked at, and why."""
    overlooked: tuple[str, ...] = ()
    """Clients that took part and can not be looked at, where nobody has said that they need not be."""

    def whose(self, index: int) -> tuple[str, ...]:
        """Whose messages of a round are looked at one by one."""
        past = self.bundle.rounds[index]
        return tuple(
            message.client
            for message in past.messages
            if message.received is not None
            and (message.sent or past.sent) is not None
            and (self.names is None or message.client in self.names)
        )

    def seen(self, index: int) -> tuple[str, ...]:
        """Who would be looked at in a round."""
        return self.people(index) if self.view == "aggregate" else self.whose(index)

    def present(self, index: int) -> tuple[str, ...]:
        """Who has told something of its examples in a round: the server has seen what a rule then left out as well."""
        past = self.bundle.rounds[index]
        return self.people(index) if self.view == "aggregate" else tuple(_answered(past))

    def people(self, index: int) -> tuple[str, ...]:
        """Whose examples are in the aggregate of a round."""
        past = self.bundle.rounds[index]
        kept = preferred(sheet(past.facts), "kept")
        return tuple(name for name in _answered(past) if kept is None or name in kept)


def _answered(past: RoundFacts) -> list[str]:
    return [message.client for message in past.messages if message.absent is None]


def select_messages(
    bundle: Bundle,
    view: str | None,
    rounds: Sequence[int] | Literal["all"] | None = None,
    names: Sequence[str] | None = None,
) -> Selection:
    """What is asked for, or else what shows everybody once, as the server saw it; refuses what is not there."""
    strangers = [name for name in names or () if name not in bundle.clients]
    if strangers:
        raise UsageError(
            f"recording.whose names {strangers[0]!r}, expected clients of {bundle.folder}: "
            f"{', '.join(map(repr, bundle.clients[:10]))}."
        )
    seat = _seat(bundle, view)
    whose = None if names is None else tuple(names)
    reasons = {index: reason_to_skip(bundle, index, seat, whose) for index in bundle.rounds}
    usable = [index for index, reason in reasons.items() if not reason]
    if not usable:
        why = next(iter(reasons.values()), "it holds no round yet, record one first")
        raise UsageError(f"{bundle.folder} has nothing to attack: {why}.")
    if rounds is None:
        wanted: Sequence[int] = _showing_everybody(Selection(bundle, seat, tuple(usable), whose))
    else:
        wanted = usable if rounds == "all" else rounds
    _check_rounds(bundle, wanted, reasons)
    choice = Selection(bundle, seat, tuple(dict.fromkeys(wanted)), whose)
    count = sum(1 if seat == "aggregate" else len(choice.whose(index)) for index in choice.rounds)
    if count > MOST_CASES:
        raise UsageError(f"{bundle.folder}: {count:,} messages are too many: choose recording.rounds and .whose.")
    # Who names rounds or clients has decided what is to be looked at, and the report says what that was. In the rounds
    # that are named everybody is meant.
    meant = choice.rounds if isinstance(rounds, list | tuple) else tuple(bundle.rounds)
    overlooked = _overlooked(choice, meant) if names is None else ()
    return Selection(bundle, seat, choice.rounds, whose, tuple(_left(bundle, choice, usable, reasons)), overlooked)


def _showing_everybody(all_of_it: Selection) -> list[int]:
    """The first and the last round, and of clients that are in neither the first one that they are in.

    A client that nobody has looked at may leak whatever the others' messages show.
    """
    rounds = all_of_it.rounds
    found, seen = {rounds[0], rounds[-1]}, {name for index in (rounds[0], rounds[-1]) for name in all_of_it.seen(index)}
    for index in rounds:
        new = set(all_of_it.seen(index)) - seen
        if new:
            found.add(index)
            seen |= new
    return sorted(found)


def _overlooked(choice: Selection, meant: Sequence[int]) -> tuple[str, ...]:
    present = dict.fromkeys(name for index in meant for name in choice.present(index))
    seen = {name for index in choice.rounds for name in choice.seen(index)}
    return tuple(name for name in present if name not in seen)


def reason_to_skip(bundle: Bundle, index: int, seat: Seat, names: tuple[str, ...] | None) -> str:
    """Why a round can not be looked at; empty where it can."""
    past, following = bundle.rounds[index], bundle.rounds.get(index + 1)
    if past.sent is None and (seat == "aggregate" or not any(message.sent for message in past.messages)):
        return f"round {index} was recorded without the model that was sent"
    if seat == "aggregate" and past.aggregated is None and (following is None or following.sent is None):
        return f"round {index} was recorded without its aggregate"
    if seat == "aggregate" and (others := _sent_their_own(bundle, index)):
        return (
            f"in round {index} {others[0]} was sent a model of its own, so that the aggregate adds to no one model and "
            "only single messages can be looked at"
        )
    if seat == "server" and not Selection(bundle, seat, (index,), names).whose(index):
        return f"round {index} was recorded without a message of those clients"
    return ""


def _sent_their_own(bundle: Bundle, index: int) -> list[str]:
    """Who of those in the aggregate began with another model than the rest."""
    behind = Selection(bundle, "aggregate", (index,)).people(index)
    return [m.client for m in bundle.rounds[index].messages if m.sent is not None and m.client in behind]


def _seat(bundle: Bundle, view: str | None) -> Seat:
    if view in ("server", "aggregate"):
        return "server" if view == "server" else "aggregate"
    messages = any(message.received is not None for past in bundle.rounds.values() for message in past.messages)
    return "server" if messages and preferred(bundle.facts, "sees") != "aggregate" else "aggregate"


def _check_rounds(bundle: Bundle, wanted: Sequence[int], reasons: dict[int, str]) -> None:
    for index in wanted:
        if index not in reasons:
            known = ", ".join(map(str, list(reasons)[:20]))
            raise UsageError(f"recording.rounds names {index}, expected rounds of {bundle.folder}: {known}.")
        if reasons[index]:
            raise UsageError(f"recording.rounds can not have {index}: {reasons[index]}; choose another.")


def _left(bundle: Bundle, choice: Selection, usable: list[int], reasons: dict[int, str]) -> Iterator[str]:
    yield from (reason for reason in reasons.values() if reason)
    rest = [str(index) for index in usable if index not in choice.rounds]
    if rest:
        yield f"rounds {', '.join(rest[:20])}: choose them with recording.rounds"
    for index in choice.rounds:
        for message in bundle.rounds[index].messages:
            if message.absent is not None:
                yield f"{message.client} in round {index}: absent ({message.absent or 'no reason given'})"
            elif choice.view == "server" and message.received is None:
                yield f"{message.client} in round {index}: its message was not seen"
            elif choice.view == "server" and message.sent is None and bundle.rounds[index].sent is None:
                yield f"{message.client} in round {index}: the model that it was sent was not recorded"


# What is told of a bundle's messages beside their arrays, by the rounds and names of a transcript.


MISSED = "somebody whom the recorder lost"
MOST_SAID, LONGEST_SAID = 20, 300
"""Of what a recorder tells of its own accord: how many entries, of how many characters, a report repeats."""


def base_of(bundle: Bundle) -> int:
    """What the federation calls the round that a transcript calls 0: some count from 0, and some from 1."""
    return 0 if 0 in bundle.rounds else 1


def input_problem(bundle: Bundle) -> str:
    """What is to be said where a network was given something else than images; empty where nobody says so."""
    given = preferred(bundle.facts, INPUTS)
    if not isinstance(given, list) or preferred(bundle.facts, "shape") is not None:
        return ""
    return (
        f"{bundle.folder} was recorded from a network whose inputs have shape {str(tuple(given))[:LONGEST_SAID]}, and "
        "fedglass attacks images (channels, height, width) alone: it can say nothing of what these messages give away."
    )


def attendance_of(bundle: Bundle, choice: Selection) -> dict[int, tuple[str, ...]]:
    """Who was there in which round; where the numbering leaves some out, everybody may have been, at least once.

    Also before the first: who begins to record in round 5 has not seen four.
    """
    base = base_of(bundle)
    present = {index - base: tuple(choice.present(index)) for index in bundle.rounds}
    for one, other in pairwise((-1, *sorted(present))):
        if other > one + 1:
            present[one + 1] = bundle.clients
    return present


def unaudited_clients(bundle: Bundle, choice: Selection) -> tuple[str, ...]:
    """Who took part and is not looked at; whom a recorder has lost nobody can name."""
    return (*choice.overlooked, *((MISSED,) if preferred(bundle.facts, INCOMPLETE) else ()))


def contradictions_by_client(
    bundle: Bundle, model: nn.Module, choice: Selection
) -> dict[tuple[int, str], tuple[str, ...]]:
    """What is not as it was said, by round and client."""
    doubts: dict[tuple[int, str], tuple[str, ...]] = {}
    for index in choice.rounds:
        past = bundle.rounds[index]
        sent = past.sent or next(message.sent for message in past.messages if message.sent is not None)
        names = names_of([(a.name, tuple(a.shape)) for a in sent.arrays], model, str(bundle.folder / sent.file))
        for found in contradictions_of(bundle, index, names.model):
            if found.statistics_only:
                continue
            key = (found.round - base_of(bundle), found.client)
            doubts[key] = (*doubts.get(key, ()), found.text)
    return doubts


def recorder_statements(bundle: Bundle, choice: Selection, fact: str) -> dict[tuple[int, str], tuple[str, ...]]:
    """What recorders tell of their own accord, by round and client."""
    found = {
        (index - base_of(bundle), message.client): preferred(bundle.facts_of(message.client, index), fact)
        for index in choice.rounds
        for message in bundle.rounds[index].messages
    }
    said_of = {turn: said if isinstance(said, dict | list) else [said] for turn, said in found.items() if said}
    told = {turn: list(said)[:MOST_SAID] for turn, said in said_of.items()}
    return {turn: tuple(str(each)[:LONGEST_SAID] for each in said) for turn, said in told.items() if said}


# What was sent beside the messages that attacks read: the examples may be in there, or the noise that hides them.


Beside = dict[tuple[int, str], tuple[str, ...]]
"""By round and client."""


def extra_payload(bundle: Bundle, model: nn.Module, choice: Selection) -> Beside:
    """By name, what left with the messages that are looked at, and no attack reads."""
    found = defaultdict[tuple[int, str], list[str]](list)
    for turn, said in recorder_statements(bundle, choice, EXTRA_ARRAYS).items():
        found[turn] += said
    for index in choice.rounds:
        for message in bundle.rounds[index].messages:
            turn = (index - base_of(bundle), message.client)
            found[turn] += [f"metric {name}" for name in large_metrics(bundle.facts_of(message.client, index))]
            held = bundle.rounds[index].aggregated if choice.view == "aggregate" else message.received
            if held is not None and message.absent is None:
                found[turn] += divergent_aliases(bundle, held, model)
    return {turn: tuple(names) for turn, names in found.items() if names}


def unaudited_updates(reading: TranscriptReader, choice: Selection) -> dict[tuple[int, str], Params]:
    """What the server has got in the same rounds of those that nobody has asked about, as far as it can be read."""
    found: dict[tuple[int, str], Params] = {}
    for index in choice.rounds if choice.view == "server" and choice.names is not None else ():
        everybody = replace(choice, names=None).whose(index)
        for client in (name for name in everybody if name not in choice.whose(index)):
            with suppress(FedglassError):
                (message,) = reading.round(index, [client]).messages
                found[index - base_of(choice.bundle), client] = message.update
    return found


def divergent_aliases(bundle: Bundle, held: FileRef, model: nn.Module) -> Iterator[str]:
    """Tensors that the model has under two names, and that were sent with other values, or alone, under the second.

    Attacks read the first. A defence that goes through the parameters, of which torch names each once, passes over
    the second.
    """
    firsts: dict[int, str] = {}
    twice = {name: firsts[id(t)] for name, t in _state(model) if firsts.setdefault(id(t), name) != name}
    if not twice:
        return
    names = names_of([(a.name, tuple(a.shape)) for a in held.arrays], model, str(bundle.folder / held.file))
    sent = names.applied(bundle.arrays(held))
    for name, first in twice.items():
        if name in sent and (first not in sent or not torch.equal(sent[name], sent[first])):
            yield name


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """By name, the very tensors of a model."""
    yield from model.state_dict(keep_vars=True).items()
