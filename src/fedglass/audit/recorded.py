"""The source of recorded messages: a transcript, and the private examples if their owners provide them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from fedglass.audit.knowledge import adversary_sections
from fedglass.audit.public_data import Public
from fedglass.audit.target import (
    RoundProgress,
    Section,
    Target,
    TargetInfo,
    coverage_doubts,
    further_rounds,
    joint_doubts,
    target_infos,
    target_of,
)
from fedglass.checks.claim import UNPROTECTED, claim_of, has_unnamed_defence, participants_of
from fedglass.core.errors import UsageError
from fedglass.core.identity import digest, identity_text, of_model, of_params
from fedglass.core.tensors import Params
from fedglass.core.text import EPSILON_MEANING, some, values_by_key
from fedglass.core.types import Observation
from fedglass.defend.noise_model import EpsilonClaim
from fedglass.federation.client import TrainClients, train_sequentially
from fedglass.federation.transcript import Participant, ParticipantsByRound, Transcript
from fedglass.federation.truth import Examples, Truths
from fedglass.federation.views import COUNTED, Knows, Naming, ServerView, Together, View, ViewResult
from fedglass.fl.release import Protection
from fedglass.models.network import title_of
from fedglass.verdict.doubts import Doubt, DoubtKind, doubt


@dataclass(frozen=True, eq=False)
class Recorded:
    """A transcript, and the views of it that are attacked; mappings are by round and client."""

    transcript: Transcript
    truths: Truths | None = None
    views: tuple[View, ...] = (ServerView(),)
    knows: Knows = field(default_factory=Knows)
    name: str = ""
    public: Public | None = None
    """Data like the clients' that the adversary has."""
    defences: Mapping[str, Protection] = field(default_factory=dict)
    """The defences of each client, to be run again; clients with unknown defences are left out."""
    contradictions: Mapping[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)
    """Contradictions in the recording, as text; those of the round itself have an empty name."""
    attendance: ParticipantsByRound | None = None
    """The participants of all known rounds, also of those that are not audited; by default those of the transcript."""
    extra_payload: Mapping[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)
    """The names of what was sent in addition to the arrays of the model."""
    recorder_caveats: Mapping[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)
    """Sentences of a recorder about parts of the training that cannot be run again."""
    epsilons: Mapping[str, tuple[EpsilonClaim, ...]] = field(default_factory=dict)
    """Epsilons by client, next to the declared ones; those of the whole federation have an empty name."""
    unaudited_updates: Mapping[tuple[int, str], Params] = field(default_factory=dict)
    """Updates that the server received and that are not audited: noise may repeat there."""
    unaudited_clients: tuple[str, ...] = ()
    """Clients that took part and that no view shows."""
    dishonest: tuple[str, ...] = ()
    """Clients that do not do what is declared, if their names are known."""
    simulated: bool = False
    """Whether this audit made the messages by the declared training."""
    sizes_assumed: bool = False
    """Whether the number of examples of each client is unknown, and their sum was divided as evenly as possible."""
    naming: Naming = COUNTED
    """The federation's own names of clients and rounds."""
    first_round: int = 0
    """The number of the federation's first round."""

    def __post_init__(self) -> None:
        if not self.views:
            raise UsageError("The adversary needs at least one view, such as ServerView(client=0), got none.")
        for view in self.views:
            view.check(self.transcript.participants_by_round)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.transcript.terms.shape

    def identity(self) -> str:
        truths = "" if self.truths is None else self.truths.identity
        parts = [] if self.public is None else [self.public.identity]
        parts += [identity_text(dict(sorted(self.defences.items())))] if self.defences else []
        coverage = (self.unaudited_clients, sorted(self.extra_payload.items()))
        parts += [identity_text(coverage)] if any(coverage) else []
        parts += [identity_text(values) for values in self._further_evidence() if values]
        return digest("source", self.name, self._content(), truths, identity_text(self.knows), *parts)

    def _further_evidence(self) -> Iterator[Sequence[object]]:
        """Yield what decides the verdict in addition to the messages: a bundle may have grown or been corrected."""
        yield sorted(self.contradictions.items())
        exceeded = {name: tuple(claim for claim in claims if claim.exceeded) for name, claims in self.epsilons.items()}
        yield sorted((client, repr(claims)) for client, claims in exceeded.items() if claims)
        audited = self.transcript.participants_by_round.rounds
        rounds = {} if self.attendance is None else self.attendance.rounds
        yield sorted((index, names) for index, names in rounds.items() if index not in audited)
        updates = sorted(self.unaudited_updates.items(), key=lambda pair: pair[0])
        yield [(*key, of_params(update)) for key, update in updates]
        of_rounds = () if self.truths is None else (self.truths.taken, self.truths.order)
        yield [(key, facts[key]) for key in sorted(set().union(*of_rounds)) for facts in of_rounds if key in facts]

    def _content(self) -> str:
        """Return a hash of the whole transcript; its `origin` says nothing of what its files hold now."""
        facts = [identity_text(self.transcript.terms), of_model(self.transcript.model)]
        for index, round_ in sorted(self.transcript.rounds.items()):
            sent = (params for message in round_.messages for params in (message.update, message.buffers))
            params_of_round = [round_.before, round_.buffers, round_.step, *sent, round_.buffers_after]
            facts += [str(index), identity_text(round_.participants), identity_text(round_.accepted)]
            facts += map(of_params, params_of_round)
            for message in round_.messages:
                if message.start is not None:
                    facts += [message.client, of_params(message.start.before), of_params(message.start.buffers)]
        return digest("recorded", *facts)

    def infos(self) -> Sequence[TargetInfo]:
        clients, rounds = self.transcript.terms.clients, self.transcript.rounds
        return target_infos(
            self.name, self.views, clients, lambda index: rounds[index].participants, self.naming, self.first_round
        )

    def rehearse(self) -> Sequence[ViewResult]:
        return self._rehearsed

    @cached_property
    def _rehearsed(self) -> Sequence[ViewResult]:
        return [self._see(view) for view in self.views]

    def _see(self, view: View) -> ViewResult:
        """Return what a view sees; the adversary knows the declared filter of an update."""
        result = view.see(self.transcript, self.knows, self.truths)
        return replace(result, observation=self._with_filter(result.observation, result.clients))

    def _with_filter(self, observation: Observation, clients: Sequence[str]) -> Observation:
        protection = self.defences.get(clients[0], UNPROTECTED) if len(clients) == 1 else UNPROTECTED
        if protection.filter is None or observation.knows.clients != 1 or observation.own is not None:
            return observation
        also = tuple(self._with_filter(other_round, clients) for other_round in observation.also)
        return replace(observation, knows=replace(observation.knows, filter=protection.filter), also=also)

    def targets(self, progress: RoundProgress, answers: TrainClients = train_sequentially) -> Sequence[Target]:
        return [self.target(view) for view in self.views]

    def target(self, view: View) -> Target:
        """Return the target of one view."""
        if not isinstance(view, Together):
            return self._single(view)
        first, *later = targets = [self._single(of_round) for of_round in view.ordered]
        return replace(
            first,
            observation=self._see(view).observation,
            further=self._further(view, first),
            doubts=joint_doubts(targets),
            joint_targets=tuple(later),
        )

    def _further(self, view: View, target: Target) -> int:
        """Return how many further messages come from the same examples, also of other clients that have them."""
        attendance = self.attendance or self.transcript.participants_by_round
        twins = () if self.truths is None else self.truths.clients_sharing_images(target.contributors)
        of_twins = sum(name in present for present in attendance.rounds.values() for name in twins)
        return further_rounds(view, target.contributors, attendance, self.views) + of_twins

    def _single(self, view: View) -> Target:
        """Return the target of one view with its claim: files may have been edited, so that it is checked."""
        result, index = self._see(view), view.rounds()[-1]
        target = target_of(self.transcript, view, result, self.truths)
        participants = participants_of(self.transcript, index, result)
        claim = claim_of(self.transcript, index, result, self.truths, self.defences)
        if claim is not None:
            # A defence that depends on the round counts from 0, as in a simulation.
            dishonest = any(p.name in self.dishonest for p in participants)
            honest = not dishonest if self.simulated else not self.transcript.terms.behaviours
            claim = replace(claim, honest=honest, round=index - self.first_round)
        pool = self._pool(participants)
        return replace(
            target,
            claim=claim,
            doubts=tuple(self._doubts(result, index, target, participants)),
            public=self.public if self.public is not None or pool is None else Public.of(pool.images, pool.labels),
            pool=pool,
            further=self._further(view, target),
            simulated=self.simulated,
            recorder_caveats=_entries(self.recorder_caveats, index, result.clients),
            same_noise_in={} if self.simulated else self._other_messages(view, target),
        )

    def _doubts(
        self, result: ViewResult, index: int, target: Target, participants: Sequence[Participant]
    ) -> Iterator[Doubt]:
        """Yield the doubts about one message that need no computation."""
        yield from coverage_doubts(
            result,
            target.truth,
            [p for p in participants if p.name in result.clients],
            unaudited_clients=self.unaudited_clients,
            extra_payload=self._of_certified(self.extra_payload, index, result.clients),
            simulated=self.simulated,
        )
        if not self.simulated and has_unnamed_defence(self.transcript, participants, self.defences):
            yield doubt(DoubtKind.DEFENCE_NOT_NAMED)
        contradictions = self._of_certified(self.contradictions, index, ("", *result.clients))
        if contradictions:
            yield doubt(DoubtKind.NOT_AS_DECLARED, found="; ".join(dict.fromkeys(contradictions)))
        for client in ("", *result.clients):
            for claim in self.epsilons.get(client, ()):
                if claim.exceeded:
                    yield doubt(DoubtKind.EPSILON_NOT_AS_DECLARED, **claim.details)

    def _of_certified(
        self, texts: Mapping[tuple[int, str], tuple[str, ...]], index: int, clients: Sequence[str]
    ) -> tuple[str, ...]:
        """Return the texts about these clients in a round, and in the rounds that are not audited."""
        unaudited = {i for i, _ in texts} - set(self.transcript.rounds)
        found = _entries(texts, index, clients)
        later = ((i, text) for i in sorted(unaudited) for text in _entries(texts, i, clients))
        return (*found, *(f"{text} (round {self.naming.round(i)})" for i, text in later))

    def _pool(self, participants: Sequence[Participant]) -> Examples | None:
        """Return the public examples and those of clients that are not in the message."""
        behind = {p.name for p in participants}
        examples_by_client = {} if self.truths is None else self.truths.examples
        parts = [examples for name, examples in examples_by_client.items() if name not in behind]
        parts += [self.public.examples] if self.public is not None and self.public.examples is not None else []
        if not parts:
            return None
        return Examples(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))

    def _other_messages(self, view: View, target: Target) -> dict[str, Params]:
        """Return the other messages of the same adversary: a server's own, or else the aggregates of other rounds."""
        rounds, index = self.transcript.rounds, view.rounds()[-1]
        if not isinstance(view, ServerView):
            return {f"as in round {self.naming.round(i)}": round_.step for i, round_ in rounds.items() if i != index}
        updates = {(i, message.client): message.update for i, round_ in rounds.items() for message in round_.messages}
        return {
            f"as of {client} in round {self.naming.round(i)}": update
            for (i, client), update in {**updates, **self.unaudited_updates}.items()
            if (i, client) != (index, target.contributors[0])
        }

    def threat(self) -> list[Section]:
        model, named = self.transcript.model, f" {self.name!r}" if self.name else ""
        size = sum(p.numel() for p in model.parameters())
        truth = "The true images are given for scoring." if self.truths else "No truth is given: nothing is scored."
        lines = [f"A {title_of(model)} of {size:,} parameters.", truth, *self._special_models()]
        more = [] if self.public is None else [self.public.sentence]
        sections = [
            (f"Recording{named}", lines),
            *adversary_sections(self.infos(), self.rehearse(), more, named.strip()),
        ]
        if self.epsilons:
            texts = (f"{client or 'The federation'}: {c}" for client, claims in self.epsilons.items() for c in claims)
            sections.append(("Epsilon", [*texts, EPSILON_MEANING]))
        return [*sections, ("Contradictions", self.contradiction_texts())] if self.contradictions else sections

    def _special_models(self) -> Iterator[str]:
        """Say which clients were sent a model of their own, and which layers are constants of the network."""
        rounds = sorted(self.transcript.rounds.items())
        for index, round_ in rounds:
            for name in round_.clients_with_own_model(self.transcript.terms.clients):
                number = self.naming.round(index)
                yield f"{name} was sent a model of its own in round {number}, to which its message adds."
        for index, round_ in rounds:
            clients_by_layers = values_by_key((p.untrained, p.name) for p in round_.participants if p.untrained)
            for layers, clients in clients_by_layers.items():
                yield (
                    f"{some(clients)} did not train {some(layers)} in round {self.naming.round(index)}, or did not "
                    "send it: to the attacks these are constants of the network."
                )

    def contradiction_texts(self) -> list[str]:
        """Return the contradictions as sentences."""
        return [
            f"{client or 'All clients'}, round {self.naming.round(index)}: {text}."
            for (index, client), texts in self.contradictions.items()
            for text in texts
        ]


def _entries(texts: Mapping[tuple[int, str], tuple[str, ...]], index: int, clients: Sequence[str]) -> tuple[str, ...]:
    """Return the texts about these clients in a round."""
    return tuple(text for client in clients for text in texts.get((index, client), ()))
