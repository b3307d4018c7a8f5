"""What a recorded round declares of its messages: to be played again, and to be checked without the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedglass.audit.consistency import Statement
from fedglass.audit.replay import Declared, Part, played
from fedglass.core.types import Observation
from fedglass.fl.aggregate.mean import WeightedMean
from fedglass.fl.protection import Protection
from fedglass.rounds.transcript import Participant, Transcript
from fedglass.rounds.truth import Truths
from fedglass.rounds.views.view import Seen

UNNAMED = (
    "how much of that the defence makes is not known: name it with its options, such as recording.defended = "
    '{ name = "gaussian_noise", std = 0.1 }'
)
MEANS = ("not recorded", repr(WeightedMean()))
"""Rules of aggregation that a replay supposes."""


@dataclass(frozen=True, eq=False)
class Heard:
    """What a view saw of one recorded round."""

    transcript: Transcript
    index: int
    seen: Seen
    defended: bool | None

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
        o, whitening = self.seen.observation, self.transcript.terms.whitening
        return Declared(o.model, o.before, o.buffers, o.update, whitening, tuple(parts), self.index)

    def statement(self) -> Statement | None:
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
            self.defended,
        )

    def unplayable(self, protections: Mapping[str, Protection]) -> str:
        """What of the message a replay does not know; empty where nothing is."""
        terms = self.transcript.terms
        defences = terms.defences or {}
        if any(defences.get(person.name) and person.name not in protections for person in self.people):
            return UNNAMED
        if terms.behaviours:
            return "participants are not honest, and what they do is not played again"
        if len(self.people) > 1 and terms.rule not in MEANS:
            return f"{terms.rule} combined the updates, and a mean is all that is played again"
        return ""

    def bare(self, declared: Declared) -> Observation | None:
        """What the message would have been without its defence, as far as the declared training tells."""
        update = played(declared)
        return None if update is None else replace(self.seen.observation, update=update)
