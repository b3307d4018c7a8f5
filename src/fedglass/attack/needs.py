"""What a part needs it says itself, and an attack needs what its parts do: the one place where they are asked.

A part has a class attribute for each of these that is not empty:

- `needs`: facts that it can not do without;
- `uses`: facts that it can do without, but makes use of where they are known;
- `supplies`: facts that it gives to the parts inside it, such as a training that it supposes.

A stage's operator may also have a method `reads(observation)`: facts that it takes from the message itself, for all
parts of its stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Protocol, runtime_checkable

from fedglass.core.facts import Fact, refusal
from fedglass.core.types import Observation

NOTHING: frozenset[Fact] = frozenset()


@runtime_checkable
class Reads(Protocol):
    """A part that takes facts from the message itself, for the parts beside it."""

    def reads(self, observation: Observation) -> frozenset[Fact]: ...


def reads_of(part: object, observation: Observation) -> frozenset[Fact]:
    """What a part takes from the message itself; nothing for a part that does not say."""
    return part.reads(observation) if isinstance(part, Reads) else NOTHING


def needs_of(part: object) -> frozenset[Fact]:
    """What a part and all that it is composed of need, less what one of them supplies to those inside it.

    >>> from fedglass.attack.labels.given import OracleLabels
    >>> needs_of((OracleLabels(), 3))
    frozenset({Fact.LABELS})
    """
    inside = NOTHING.union(*map(needs_of, _inside(part)))
    return _said(part, "needs") | (inside - _said(part, "supplies"))


def uses_of(part: object) -> frozenset[Fact]:
    """What a part or anything that it is composed of makes use of without needing it."""
    return NOTHING.union(*(_said(each, "uses") for each in parts_of(part)))


def check_needs(attack: object, observation: Observation) -> None:
    """Refuse an attack with a part that needs what the adversary does not have, in the name of that part."""
    lacking = _lacking(attack, observation, observation.facts)
    if lacking:
        fact, who = min(lacking, key=lambda pair: list(Fact).index(pair[0]))
        raise refusal(who, [fact])


def parts_of(value: object) -> Iterator[object]:
    """The value and everything that it is composed of."""
    yield value
    for child in _inside(value):
        yield from parts_of(child)


def _inside(value: object) -> tuple[object, ...]:
    if isinstance(value, tuple):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(getattr(value, field.name) for field in fields(value))
    return ()


def _lacking(part: object, observation: Observation, known: frozenset[Fact]) -> list[tuple[Fact, str]]:
    """The facts that are missing, each with the name of the part that asks for it."""
    own = [(fact, type(part).__name__) for fact in _said(part, "needs") - known]
    inside = [pair for child in _inside(part) for pair in _lacking(child, observation, known)]
    if not inside:  # the message is looked at only where something is missing
        return own
    supplied = _said(part, "supplies") | reads_of(part, observation)
    return own + [(fact, who) for fact, who in inside if fact not in supplied]


def _said(part: object, what: str) -> frozenset[Fact]:
    found: frozenset[Fact] = getattr(part, what, NOTHING)
    return found
