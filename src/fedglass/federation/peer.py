"""The view of a participant, which sees the global models of a round and knows its own examples and update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedglass.core.errors import UsageError
from fedglass.core.types import Own
from fedglass.federation.transcript import MEAN_RULE, Participant, ParticipantsByRound, Round, Transcript
from fedglass.federation.truth import Truths
from fedglass.federation.views import COUNTED, Knows, Naming, ViewBuilder, ViewLabel, ViewResult, check_common_model


@dataclass(frozen=True)
class PeerView:
    """A client (by its position) that sees the global models before and after a round in which it takes part.

    It knows its own examples and its own message, and no other message. If the rule accepted its update, its examples
    are in the aggregate too; the attack is on those of the others. It knows which updates the rule accepted, unless
    `knows.kept` is false.
    """

    client: int = 0
    round: int = 0

    def rounds(self) -> tuple[int, ...]:
        return (self.round,)

    def check(self, participants: ParticipantsByRound) -> None:
        name = participants.name_at(self.client, self.round)
        if len(participants.in_round(self.round)) < 2:
            raise UsageError(
                f"Client {self.client} ({name}) is alone in round {self.round}, but a peer needs other participants to "
                "attack: raise federation.clients or federation.participation."
            )

    def see(self, transcript: Transcript, knows: Knows, truths: Truths | None) -> ViewResult:
        self.check(transcript.participants_by_round)
        round_, name = transcript.rounds[self.round], transcript.terms.clients[self.client]
        peers, itself = _accepted(name, round_)
        check_common_model(round_, self.round, (*round_.accepted, name))
        own = replace(_own(name, self.round, round_, truths), share=_share(transcript, peers, itself, knows))
        builder = ViewBuilder(transcript, self.round, (*peers, *itself), round_.step, round_.buffers_after)
        if not knows.kept:
            everyone = tuple(sorted(round_.participants, key=lambda participant: participant.name == name))
            builder = replace(builder, participants=everyone, acceptance_unknown=True)
        names = tuple(p.name for p in peers)
        return ViewResult(builder.observation(knows, truths, own), names, name if itself else None)

    def describe(self, naming: Naming = COUNTED) -> str:
        return (
            f"{naming.client(self.client)}, a participant, sees the global models before and after round "
            f"{naming.round(self.round)}, and its own examples and update"
        )

    def label(self, naming: Naming = COUNTED) -> ViewLabel:
        return "peer", f"peer {self.client if naming.clients is None else naming.client(self.client)}"


def _accepted(name: str, round_: Round) -> tuple[tuple[Participant, ...], tuple[Participant, ...]]:
    """Return the other clients that the rule accepted, and the peer itself if it was accepted."""
    accepted = [p for p in round_.participants if p.name in round_.accepted]
    peers = tuple(p for p in accepted if p.name != name)
    if not accepted:
        raise UsageError(
            "The rule rejected all updates of the round and left the model as it was, so that there is nothing to "
            "attack: choose another round."
        )
    if not peers:
        raise UsageError(
            f"The rule accepted no update of the round but that of {name!r} itself, so that there is nothing of others "
            "to attack: choose another client or round."
        )
    return peers, tuple(p for p in accepted if p.name == name)


def _own(name: str, index: int, round_: Round, truths: Truths | None) -> Own:
    message = round_.message(name)
    if truths is None or message is None:
        raise UsageError(
            f"The contribution of {name!r} is unknown: a peer's view needs its own examples and its own message in "
            "addition to the global models."
        )
    examples = truths.of(name, index)
    return Own(examples.images, examples.labels, message.update)


def _share(
    transcript: Transcript, peers: Sequence[Participant], itself: Sequence[Participant], knows: Knows
) -> float | None:
    """Return the weight of the peer's own update in the step: its part of all examples, under a mean.

    None if the peer cannot know it: under another rule, or without the numbers of examples or the accepted clients.
    """
    if not knows.kept:
        return None
    if not itself:
        return 0.0
    if transcript.terms.rule != MEAN_RULE or not knows.examples:
        return None
    weights = [p.examples if p.weight is None else p.weight for p in (*itself, *peers)]
    return weights[0] / sum(weights)
