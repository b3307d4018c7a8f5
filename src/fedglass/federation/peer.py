"""A participant that looks at the global model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedglass.core.errors import UsageError
from fedglass.core.types import Own
from fedglass.federation.transcript import MEAN_RULE, Attendance, Participant, Round, Transcript
from fedglass.federation.truth import Truths
from fedglass.federation.views import COUNTED, Brief, Knows, Look, Naming, Seen, check_one_start


@dataclass(frozen=True)
class PeerView:
    """A client (by its position) that sees the global models before and after a round in which it takes part.

    It knows its own examples and what it sent itself, and nothing else of the messages. Where the rule let its own
    update through, its examples are in the message too; what is attacked are those of the others. Whose updates got
    through it is told unless `knows.kept` is false.
    """

    client: int = 0
    round: int = 0

    def rounds(self) -> tuple[int, ...]:
        return (self.round,)

    def check(self, attendance: Attendance) -> None:
        name, present = attendance.participant(self.client, self.round), attendance.present(self.round)
        if len(present) < 2:
            raise UsageError(
                f"Client {self.client} ({name}) is alone in round {self.round}: a peer needs others whose data it "
                "could read; raise federation.clients or federation.participation."
            )

    def see(self, transcript: Transcript, knows: Knows, truths: Truths | None) -> Seen:
        self.check(transcript.attendance)
        past, name = transcript.rounds[self.round], transcript.terms.clients[self.client]
        others, mine = _behind(name, past)
        check_one_start(past, self.round, (*past.kept, name))
        own = replace(_own(name, self.round, past, truths), share=_share(transcript, others, mine, knows))
        look = Look(transcript, self.round, (*others, *mine), past.step, past.buffers_after)
        if not knows.kept:
            look = replace(look, behind=_present(name, past), present=True)
        names = tuple(p.name for p in others)
        return Seen(look.observation(knows, truths, own), names, name if mine else None)

    def describe(self, naming: Naming = COUNTED) -> str:
        return (
            f"{naming.client(self.client)}, a participant, sees the global models before and after round "
            f"{naming.round(self.round)}, and its own examples and update"
        )

    def brief(self, naming: Naming = COUNTED) -> Brief:
        return Brief("peer", f"peer {self.client if naming.clients is None else naming.client(self.client)}")


def _behind(name: str, past: Round) -> tuple[tuple[Participant, ...], tuple[Participant, ...]]:
    """The others whose updates got through, and the peer itself where its own did."""
    through = [p for p in past.participants if p.name in past.kept]
    others = tuple(p for p in through if p.name != name)
    if not through:
        raise UsageError(
            "No update of the round got through the rule, which left the model as it was, so that there is nothing to "
            "read: choose another round."
        )
    if not others:
        raise UsageError(
            f"Of the round's updates only that of {name!r} itself got through the rule, so that there is nothing of "
            "others to read: choose another client or round."
        )
    return others, tuple(p for p in through if p.name == name)


def _present(name: str, past: Round) -> tuple[Participant, ...]:
    """All that took part, the peer itself last."""
    return tuple(sorted(past.participants, key=lambda participant: participant.name == name))


def _own(name: str, index: int, past: Round, truths: Truths | None) -> Own:
    sent = past.message(name)
    if truths is None or sent is None:
        raise UsageError(
            f"What {name!r} contributed itself is not known: a peer's view needs its own examples and its own message "
            "beside the global models."
        )
    examples = truths.of(name, index)
    return Own(examples.images, examples.labels, sent.update)


def _share(
    transcript: Transcript, others: Sequence[Participant], mine: Sequence[Participant], knows: Knows
) -> float | None:
    """What the peer's own update weighs in the step: a mean gives it its part of all examples.

    None where the peer can not know: under another rule, or without the number of examples, or of who got through.
    """
    if not knows.kept:
        return None
    if not mine:
        return 0.0
    if transcript.terms.rule != MEAN_RULE or not knows.examples:
        return None
    weights = [p.examples if p.weight is None else p.weight for p in (*mine, *others)]
    return weights[0] / sum(weights)
