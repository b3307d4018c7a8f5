"""A federation that was recorded: its transcript, and the data behind it where their owners have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from fedglass.audit.knowledge import adversary_sections, sights_of
from fedglass.audit.public import Public
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
from fedglass.checks.claim import claim_of, has_unnamed_defence, participants_of
from fedglass.core.errors import UsageError
from fedglass.core.identity import digest, identity_text, of_model, of_params
from fedglass.core.tensors import Params
from fedglass.core.text import some
from fedglass.federation.client import TrainClients, train_sequentially
from fedglass.federation.transcript import Participant, ParticipantsByRound, Transcript
from fedglass.federation.truth import Examples, Truths
from fedglass.federation.views import COUNTED, Knows, Naming, ServerView, Together, View, ViewResult
from fedglass.fl.release import Protection
from fedglass.verdict.doubts import Doubt, Kind, doubt


@dataclass(frozen=True, eq=False)
class Recorded:
    """A transcript, and the views of it that are attacked."""

    transcript: Transcript
    truths: Truths | None = None
    views: tuple[View, ...] = (ServerView(),)
    knows: Knows = field(default_factory=Knows)
    name: str = ""
    public: Public | None = None
    """What the adversary has of such data."""
    defences: Mapping[str, Protection] = field(default_factory=dict)
    """What protects each client, to be played again; nothing of those of whom it is not known."""
    doubts: Mapping[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)
    """By round and client, what was recorded and is not as it was said; of the round itself under no name."""
    everywhere: ParticipantsByRound | None = None
    """Who took part in which of all rounds that are known of; those of the transcript where nobody says."""
    beside: Mapping[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)
    """By round and client, what was sent beside the arrays of the model."""
    reserved: Mapping[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)
    """By round and client, what a recorder saw of a training that can not be played again."""
    aside: Mapping[tuple[int, str], Params] = field(default_factory=dict)
    """By round and client, what the server has got of those that nobody has asked about: noise may repeat there."""
    overlooked: tuple[str, ...] = ()
    """Clients that took part and that none of the views shows."""
    dishonest: tuple[str, ...] = ()
    """Clients that do not do what is declared, where that is known by name."""
    simulated: bool = False
    """Whether the messages were made by what is declared, in this audit."""
    dealt: bool = False
    """Whether nobody has said how many examples each client has, and their sum was dealt out as evenly as it goes."""
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
        told = [] if self.public is None else [self.public.identity]
        told += [identity_text(dict(sorted(self.defences.items())))] if self.defences else []
        told += (
            [identity_text((self.overlooked, sorted(self.beside.items())))] if self.overlooked or self.beside else []
        )
        told += [identity_text(each) for each in self._judged_by() if each]
        return digest("source", self.name, self._content(), truths, identity_text(self.knows), *told)

    def _judged_by(self) -> Iterator[Sequence[object]]:
        """What decides the verdict beside the messages: a bundle may have grown, or been corrected, since the last."""
        yield sorted(self.doubts.items())
        known = self.transcript.participants_by_round.rounds
        more = {} if self.everywhere is None else self.everywhere.rounds
        yield sorted((index, names) for index, names in more.items() if index not in known)
        yield [(*turn, of_params(update)) for turn, update in sorted(self.aside.items(), key=lambda pair: pair[0])]
        yield [] if self.truths is None else sorted((*self.truths.taken.items(), *self.truths.order.items()))

    def _content(self) -> str:
        """A hash of all that was said; what a file claims to have come from says nothing of what it holds now."""
        said = self.transcript
        facts = [identity_text(said.terms), of_model(said.model)]
        for index, past in sorted(said.rounds.items()):
            sent = (p for m in past.messages for p in (m.update, m.buffers))
            params = [past.before, past.buffers, past.step, *sent, past.buffers_after]
            facts += [
                str(index),
                identity_text(past.participants),
                identity_text(past.accepted),
                *map(of_params, params),
            ]
            for m in past.messages:
                if m.start is not None:
                    facts += [m.client, of_params(m.start.before), of_params(m.start.buffers)]
        return digest("recorded", *facts)

    def infos(self) -> Sequence[TargetInfo]:
        clients, rounds = self.transcript.terms.clients, self.transcript.rounds
        return target_infos(
            self.name, self.views, clients, lambda index: rounds[index].participants, self.naming, self.first_round
        )

    def rehearse(self) -> Iterator[ViewResult]:
        for view in self.views:
            yield view.see(self.transcript, self.knows, self.truths)

    def targets(self, progress: RoundProgress, answers: TrainClients = train_sequentially) -> Sequence[Target]:
        return [self.target(view) for view in self.views]

    def target(self, view: View) -> Target:
        """Return what one view makes of the recording."""
        if not isinstance(view, Together):
            return self._single(view)
        first, *later = targets = [self._single(each) for each in view.ordered]
        whole = target_of(self.transcript, view, self.knows, self.truths)
        return replace(
            first,
            observation=whole.observation,
            further=self._further(view, first),
            doubts=joint_doubts(targets),
            joint_targets=tuple(later),
        )

    def _further(self, view: View, found: Target) -> int:
        """Also what others have sent that have the same examples: a client under two names, or a picture of many."""
        attendance = self.everywhere or self.transcript.participants_by_round
        twins = () if self.truths is None else self.truths.clients_sharing_images(found.contributors)
        others = sum(name in present for present in attendance.rounds.values() for name in twins)
        return further_rounds(view, found.contributors, attendance, self.views) + others

    def _single(self, view: View) -> Target:
        """Return the target of one view with its claim: files may have been edited, so that it is checked."""
        target = target_of(self.transcript, view, self.knows, self.truths)
        seen, index = view.see(self.transcript, self.knows, self.truths), view.rounds()[-1]
        seen = replace(seen, observation=target.observation)
        participants = participants_of(self.transcript, index, seen)
        claim = claim_of(self.transcript, index, seen, self.truths, self.defences)
        pool = self._pool(participants)
        return replace(
            target,
            claim=None if claim is None else replace(claim, honest=self._honest(participants)),
            doubts=tuple(self._doubts(seen, index, target, participants)),
            public=self.public if self.public is not None or pool is None else Public.of(pool.images, pool.labels),
            pool=pool,
            further=self._further(view, target),
            simulated=self.simulated,
            recorder_caveats=tuple(each for name in seen.clients for each in self.reserved.get((index, name), ())),
            same_noise_in={} if self.simulated else self._others(view, target),
        )

    def _doubts(
        self, seen: ViewResult, index: int, target: Target, participants: Sequence[Participant]
    ) -> Iterator[Doubt]:
        """Yield the doubts about one message that need no computation."""
        yield from coverage_doubts(
            seen,
            target.truth,
            [p for p in participants if p.name in seen.clients],
            unaudited_clients=self.overlooked,
            extra_payload=[each for name in seen.clients for each in self.beside.get((index, name), ())],
            simulated=self.simulated,
        )
        if not self.simulated and has_unnamed_defence(self.transcript, participants, self.defences):
            yield doubt(Kind.DEFENCE_NOT_NAMED)
        contradictions = [text for name in ("", *seen.clients) for text in self.doubts.get((index, name), ())]
        if contradictions:
            yield doubt(Kind.NOT_AS_DECLARED, found="; ".join(dict.fromkeys(contradictions)))

    def _honest(self, participants: Sequence[Participant]) -> bool:
        """Return whether every client behind the message did what is claimed."""
        if self.simulated:
            return not any(p.name in self.dishonest for p in participants)
        return not self.transcript.terms.behaviours

    def _pool(self, participants: Sequence[Participant]) -> Examples | None:
        """Return the public examples and those of clients that are not in the message."""
        behind = {p.name for p in participants}
        known = {} if self.truths is None else self.truths.examples
        parts = [examples for name, examples in known.items() if name not in behind]
        parts += [self.public.examples] if self.public is not None and self.public.examples is not None else []
        if not parts:
            return None
        return Examples(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))

    def _others(self, view: View, found: Target) -> dict[str, Params]:
        """A server sees everybody's; who sees aggregates alone sees those of other rounds."""
        rounds, own = self.transcript.rounds, view.rounds()[-1]
        if not isinstance(view, ServerView):
            return {f"as in round {self.naming.round(i)}": past.step for i, past in rounds.items() if i != own}
        seen = {(i, message.client): message.update for i, past in rounds.items() for message in past.messages}
        return {
            f"as of {client} in round {self.naming.round(i)}": update
            for (i, client), update in {**seen, **self.aside}.items()
            if (i, client) != (own, found.contributors[0])
        }

    def threat(self) -> list[Section]:
        said, named = self.transcript, f" {self.name!r}" if self.name else ""
        size = sum(p.numel() for p in said.model.parameters())
        truth = "The true images are given for scoring." if self.truths else "No truth is given: nothing is scored."
        lines = [f"A {type(said.model).__name__} of {size:,} parameters.", truth, *self._personalised()]
        lines += list(self._untrained())
        more = [] if self.public is None else [self.public.sentence]
        sections = [Section(f"Recording{named}", lines), *adversary_sections(sights_of(self), more, named.strip())]
        return [*sections, Section("Contradictions", self.doubted())] if self.doubts else sections

    def _personalised(self) -> Iterator[str]:
        """Whose messages add to another model than the round's, in words."""
        for index, past in sorted(self.transcript.rounds.items()):
            for name in past.clients_with_own_model(self.transcript.terms.clients):
                number = self.naming.round(index)
                yield f"{name} was sent a model of its own in round {number}, to which its message adds."

    def _untrained(self) -> Iterator[str]:
        """Which layers are constants of the network to an attack, in words."""
        for index, past in sorted(self.transcript.rounds.items()):
            for names, people in _grouped({p.name: p.untrained for p in past.participants}).items():
                yield (
                    f"{some(people)} did not train {some(names)} in round {self.naming.round(index)}, or did not send "
                    "it: to the attacks these are constants of the network."
                )

    def doubted(self) -> list[str]:
        """What is not as it was said, in words."""
        return [
            f"{name or 'All clients'}, round {self.naming.round(index)}: {said}."
            for (index, name), words in self.doubts.items()
            for said in words
        ]


def _grouped(untrained: Mapping[str, tuple[str, ...]]) -> dict[tuple[str, ...], list[str]]:
    """By what they do not train, who does so; without those who train all."""
    found: dict[tuple[str, ...], list[str]] = {}
    for person, names in untrained.items():
        if names:
            found.setdefault(names, []).append(person)
    return found
