"""A federation that is simulated for the audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch

from fedglass.audit.knowledge import adversary_sections, describe_training
from fedglass.audit.protection import defences_of, describe_protection, merge_by_client, rehearse_defences, undefended
from fedglass.audit.public_data import Public, accuracy, model_after
from fedglass.audit.recorded import Recorded
from fedglass.audit.target import (
    PendingTarget,
    RoundProgress,
    Section,
    Target,
    TargetInfo,
    missing_target,
    target_infos,
)
from fedglass.core.errors import UsageError
from fedglass.core.identity import digest, identity_text, of_tensor
from fedglass.core.losses import TargetKind, target_kind
from fedglass.core.registry import summary_of
from fedglass.core.tensors import buffers_of, weights_of
from fedglass.core.text import AFTER_ROUND, TEST_ACCURACY
from fedglass.federation.behaviours import Honest
from fedglass.federation.client import TrainClients, train_sequentially
from fedglass.federation.federation import Federation
from fedglass.federation.transcript import Message, Round, Transcript
from fedglass.federation.truth import Examples, Truths
from fedglass.federation.views import Knows, ServerView, View, ViewResult
from fedglass.fl.release import Protection
from fedglass.models.network import title_of
from fedglass.verdict.doubts import Doubt, DoubtKind, doubt
from fedglass.verdict.texts import count

_UNDEFENDED: dict[str, float] = {}
"""Accuracy of undefended federations by identity: those of a sweep differ in their defences alone."""


@dataclass(frozen=True, eq=False)
class Simulated:
    """A federation that trains for some rounds, and the views of it that are attacked."""

    federation: Federation
    rounds: int = 1
    views: tuple[View, ...] = (ServerView(),)
    knows: Knows = field(default_factory=Knows)
    name: str = ""
    class_names: tuple[str, ...] | None = None
    test: Examples | None = None
    """Examples of no client, for the accuracy of the trained model."""
    public: Public | None = None
    """Public data of the same kind that the adversary has."""
    swept: Mapping[str, float] = field(default_factory=dict)
    """What a sweep changes from one federation to the next, and its value here."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise UsageError(f"federation.rounds must be at least 1, got {self.rounds}.")
        if not self.views:
            raise UsageError("The adversary needs at least one view, such as ServerView(client=0), got none.")
        attendance = self.federation.participants_by_round(self.rounds)
        for view in self.views:
            view.check(attendance)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.federation.shape

    def identity(self) -> str:
        """Return a hash of everything that decides the messages."""
        test = self.test
        measured = [] if test is None else [str(self.rounds), of_tensor(test.images), of_tensor(test.labels)]
        public = [] if self.public is None or not self.public.identity else [self.public.identity]
        facts = self.name, self._origin(), self.truths().identity, identity_text(self.knows)
        return digest("source", *facts, *measured, *public)

    def _origin(self) -> str:
        return digest(self.federation.identity, identity_text(self.class_names))

    def infos(self) -> Sequence[TargetInfo]:
        f = self.federation
        names = [client.name for client in f.clients]
        return target_infos(
            self.name, self.views, names, lambda index: [f.participant(c) for c in f.clients_in_round(index)]
        )

    def targets(
        self, progress: RoundProgress, answers: TrainClients = train_sequentially
    ) -> Sequence[Target | PendingTarget]:
        """Return the targets in the order of `infos`; `answers` trains the clients."""
        transcript, last = self._played(progress, answers)
        utility = self._utility(last, progress, answers)
        rounds = {view.rounds()[-1] for view in self.views} if len(self._seen_rounds()) > 1 else set()
        unmeasured = self.test is None or self._predicts_numbers
        then = {} if unmeasured else {index: self._accuracy(transcript.rounds[index]) for index in rounds}
        recorded, doubts = self.recorded(transcript), list[Doubt]()
        if self.test is not None and self.federation.classes > 1 and len(torch.unique(self.test.labels)) == 1:
            doubts.append(doubt(DoubtKind.TEST_OF_ONE_CLASS, examples=len(self.test.labels)))

        def target(view: View) -> Target | PendingTarget:
            try:
                single = recorded.target(view)
            except UsageError as error:  # what the rule let through is known only now
                return partial(missing_target, str(error))
            figures = {**utility, **({AFTER_ROUND: then[view.rounds()[-1]]} if then else {})}
            return replace(single, utility=figures, swept=self.swept, doubts=(*single.doubts, *doubts))

        return [target(view) for view in self.views]

    def recorded(self, transcript: Transcript) -> Recorded:
        """Return the same as a recording with messages that were made as claimed."""
        clients = self.federation.clients
        return Recorded(
            transcript,
            self.truths(),
            self.views,
            self.knows,
            public=self.public,
            defences={client.name: Protection(client.gradient, client.release) for client in clients},
            attendance=self.federation.participants_by_round(self.rounds),
            dishonest=tuple(client.name for client in clients if type(client.behaviour) is not Honest),
            simulated=True,
        )

    def transcript(self) -> Transcript:
        """Return the messages of the rounds that the views see."""
        return self._played(lambda done, total: None, train_sequentially)[0]

    def truths(self) -> Truths:
        """Return the private data behind it."""
        return self.federation.truths(sorted(self._seen_rounds()))

    def _seen_rounds(self) -> set[int]:
        return {index for view in self.views for index in view.rounds()}

    def _played(self, progress: RoundProgress, answers: TrainClients) -> tuple[Transcript, Round]:
        """Return the rounds that the views see, and the last round, after which the accuracy is measured."""
        wanted = self._seen_rounds()
        rounds = max(wanted) + 1 if self.test is None else self.rounds
        rounds_by_index: dict[int, Round] = {}
        for index, last in enumerate(self.federation.play(rounds, progress, answers)):
            if index in wanted:
                rounds_by_index[index] = last
        return self._transcript(rounds_by_index), last

    def _transcript(self, rounds: dict[int, Round]) -> Transcript:
        terms = replace(
            self.federation.terms,
            class_names=self.class_names,
            defences=self.protection(),
        )
        return Transcript(self.federation.model, terms, rounds, self._origin())

    def rehearse(self) -> Sequence[ViewResult]:
        """Refuse what could only fail after the training; return what will be seen, except its entries."""
        return self._rehearsed

    @cached_property
    def _rehearsed(self) -> Sequence[ViewResult]:
        rehearse_defences(self.federation)
        silent = self._transcript({index: silent_round(self.federation, index) for index in self._seen_rounds()})
        truths = self.truths()
        return [view.see(silent, self.knows, truths) for view in self.views]

    def protection(self) -> dict[str, tuple[str, ...]]:
        """Return sentences about what protects each client and what that promises."""
        return describe_protection(self.federation, self.rounds)

    @property
    def _predicts_numbers(self) -> bool:
        """Return whether the model predicts numbers, which are not right or wrong."""
        return target_kind(self.federation.training.loss) is TargetKind.NUMBERS

    def _utility(self, last: Round, progress: RoundProgress, answers: TrainClients) -> dict[str, float]:
        """Return the model's accuracy, and what it would be without the defences."""
        if self.test is None or self._predicts_numbers:
            return {}
        utility = {TEST_ACCURACY: self._accuracy(last)}
        if any(map(defences_of, self.federation.clients)):
            bare = replace(self.federation, clients=[undefended(client) for client in self.federation.clients])
            key = digest(bare.identity, str(self.rounds), of_tensor(self.test.images), of_tensor(self.test.labels))
            if key not in _UNDEFENDED:
                *_, last = bare.play(self.rounds, progress, answers)
                _UNDEFENDED[key] = self._accuracy(last)
            utility["test accuracy, undefended"] = _UNDEFENDED[key]
        return utility

    def _accuracy(self, round_: Round) -> float:
        """Return the accuracy of the model after a round on the test examples."""
        assert self.test is not None, "asked before"
        return accuracy(model_after(self.federation.model, round_), self.federation.whitening, self.test)

    def threat(self) -> list[Section]:
        """Return the source as sentences of the threat model."""
        f, named = self.federation, f" {self.name!r}" if self.name else ""
        counts = sorted({len(c.labels) for c in f.clients})
        largest = count(counts[-1], "private example")
        examples = largest if len(counts) == 1 else f"{counts[0]} to {largest}"
        size = sum(p.numel() for p in f.model.parameters())
        share = "" if f.participation == 1 else f", {f.participation:.0%} of the clients in each"
        shape = " x ".join(map(str, f.shape))
        lines = [
            f"{count(len(f.clients), 'client')} with {examples} each, {shape}, {f.classes} classes.",
            f"A {title_of(f.model)} of {size:,} parameters, {count(self.rounds, 'round')}{share}.",
            f"The server's rule is {summary_of('rules', f.aggregator)}.",
            f"Each client's training: {describe_training(f.training)}.",
            *(
                f"{c.name[0].upper()}{c.name[1:]}'s own training: {describe_training(c.training)}."
                for c in f.clients
                if c.training is not None
            ),
            *(merge_by_client(describe_protection(f, self.rounds, partial(summary_of, "defences"))) or ["No defence."]),
            *f.terms.behaviours,
        ]
        more = [] if self.public is None else [self.public.sentence]
        return [
            (f"Federation{named}", lines),
            *adversary_sections(self.infos(), self.rehearse(), more, named.strip()),
        ]


Source = Simulated | Recorded
"""Something that yields targets."""


def silent_round(federation: Federation, index: int) -> Round:
    """Return a round in which the right clients take part and all send zeros."""
    before, buffers = weights_of(federation.model), buffers_of(federation.model)
    zeros = {name: torch.zeros_like(w) for name, w in before.items()}
    participants = tuple(map(federation.participant, federation.clients_in_round(index)))
    messages = tuple(Message(p.name, zeros, buffers) for p in participants)
    return Round(before, buffers, participants, messages, zeros, buffers, tuple(p.name for p in participants))
