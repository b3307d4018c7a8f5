"""Layers that clients do not train, as in fine-tuning: a message tells nothing by not moving them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from torch import Tensor

from fedglass.core.params import Params, Update
from fedglass.core.types import Observation
from fedglass.models.fixed import can_be_fixed, unmoved, with_fixed
from fedglass.rounds.transcript import Participant, Round


def still(before: Params, update: Update, mean: bool = False) -> tuple[str, ...]:
    """The parameters that a message did not move; none where it moved nothing at all, which says something else.

    A mean over clients rounds. A client's own difference does not: however small, it tells of the data.
    """
    found = tuple(
        name
        for name, tensor in before.items()
        if (unmoved(tensor, update[name]) if mean else not bool(update[name].any()))
    )
    return found if len(found) < len(before) else ()


def with_still(past: Round, unprotected: Collection[str]) -> Round:
    """The round with what did not move taken as not trained, of these clients.

    Of others it is not: a defence may have cut it out of the message.
    """

    def told(person: Participant) -> Participant:
        if person.name not in unprotected:
            return person
        message = past.message(person.name)
        start = past if message is None or message.own is None else message.own
        found = still(start.before, past.step, mean=True) if message is None else still(start.before, message.update)
        return replace(person, untrained=tuple(dict.fromkeys((*person.untrained, *found))))

    return replace(past, participants=tuple(map(told, past.participants)))


def untrained_by_all(people: Sequence[Participant]) -> tuple[str, ...]:
    """What none of them trains."""
    first, *others = people
    return tuple(name for name in first.untrained if all(name in other.untrained for other in others))


def without_untrained(observation: Observation, names: Collection[str]) -> Observation:
    """The same seen as an update of the other parameters: these are constants of the network.

    But for what has moved in it: an aggregate may hold what none of its messages did, as far as anybody saw them.
    """
    before, update = observation.before, observation.update
    fixed = [name for name in can_be_fixed(observation.model) if name in names and unmoved(before[name], update[name])]
    if not fixed:
        return observation
    values = {name: before[name] for name in fixed}
    own = observation.own
    return replace(
        observation,
        model=with_fixed(observation.model, fixed),
        before=_without(before, fixed),
        update=_without(update, fixed),
        buffers={**observation.buffers, **values},
        own=None if own is None else replace(own, update=_without(own.update, fixed)),
    )


def _without(params: Params, names: Collection[str]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in params.items() if name not in names}
