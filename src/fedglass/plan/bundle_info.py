"""What is in a bundle, and what is missing for which attack: nothing of it needs the model or runs any code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedglass.attack.needs import needs_of, supplies_of
from fedglass.core.errors import FedglassError
from fedglass.core.facts import Fact
from fedglass.core.registry import built_in
from fedglass.core.tensors import MEAN
from fedglass.core.types import Whitening
from fedglass.federation.transcript import Participant, Terms, Transcript
from fedglass.federation.views import Knows, ViewBuilder
from fedglass.plan.selection import Choice, chosen, no_images
from fedglass.recipes import recipe
from fedglass.recordings.format import best
from fedglass.recordings.observed import Finding, change, findings_of
from fedglass.recordings.reader import Bundle
from fedglass.recordings.transcript import participant_of

NEEDED = ("model", "shape", "classes", "whitening")
"""Without which nothing can be attacked."""


@dataclass(frozen=True, eq=False)
class Info:
    """A bundle in plain values."""

    bundle: Bundle
    choice: Choice | None
    """What would be looked at; None where there is nothing."""
    problem: str
    """Why there is nothing, or why nothing of it can be attacked."""
    findings: tuple[Finding, ...]
    missing: Mapping[str, tuple[Fact, ...]]
    """Of each attack, what it needs and the bundle does not tell."""

    @property
    def needed(self) -> tuple[str, ...]:
        """What no attack can do without, and the bundle does not tell."""
        return tuple(name for name in NEEDED if best(self.bundle.facts, name) is None)


def info_of(bundle: Bundle) -> Info:
    """Look at a bundle, at all of its messages."""
    choice, problem = None, ""
    try:
        choice = chosen(bundle, None)
    except FedglassError as error:
        problem = str(error)
    problem = problem or no_images(bundle)
    findings = [found for index in bundle.rounds for found in findings_of(bundle, index)]
    return Info(bundle, choice, problem, tuple(findings), {} if choice is None else _missing(choice))


def _missing(choice: Choice) -> dict[str, tuple[Fact, ...]]:
    """What every attack lacks on the first message that lacks something."""
    known = list(_known(choice))
    found = {}
    for name in built_in("attacks"):
        attack = recipe(name)
        # All unknowns hang on it, unless an attack searches for it.
        needed = needs_of(attack) | (set() if Fact.EXAMPLES in supplies_of(attack) else {Fact.EXAMPLES})
        lacking = {fact for facts in known for fact in needed - facts}
        found[name] = tuple(sorted(lacking, key=list(Fact).index))
    return found


def _known(choice: Choice) -> Iterator[frozenset[Fact]]:
    """What the adversary knows beside each message that would be looked at."""
    bundle = choice.bundle
    terms = Terms((1, 1, 1), 2, Whitening((0.0,), (1.0,)), bundle.clients, "")
    empty = Transcript(nn.Identity(), terms, {})
    for index in choice.rounds:
        groups = [choice.people(index)] if choice.view == "aggregate" else [(name,) for name in choice.whose(index)]
        for names in groups:
            people = tuple(participant_of(bundle, name, index, {}) for name in names)
            look = ViewBuilder(empty, index, people or (Participant("", 1, counted=False),), {}, {})
            yield look.knowledge(Knows()).facts | ({Fact.STATISTICS} if _statistics(bundle, names, index) else set())


def _statistics(bundle: Bundle, names: tuple[str, ...], index: int) -> bool:
    """Whether running statistics came with the message, and were moved by the training."""
    moves = [change(bundle, name, index) or {} for name in names]
    return any(bool(t.any()) for moved in moves for name, t in moved.items() if name.endswith(MEAN))


def plain_info(info: Info) -> dict[str, Any]:
    """The same as JSON has it."""
    bundle, choice = info.bundle, info.choice
    return {
        "bundle": str(bundle.folder),
        "format": bundle.manifest.format,
        "recorded_by": bundle.manifest.writer,
        "facts": bundle.facts,
        "clients": list(bundle.clients),
        "rounds": [
            {
                "round": index,
                "sent": past.sent is not None,
                "aggregated": past.aggregated is not None,
                "facts": past.facts,
                "messages": [
                    {
                        "client": message.client,
                        "received": message.received is not None,
                        "sent_own": message.sent is not None,
                        "absent": message.absent,
                        "facts": bundle.facts_of(message.client, index),
                    }
                    for message in past.messages
                ],
            }
            for index, past in bundle.rounds.items()
        ],
        "view": None if choice is None else choice.view,
        "looked_at": [] if choice is None else list(choice.rounds),
        "left_out": [] if choice is None else list(choice.left),
        "problem": info.problem,
        "needed": list(info.needed),
        "findings": [{"round": f.round, "client": f.client, "words": f.words} for f in info.findings],
        "attacks": [
            {"name": name, "possible": not facts, "missing": [fact.value for fact in facts]}
            for name, facts in info.missing.items()
        ],
    }
