"""The facts that a part of an attack needs: each part declares its own, and an attack needs what its parts need.

A part has a class attribute for each of these that is not empty:

- `needs`: facts that it cannot do without;
- `uses`: facts that it can do without, but makes use of where they are known;
- `supplies`: facts that it gives to the parts inside it and next to it, such as a training that it guesses.

A stage's operator may also have a method `reads(observation)`: facts that it takes from the message itself, for all
parts of its stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

from fedglass.core.facts import Fact, refusal
from fedglass.core.types import Observation

NO_FACTS: frozenset[Fact] = frozenset()


def reads_of(part: object, observation: Observation) -> frozenset[Fact]:
    """Return the facts that a part takes from the message itself; none for a part that does not say."""
    reads = getattr(part, "reads", None)
    facts: frozenset[Fact] = NO_FACTS if reads is None else reads(observation)
    return facts


def needs_of(part: object) -> frozenset[Fact]:
    """Return the facts that a part and its inner parts need, without those that one of them supplies to another.

    >>> from fedglass.attack.labels.given import OracleLabels
    >>> needs_of((OracleLabels(), 3))
    frozenset({Fact.LABELS})
    """
    inner = (needs_of(child) - supplied for child, supplied in _children(part))
    return _declared(part, "needs").union(*inner)


def uses_of(part: object) -> frozenset[Fact]:
    """Return the facts that a part or one of its inner parts makes use of without needing them."""
    return NO_FACTS.union(*(_declared(inner, "uses") for inner in parts_of(part)))


def supplies_of(part: object) -> frozenset[Fact]:
    """Return the facts that a part or one of its direct children supplies."""
    return _declared(part, "supplies").union(*(_declared(child, "supplies") for child in _inside(part)))


def check_needs(part: object, observation: Observation, supplied: frozenset[Fact] = NO_FACTS) -> None:
    """Refuse a part that needs a fact which the adversary does not have, and name the inner part that needs it."""
    missing = _missing(part, observation, observation.facts | supplied)
    if missing:
        fact, who = min(missing, key=lambda pair: list(Fact).index(pair[0]))
        raise refusal(who, [fact])


def parts_of(value: object) -> Iterator[object]:
    """Yield the value and everything that it is composed of."""
    yield value
    for child in _inside(value):
        yield from parts_of(child)


def _inside(value: object) -> tuple[object, ...]:
    if isinstance(value, tuple):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(getattr(value, field.name) for field in fields(value))
    return ()


def _children(part: object) -> list[tuple[object, frozenset[Fact]]]:
    """Return each child with the facts that its parent and its siblings supply to it."""
    children = _inside(part)
    return [
        (child, _declared(part, "supplies").union(*(_declared(s, "supplies") for s in children if s is not child)))
        for child in children
    ]


def _missing(part: object, observation: Observation, facts: frozenset[Fact]) -> list[tuple[Fact, str]]:
    """Return the missing facts, each with the name of the part that needs it."""
    missing = [(fact, type(part).__name__) for fact in _declared(part, "needs") - facts]
    inside = [pair for child, supplied in _children(part) for pair in _missing(child, observation, facts | supplied)]
    if not inside:  # the message is read only where something is missing
        return missing
    read = reads_of(part, observation)
    return missing + [(fact, who) for fact, who in inside if fact not in read]


def _declared(part: object, attribute: str) -> frozenset[Fact]:
    declared: frozenset[Fact] = getattr(part, attribute, NO_FACTS)
    return declared
