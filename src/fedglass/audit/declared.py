"""What a recorded round declares of its messages: to be played again, and to be checked without the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedglass.audit.consistency import Statement
from fedglass.audit.replay import Declared, Part
from fedglass.fl.aggregate.mean import WeightedMean
from fedglass.fl.protection import Protection
from fedglass.rounds.transcript import Participant, Transcript
from fedglass.rounds.truth import Truths
from fedglass.rounds.views.view import Seen

MEANS = ("not recorded", repr(WeightedMean()))
"""Rules of aggregation that a replay supposes."""


@dataclass(frozen=True, eq=False)
class Heard:
    """What a view saw of one recorded round."""

    transcript: Transcript
    index: int
    seen: Seen

    @property
    def people(self) -> list[Participant]:
        """Whose examples are in the message, the adversary's own last."""
        names = (*self.seen.behind, *(() if self.seen.own is None else (self.seen.own,)))
        present = {p.name: p for p in self.transcript.rounds[self.index].participants}
        return [present[name] for name in names]

    def declared(self, truths: Truths, protections: Mapping[str, Protection]) -> Declared | None:
        """What is said to have made the message; None where nobody has said how a client trained."""
        parts = []
        for person in self.people:
            own, training = truths.of(person.name, self.index), person.training
            if training is None:
                return None
            shield = protections.get(person.name, Protection())
            order = truths.batches(person.name, self.index)
            parts.append(Part(own.images, own.labels, training, shield, person.weight, order))
        o, terms = self.seen.observation, self.transcript.terms
        mine, mean = int(self.seen.own is not None), len(parts) == 1 or terms.rule in MEANS
        return Declared(o.model, o.before, o.buffers, o.update, terms.whitening, tuple(parts), self.index, mine, mean)

    def protections(self, protections: Mapping[str, Protection]) -> tuple[Protection, ...]:
        """Return what is said to protect each client; empty where somebody's is not known."""
        return () if self.unnamed(protections) else tuple(protections.get(p.name, Protection()) for p in self.people)

    def statement(self, protections: Mapping[str, Protection]) -> Statement | None:
        """The same without the data."""
        told = [(person.examples, person.training) for person in self.people]
        trainings = tuple((examples, training) for examples, training in told if training is not None)
        if len(trainings) < len(told):
            return None
        o, terms = self.seen.observation, self.transcript.terms
        return Statement(
            o.model,
            o.before,
            o.buffers,
            o.buffers_after,
            o.update,
            terms.shape,
            terms.whitening,
            trainings,
            None if self.unnamed(protections) else any(p != Protection() for p in self.protections(protections)),
        )

    def unnamed(self, protections: Mapping[str, Protection]) -> bool:
        """Return whether something protects a client of which nobody has said what."""
        defences = self.transcript.terms.defences
        known = {p.name for p in self.people if defences is not None and not defences.get(p.name)}
        return any(p.name not in protections and p.name not in known for p in self.people)
