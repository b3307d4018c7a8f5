"""A federation that was recorded: its transcript, and the data behind it where their owners have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from fedglass.audit.knowledge import adversary_sections, sights_of
from fedglass.audit.public import Public
from fedglass.audit.target import Said, Section, Target, TargetInfo, further, infos_of, target_of
from fedglass.checks.consistency import Heard
from fedglass.core.errors import UsageError
from fedglass.core.identity import digest, identity_text, of_model, of_params
from fedglass.core.tensors import Params
from fedglass.core.text import some
from fedglass.federation.client import TrainClients, train_sequentially
from fedglass.federation.transcript import ParticipantsByRound, Transcript
from fedglass.federation.truth import Examples, Truths
from fedglass.federation.views import Knows, ServerView, Together, View, ViewResult
from fedglass.fl.release import Protection


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
        past = self.transcript
        return infos_of(self.name, self.views, past.terms.clients, lambda index: past.rounds[index].participants)

    def rehearse(self) -> Iterator[ViewResult]:
        for view in self.views:
            yield view.see(self.transcript, self.knows, self.truths)

    def targets(self, progress: Said, answers: TrainClients = train_sequentially) -> Sequence[Target]:
        return [self.target(view) for view in self.views]

    def target(self, view: View) -> Target:
        """Return what one view makes of the recording."""
        if not isinstance(view, Together):
            return self._single(view)
        first, *later = map(self._single, view.ordered)
        whole = target_of(self.transcript, view, self.knows, self.truths)
        return replace(
            first,
            observation=whole.observation,
            further=self._further(view, first),
            batch_statistics=any(each.batch_statistics for each in (first, *later)),
            also=tuple(later),
        )

    def _further(self, view: View, found: Target) -> int:
        """Also what others have sent that have the same examples: a client under two names, or a picture of many."""
        attendance = self.everywhere or self.transcript.participants_by_round
        twins = () if self.truths is None else self.truths.clients_sharing_images(found.behind)
        others = sum(name in present for present in attendance.rounds.values() for name in twins)
        return further(view, found.behind, attendance, self.views) + others

    def _single(self, view: View) -> Target:
        """Files may have been edited or exchanged: what made a message is played again, whatever they say of it."""
        found = target_of(self.transcript, view, self.knows, self.truths)
        seen, index = view.see(self.transcript, self.knows, self.truths), view.rounds()[-1]
        heard = Heard(self.transcript, index, replace(seen, observation=found.observation))
        pool = self._pool(heard)
        return replace(
            found,
            public=self.public if self.public is not None or pool is None else Public.of(pool.images, pool.labels),
            pool=pool,
            further=self._further(view, found),
            declared=None if self.truths is None else heard.declared(self.truths, self.defences),
            statement=heard.statement(self.defences),
            protections=heard.protections(self.defences),
            unnamed=heard.unnamed(self.defences) and not self.simulated,
            dishonest=self._dishonest(heard),
            simulated=self.simulated,
            doubts=tuple(words for name in ("", *seen.clients) for words in self.doubts.get((index, name), ())),
            overlooked=self.overlooked,
            beside=tuple(each for name in seen.clients for each in self.beside.get((index, name), ())),
            reserved=tuple(each for name in seen.clients for each in self.reserved.get((index, name), ())),
            others={} if self.simulated else self._others(view, found),
        )

    def _dishonest(self, heard: Heard) -> bool:
        """Return whether a client behind the message may not have done what is declared."""
        if self.simulated:
            return any(person.name in self.dishonest for person in heard.people)
        return bool(self.transcript.terms.behaviours)

    def _pool(self, heard: Heard) -> Examples | None:
        """Return the public examples and those of clients that are not in the message."""
        behind = {person.name for person in heard.people}
        own = {} if self.truths is None else self.truths.examples
        parts = [examples for name, examples in own.items() if name not in behind]
        parts += [self.public.examples] if self.public is not None and self.public.examples is not None else []
        if not parts:
            return None
        return Examples(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))

    def _others(self, view: View, found: Target) -> dict[str, Params]:
        """A server sees everybody's; who sees aggregates alone sees those of other rounds."""
        rounds, own = self.transcript.rounds, view.rounds()[-1]
        if not isinstance(view, ServerView):
            return {f"as in round {i + 1}": past.step for i, past in rounds.items() if i != own}
        seen = {(i, message.client): message.update for i, past in rounds.items() for message in past.messages}
        return {
            f"as of {client} in round {i + 1}": update
            for (i, client), update in {**seen, **self.aside}.items()
            if (i, client) != (own, found.behind[0])
        }

    def threat(self) -> list[Section]:
        said, named = self.transcript, f" {self.name!r}" if self.name else ""
        size = sum(p.numel() for p in said.model.parameters())
        truth = "The true images are given for scoring." if self.truths else "No truth is given: nothing is scored."
        lines = [f"A {type(said.model).__name__} of {size:,} parameters.", truth, *self._personalised()]
        lines += list(self._untrained())
        more = [] if self.public is None else [self.public.words]
        sections = [Section(f"Recording{named}", lines), *adversary_sections(sights_of(self), more, named.strip())]
        return [*sections, Section("Contradictions", self.doubted())] if self.doubts else sections

    def _personalised(self) -> Iterator[str]:
        """Whose messages add to another model than the round's, in words."""
        for index, past in sorted(self.transcript.rounds.items()):
            for name in past.clients_with_own_model(self.transcript.terms.clients):
                yield f"{name} was sent a model of its own in round {index + 1}, to which its message adds."

    def _untrained(self) -> Iterator[str]:
        """Which layers are constants of the network to an attack, in words."""
        for index, past in sorted(self.transcript.rounds.items()):
            for names, people in _grouped({p.name: p.untrained for p in past.participants}).items():
                yield (
                    f"{some(people)} did not train {some(names)} in round {index + 1}, or did not send it: to the "
                    "attacks these are constants of the network."
                )

    def doubted(self) -> list[str]:
        """What is not as it was said, in words."""
        return [
            f"{name or 'All clients'}, round {index + 1}: {said}."
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
