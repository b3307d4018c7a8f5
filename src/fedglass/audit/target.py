"""Targets of an audit: messages with everything that belongs to them, and the sources that yield them.

The cases of an audit, each one probe of one target, and the callbacks that report their progress.

An audit plays and scores attacks. The re-creation of a published table measures what its paper did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar, cast

from torch.nn.modules.batchnorm import _BatchNorm

from fedglass.attack.parts import Progress
from fedglass.audit.protection import merge_by_client
from fedglass.audit.public_data import Public
from fedglass.checks.claim import Claim
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.identity import identity_text
from fedglass.core.tensors import Params, moved_others
from fedglass.core.types import BatchNorm, Observation
from fedglass.federation.peer import PeerView
from fedglass.federation.transcript import Participant, ParticipantsByRound, Transcript
from fedglass.federation.truth import Examples, Truth, Truths
from fedglass.federation.views import (
    COUNTED,
    AggregateView,
    Naming,
    ServerView,
    Together,
    View,
    ViewResult,
    label_of,
)
from fedglass.verdict.directory import Evidence
from fedglass.verdict.doubts import Doubt, DoubtKind, doubt
from fedglass.verdict.judge import Verdict
from fedglass.verdict.records import ROUNDS, Record

RoundProgress = Callable[[int, int], None]
"""Callback that receives the number of finished rounds and of all rounds."""


ParticipantsOfRound = Callable[[int], Sequence[Participant]]
"""Function from a round to its participants."""


@dataclass(frozen=True, eq=False)
class Target:
    """One message with everything that belongs to it; `truth` is None where it was not recorded."""

    observation: Observation
    truth: Truth | None
    claim: Claim | None = None
    """What is said to have produced the message; None where it is not known how a client trained."""
    doubts: tuple[Doubt, ...] = ()
    """Doubts that the source has already: about what else left, and about what was recorded of the message."""
    joint_targets: tuple[Target, ...] = ()
    """Messages that are attacked together with this one: each must be explained by its own claim."""
    simulated: bool = False
    """Whether this audit made the message by the claimed training itself."""
    further: int = 0
    """Rounds beyond the audited ones in which a client behind the message trained on the same examples."""
    recorder_caveats: tuple[str, ...] = ()
    """Sentences of a recorder about parts of the training that cannot be run again."""
    same_noise_in: Mapping[str, Params] = field(default_factory=dict)
    """Other messages that the same adversary sees, in which reused noise would show, by what they are called."""
    pool: Examples | None = None
    """Examples of the same kind that were not trained on: candidates, and what gradients have in common."""
    public: Public | None = None
    """Public data of the same kind that the adversary has."""
    class_names: tuple[str, ...] | None = None
    utility: Mapping[str, float] = field(default_factory=dict)
    """Accuracies of the model that the federation trained."""
    defences: tuple[str, ...] | None = None
    """Sentences about what protects the message, and what that promises; None where it is not known."""
    contributors: tuple[str, ...] = ()
    """The anonymity set: the clients whose examples are in the message, without the adversary's own."""
    participants: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    """The clients whose updates got through the aggregation rule in that round."""
    behaviours: tuple[str, ...] = ()
    """Sentences about what poisoners do."""
    swept: Mapping[str, float] = field(default_factory=dict)
    """What a sweep changes from one federation to the next, and its value here."""

    @property
    def known_truth(self) -> Truth:
        """The truth, for a probe that measures nothing without it."""
        if self.truth is None:
            raise UsageError("This probe needs the true examples behind the message, and they were not recorded.")
        return self.truth


def coverage_doubts(
    view_result: ViewResult,
    truth: Truth | None,
    participants: Sequence[Participant],
    *,
    unaudited_clients: Sequence[str] = (),
    extra_payload: Sequence[str] = (),
    simulated: bool = False,
) -> Iterator[Doubt]:
    """Yield doubts about what left with one message and no certificate covers.

    `participants` are the clients behind the message, `extra_payload` the names of what they sent in addition to the
    model's arrays. A network may put anything into buffers of its own, which no attack reads.
    """
    observation = view_result.observation
    # BatchNorm trained with the statistics of its batches: as declared, or because they moved.
    declared = any(p.training is not None and p.training.batch_norm is BatchNorm.BATCH for p in participants)
    normalises = any(isinstance(layer, _BatchNorm) for layer in observation.model.modules())
    if (declared and normalises) or Fact.STATISTICS in observation.facts:
        yield doubt(DoubtKind.STATISTICS_SENT)
    if unaudited_clients:
        yield doubt(DoubtKind.CLIENTS_NOT_AUDITED, clients=[repr(name) for name in unaudited_clients])
    averaged = len(view_result.clients) > 1 or view_result.own_client is not None
    moved = moved_others(observation.buffers, observation.buffers_after, averaged=averaged)
    unread = list(dict.fromkeys((*moved, *extra_payload)))
    if unread:
        yield doubt(DoubtKind.EXTRA_PAYLOAD, names=unread)
    stated = observation.knows.examples if Fact.EXAMPLES in observation.facts else None
    if truth is not None and not simulated and stated is not None and stated != len(truth.labels):
        yield doubt(DoubtKind.WRONG_COUNT, stated=stated, true=len(truth.labels))


def joint_doubts(targets: Sequence[Target]) -> tuple[Doubt, ...]:
    """Return the doubts about messages that are attacked together, the first of each kind.

    Extra payloads are listed together. Contradictions in a recording stay with the message that they are about.
    """
    by_kind: dict[DoubtKind, Doubt] = {}
    for i, target in enumerate(targets):
        for doubt_ in target.doubts:
            if i == 0 or doubt_.kind is not DoubtKind.NOT_AS_DECLARED:
                by_kind.setdefault(doubt_.kind, doubt_)
    payloads = [doubt_ for target in targets for doubt_ in target.doubts if doubt_.kind is DoubtKind.EXTRA_PAYLOAD]
    if payloads:
        names = dict.fromkeys(name for doubt_ in payloads for name in cast(list[str], doubt_.details["names"]))
        by_kind[DoubtKind.EXTRA_PAYLOAD] = doubt(DoubtKind.EXTRA_PAYLOAD, names=list(names))
    return tuple(by_kind.values())


PendingTarget = Callable[[], Target]
"""A target that the worker makes for itself: training its clients is then spread over the workers too."""


def ready_target(target: Target | PendingTarget) -> Target:
    """Return a target, and make it first if it is pending."""
    return target if isinstance(target, Target) else target()


def missing_target(why: str) -> Target:
    """Fail the case of a target that does not exist, such as an aggregate into which the rule let no client."""
    raise UsageError(why)


@dataclass(frozen=True)
class TargetInfo:
    """The facts about a target that are known before the federation has run."""

    spec: str
    """The view as printed, from which a case's seed is drawn."""
    identity: str
    """The identity of the view: a part of a case's key."""
    text: str
    round: int
    """As in `text`: a simulation counts from 1, a recorded federation has its own numbers."""
    name: str = ""
    """The view in short; empty where it has no short name."""
    standpoint: str = ""
    rounds: int = 1
    """The number of rounds whose messages are attacked together."""

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of a record that are known of the target."""
        joint = {} if self.rounds == 1 else {"extra": {ROUNDS: self.rounds}}
        names = {"view": self.text, "view_name": self.name, "standpoint": self.standpoint}
        return {**names, "round": self.round, **joint}


Section = tuple[str, Sequence[str]]
"""A heading of the threat model and its sentences."""


def target_infos(
    name: str,
    views: Iterable[View],
    clients: Sequence[str],
    present: ParticipantsOfRound,
    naming: Naming = COUNTED,
    first_round: int = 0,
) -> list[TargetInfo]:
    """Return the facts about the views' targets; refuse a view that has no identity.

    `first_round` is the number of the federation's first round. Seeds are drawn from positions, so that a framework
    that counts from 1 gives the same numbers as one that counts from 0.
    """
    prefix, infos = f"{name}: " if name else "", []
    for view in views:
        identity = identity_text(view, "The adversary's view")
        # A user's own view may take no naming.
        options = () if naming is COUNTED else (naming,)
        standpoint, short = label_of(view, *options) or ("", "")
        named = (prefix + short, standpoint) if standpoint else ("", "")
        crowd = _crowd(view, clients, present) if isinstance(view, PeerView) else ""
        text, index = prefix + view.describe(*options) + crowd, naming.round(view.rounds()[-1])
        infos.append(
            TargetInfo(repr(_counted_from(view, first_round)), identity, text, index, *named, len(view.rounds()))
        )
    return infos


def _counted_from(view: View, first_round: int) -> View:
    """Return the same view of a federation that counts its rounds from 0."""
    if first_round and isinstance(view, Together):
        return Together(tuple(_counted_from(part, first_round) for part in view.views))
    if first_round and isinstance(view, ServerView | AggregateView | PeerView):
        return replace(view, round=view.round - first_round)
    return view


def _crowd(view: PeerView, clients: Sequence[str], present: ParticipantsOfRound) -> str:
    """Say how many participants could have seen as much as a peer, and how many foreign examples it sees."""
    participants = present(view.round)
    counts = [p.examples for p in participants if p.name != clients[view.client]]
    examples, plural = f"example{'' if sum(counts) == 1 else 's'}", f"other{'' if len(counts) == 1 else 's'}"
    return (
        f"; any of the {len(participants)} participants could do so, and {sum(counts)} {examples} of {len(counts)} "
        f"{plural} are behind the message"
    )


def further_rounds(
    view: View, clients: Sequence[str], attendance: ParticipantsByRound, views: Sequence[View] = ()
) -> int:
    """Return the number of further rounds with any of these clients, whose examples stay the same.

    Rounds that one of `views` attacks together with this one are audited there. One of the clients is enough:
    aggregates of a and b, of b and c and of a and c reveal a alone, and noise averages out whatever it is mixed with.
    """
    audited_by = [view, *(other for other in views if isinstance(other, Together) and view in other.views)]
    audited = {index for by in audited_by for index in by.rounds()}
    rounds = (present for index, present in attendance.rounds.items() if index not in audited)
    return sum(not set(clients).isdisjoint(present) for present in rounds)


def target_of(transcript: Transcript, view: View, view_result: ViewResult, truths: Truths | None) -> Target:
    """Return the target of what one view saw of a transcript, simulated or recorded."""
    round_, terms = transcript.rounds[view.rounds()[-1]], transcript.terms
    come_back = [
        f"Round {view.rounds()[-1] + 1}: the server knew {p.name} as {p.known_as!r}, under which it had come back "
        "after rejections."
        for p in round_.participants
        if p.known_as
    ]
    protected = None if terms.defences is None else {name: terms.defences.get(name, ()) for name in view_result.clients}
    return Target(
        view_result.observation,
        None if truths is None else truths.truth_of(view_result.clients, view.rounds()[-1], view_result.own_client),
        class_names=terms.class_names,
        defences=None if protected is None else tuple(merge_by_client(protected)),
        contributors=view_result.clients,
        participants=tuple(p.name for p in round_.participants),
        accepted=round_.accepted,
        behaviours=(*terms.behaviours, *come_back),
    )


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """The result of a probe: fields of a record, and evidence."""

    record: Mapping[str, Any]
    """Fields of the record; `extra` holds what records have no field for."""
    evidence: Evidence | None = None
    """Images that are kept with the record."""


class Probe(Protocol):
    """A frozen dataclass that measures a target; its parts state the oracle facts that they need, and get no others."""

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        """Measure a target, which is a copy on the device that the case runs on."""
        ...


Subject = TypeVar("Subject")


@dataclass(frozen=True, eq=False)
class Case(Generic[Subject]):
    """One probe of one target, once. `key` is its identity: everything that decides the outcome decides the key."""

    key: str
    title: str
    probe: Probe
    seed: int
    """The seed of the probe's random numbers."""
    subject: Subject
    """The origin of the target, known before any client has trained."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the record that are known before the case is played."""


class AuditProgress:
    """Callbacks for the progress of an audit. They do nothing, or pass everything on to others.

    All calls come from the thread that started the run.
    """

    inner: AuditProgress | None = None

    def planned(self, cases: int, done: int) -> None:
        """Report the number of cases, and of those that an earlier run has finished."""
        if self.inner is not None:
            self.inner.planned(cases, done)

    def trained(self, name: str, done: int, total: int) -> None:
        """Report the rounds of a federation that have been simulated."""
        if self.inner is not None:
            self.inner.trained(name, done, total)

    def started(self, case: Case[Any]) -> None:
        if self.inner is not None:
            self.inner.started(case)

    def moved(self, case: Case[Any], done: int, total: int) -> None:
        """Report the iterations of a running attack."""
        if self.inner is not None:
            self.inner.moved(case, done, total)

    def finished(self, case: Case[Any], record: Record) -> None:
        if self.inner is not None:
            self.inner.finished(case, record)

    def decided(self, verdict: Verdict) -> None:
        """Report a verdict that no further case can change, such as a leak."""
        if self.inner is not None:
            self.inner.decided(verdict)
