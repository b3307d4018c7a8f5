"""The contents of a bundle, and what is missing for which attack; no model is built and no code of others runs."""

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
from fedglass.recipes import recipe
from fedglass.recordings.format import preferred
from fedglass.recordings.observed import Contradiction, contradictions_of, update_of
from fedglass.recordings.reader import Bundle
from fedglass.recordings.selection import Selection, select_messages
from fedglass.recordings.training_facts import participant_of
from fedglass.recordings.transcript import input_problem

NEEDED = ("model", "shape", "classes", "whitening")
"""Facts that every attack needs."""


@dataclass(frozen=True, eq=False)
class BundleInfo:
    """The contents of a bundle in plain values."""

    bundle: Bundle
    selection: Selection | None
    """The messages that an audit would take; None if there are none."""
    problem: str
    """Why there are none, or why none of them can be attacked."""
    contradictions: tuple[Contradiction, ...]
    missing: Mapping[str, tuple[Fact, ...]]
    """By attack, the facts that it needs and the bundle does not have."""

    @property
    def needed(self) -> tuple[str, ...]:
        """The facts that every attack needs and the bundle does not have."""
        return tuple(name for name in NEEDED if preferred(self.bundle.facts, name) is None)


def inspect_bundle(bundle: Bundle) -> BundleInfo:
    """Return what a bundle holds, from all of its messages."""
    selection, problem = None, ""
    try:
        selection = select_messages(bundle, None)
    except FedglassError as error:
        problem = str(error)
    problem = problem or input_problem(bundle)
    contradictions = [finding for index in bundle.rounds for finding in contradictions_of(bundle, index)]
    missing = {} if selection is None else _missing_facts(selection)
    return BundleInfo(bundle, selection, problem, tuple(contradictions), missing)


def _missing_facts(selection: Selection) -> dict[str, tuple[Fact, ...]]:
    """Return the facts that each attack lacks on at least one of the selected messages."""
    facts_by_message = list(_facts_by_message(selection))
    missing_by_attack = {}
    for name in built_in("attacks"):
        attack = recipe(name)
        # All unknowns depend on the number of examples, unless an attack searches for it.
        needed = needs_of(attack) | (set() if Fact.EXAMPLES in supplies_of(attack) else {Fact.EXAMPLES})
        missing = {fact for facts in facts_by_message for fact in needed - facts}
        missing_by_attack[name] = tuple(sorted(missing, key=list(Fact).index))
    return missing_by_attack


def _facts_by_message(selection: Selection) -> Iterator[frozenset[Fact]]:
    """Yield the facts that the adversary has next to each message of the selection."""
    bundle = selection.bundle
    terms = Terms((1, 1, 1), 2, Whitening((0.0,), (1.0,)), bundle.clients, "")
    empty = Transcript(nn.Identity(), terms, {})
    for index in selection.rounds:
        clients = selection.audited_clients(index)
        for names in [clients] if selection.view == "aggregate" else [(name,) for name in clients]:
            participants = tuple(participant_of(bundle, name, index, {}) for name in names)
            look = ViewBuilder(empty, index, participants or (Participant("", 1, counted=False),), {}, {})
            moved = any(_moved_statistics(bundle, name, index) for name in names)
            yield look.knowledge(Knows()).facts | ({Fact.STATISTICS} if moved else set())


def _moved_statistics(bundle: Bundle, client: str, index: int) -> bool:
    """Check that running statistics came with the message, and that the training moved them."""
    update = update_of(bundle, client, index) or {}
    return any(bool(tensor.any()) for name, tensor in update.items() if name.endswith(MEAN))


def info_as_json(info: BundleInfo) -> dict[str, Any]:
    """Return the same in types that JSON has."""
    bundle, selection = info.bundle, info.selection
    return {
        "bundle": str(bundle.folder),
        "format": bundle.manifest.format,
        "recorded_by": bundle.manifest.writer,
        "facts": bundle.facts,
        "clients": list(bundle.clients),
        "rounds": [
            {
                "round": index,
                "sent": round_.sent is not None,
                "aggregated": round_.aggregated is not None,
                "facts": round_.facts,
                "messages": [
                    {
                        "client": message.client,
                        "received": message.received is not None,
                        "sent_own": message.sent is not None,
                        "absent": message.absent,
                        "facts": bundle.facts_of(message.client, index),
                    }
                    for message in round_.messages
                ],
            }
            for index, round_ in bundle.rounds.items()
        ],
        "view": None if selection is None else selection.view,
        "looked_at": [] if selection is None else list(selection.rounds),
        "left_out": [] if selection is None else list(selection.skipped),
        "problem": info.problem,
        "needed": list(info.needed),
        "findings": [{"round": f.round, "client": f.client, "words": f.text} for f in info.contradictions],
        "attacks": [
            {"name": name, "possible": not facts, "missing": [fact.value for fact in facts]}
            for name, facts in info.missing.items()
        ],
    }
