"""What is told of a bundle's messages beside their arrays, by the rounds and names of a transcript."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from fedglass.bundle.facts import INPUTS, LOST, best
from fedglass.bundle.measured import findings_of
from fedglass.bundle.names import names_of
from fedglass.bundle.reader import Bundle
from fedglass.plan.bundle_choice import Choice

MISSED = "somebody whom the recorder lost"
MOST_SAID, LONGEST_SAID = 20, 300
"""Of what a recorder tells of its own accord: how many entries, of how many characters, a report repeats."""


def base_of(bundle: Bundle) -> int:
    """What the federation calls the round that a transcript calls 0: some count from 0, and some from 1."""
    return 0 if 0 in bundle.rounds else 1


def no_images(bundle: Bundle) -> str:
    """What is to be said where a network was given something else than images; empty where nobody says so."""
    given = best(bundle.facts, INPUTS)
    if not isinstance(given, list) or best(bundle.facts, "shape") is not None:
        return ""
    return (
        f"{bundle.folder} was recorded from a network whose inputs have shape {str(tuple(given))[:LONGEST_SAID]}, and "
        "fedglass attacks images (channels, height, width) alone: it can say nothing of what these messages give away."
    )


def attendance_of(bundle: Bundle, choice: Choice) -> dict[int, tuple[str, ...]]:
    """Who was there in which round; where the numbering leaves some out, everybody may have been, at least once.

    Also before the first: who begins to record in round 5 has not seen four.
    """
    base = base_of(bundle)
    present = {index - base: tuple(choice.present(index)) for index in bundle.rounds}
    for one, other in pairwise((-1, *sorted(present))):
        if other > one + 1:
            present[one + 1] = bundle.clients
    return present


def overlooked_in(bundle: Bundle, choice: Choice) -> tuple[str, ...]:
    """Who took part and is not looked at; whom a recorder has lost nobody can name."""
    return (*choice.overlooked, *((MISSED,) if best(bundle.facts, LOST) else ()))


def doubts_of(bundle: Bundle, model: nn.Module, choice: Choice) -> dict[tuple[int, str], tuple[str, ...]]:
    """What is not as it was said, by round and client."""
    doubts: dict[tuple[int, str], tuple[str, ...]] = {}
    for index in choice.rounds:
        past = bundle.rounds[index]
        sent = past.sent or next(message.sent for message in past.messages if message.sent is not None)
        names = names_of([(a.name, tuple(a.shape)) for a in sent.arrays], model, str(bundle.folder / sent.file))
        for found in findings_of(bundle, index, names.model):
            if found.aside:
                continue
            key = (found.round - base_of(bundle), found.client)
            doubts[key] = (*doubts.get(key, ()), found.words)
    return doubts


def told_beside(bundle: Bundle, choice: Choice, fact: str) -> dict[tuple[int, str], tuple[str, ...]]:
    """What recorders tell of their own accord, by round and client."""
    found = {
        (index - base_of(bundle), message.client): best(bundle.facts_of(message.client, index), fact)
        for index in choice.rounds
        for message in bundle.rounds[index].messages
    }
    said_of = {turn: said if isinstance(said, dict | list) else [said] for turn, said in found.items() if said}
    told = {turn: list(said)[:MOST_SAID] for turn, said in said_of.items()}
    return {turn: tuple(str(each)[:LONGEST_SAID] for each in said) for turn, said in told.items() if said}
