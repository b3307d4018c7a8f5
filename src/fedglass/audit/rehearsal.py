"""A rehearsal of an audit: what could only fail after the training, or deep in an attack, is refused before both.

Nothing is trained or attacked. The parts of every attack are bound to a message of zeros, and a defence sees two
examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedglass.attack.hypotheses import AnyAttack
from fedglass.attack.needs import needs_of
from fedglass.audit.failures import blaming
from fedglass.audit.isolation import without_unused_oracles
from fedglass.audit.recorded import Recorded
from fedglass.audit.target import Source
from fedglass.core.facts import Fact, refusal
from fedglass.core.types import Observation


def rehearse(sources: Sequence[Source], attacks: Mapping[str, AnyAttack]) -> None:
    """Refuse the first attack or defence that could not be played, in a sentence that says why."""
    for source in sources:
        # Views that differ in the client alone are all alike, unless the client trains in its own way.
        different = {_told(seen.observation): seen.observation for seen in source.rehearse()}
        for observation in different.values():
            for name, attack in attacks.items():
                with blaming(f"attack {name!r}"):
                    _check_dealt(source, attack)
                    _try_attack(attack, observation)


def _check_dealt(source: Source, attack: AnyAttack) -> None:
    """Unequal clients are simulated by their own numbers of examples, never by a guess at them."""
    if isinstance(source, Recorded) and source.dealt and Fact.CLIENT_SIZES in needs_of(attack):
        raise refusal("Simulating an aggregate", [Fact.EQUAL_CLIENTS])


def _told(observation: Observation) -> tuple[object, ...]:
    """What an attack's answer may depend on."""
    knows = observation.knows
    return knows.sizes, knows.training, knows.steps, knows.lr, observation.facts


def _try_attack(attack: AnyAttack, observation: Observation) -> None:
    """Ask the attack what it would refuse, with what it will be told."""
    attack.check(replace(observation, knows=without_unused_oracles(observation.knows, attack)))
