"""Which rounds and whose messages of a bundle are looked at, and from where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fedglass.bundle.facts import best
from fedglass.bundle.manifest import RoundFacts, sheet
from fedglass.bundle.reader import Bundle
from fedglass.core.errors import UsageError
from fedglass.plan.keys import MOST_CASES

Seat = Literal["server", "aggregate"]


@dataclass(frozen=True, eq=False)
class Choice:
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
        kept = best(sheet(past.facts), "kept")
        return tuple(name for name in _answered(past) if kept is None or name in kept)


def _answered(past: RoundFacts) -> list[str]:
    return [message.client for message in past.messages if message.absent is None]


def chosen(
    bundle: Bundle,
    view: str | None,
    rounds: Sequence[int] | Literal["all"] | None = None,
    names: Sequence[str] | None = None,
) -> Choice:
    """What is asked for, or else what shows everybody once, as the server saw it; refuses what is not there."""
    strangers = [name for name in names or () if name not in bundle.clients]
    if strangers:
        raise UsageError(
            f"recording.whose names {strangers[0]!r}, expected clients of {bundle.folder}: "
            f"{', '.join(map(repr, bundle.clients[:10]))}."
        )
    seat = _seat(bundle, view)
    whose = None if names is None else tuple(names)
    reasons = {index: why_not(bundle, index, seat, whose) for index in bundle.rounds}
    usable = [index for index, reason in reasons.items() if not reason]
    if not usable:
        why = next(iter(reasons.values()), "it holds no round yet, record one first")
        raise UsageError(f"{bundle.folder} has nothing to attack: {why}.")
    if rounds is None:
        wanted: Sequence[int] = _showing_everybody(Choice(bundle, seat, tuple(usable), whose))
    else:
        wanted = usable if rounds == "all" else rounds
    _check_rounds(bundle, wanted, reasons)
    choice = Choice(bundle, seat, tuple(dict.fromkeys(wanted)), whose)
    count = sum(1 if seat == "aggregate" else len(choice.whose(index)) for index in choice.rounds)
    if count > MOST_CASES:
        raise UsageError(f"{bundle.folder}: {count:,} messages are too many: choose recording.rounds and .whose.")
    # Who names rounds or clients has decided what is to be looked at, and the report says what that was. In the rounds
    # that are named everybody is meant.
    meant = choice.rounds if isinstance(rounds, list | tuple) else tuple(bundle.rounds)
    overlooked = _overlooked(choice, meant) if names is None else ()
    return Choice(bundle, seat, choice.rounds, whose, tuple(_left(bundle, choice, usable, reasons)), overlooked)


def _showing_everybody(all_of_it: Choice) -> list[int]:
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


def _overlooked(choice: Choice, meant: Sequence[int]) -> tuple[str, ...]:
    present = dict.fromkeys(name for index in meant for name in choice.present(index))
    seen = {name for index in choice.rounds for name in choice.seen(index)}
    return tuple(name for name in present if name not in seen)


def why_not(bundle: Bundle, index: int, seat: Seat, names: tuple[str, ...] | None) -> str:
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
    if seat == "server" and not Choice(bundle, seat, (index,), names).whose(index):
        return f"round {index} was recorded without a message of those clients"
    return ""


def _sent_their_own(bundle: Bundle, index: int) -> list[str]:
    """Who of those in the aggregate began with another model than the rest."""
    behind = Choice(bundle, "aggregate", (index,)).people(index)
    return [m.client for m in bundle.rounds[index].messages if m.sent is not None and m.client in behind]


def _seat(bundle: Bundle, view: str | None) -> Seat:
    if view in ("server", "aggregate"):
        return "server" if view == "server" else "aggregate"
    messages = any(message.received is not None for past in bundle.rounds.values() for message in past.messages)
    return "server" if messages and best(bundle.facts, "sees") != "aggregate" else "aggregate"


def _check_rounds(bundle: Bundle, wanted: Sequence[int], reasons: dict[int, str]) -> None:
    for index in wanted:
        if index not in reasons:
            known = ", ".join(map(str, list(reasons)[:20]))
            raise UsageError(f"recording.rounds names {index}, expected rounds of {bundle.folder}: {known}.")
        if reasons[index]:
            raise UsageError(f"recording.rounds can not have {index}: {reasons[index]}; choose another.")


def _left(bundle: Bundle, choice: Choice, usable: list[int], reasons: dict[int, str]) -> Iterator[str]:
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
