"""A federation that was recorded: its transcript, and the data behind it where their owners have them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from fedglass.audit.public import Public
from fedglass.audit.target import Said, Section, Target, TargetInfo, infos_of, target_of
from fedglass.audit.words import knowledge_in_words
from fedglass.core.errors import UsageError
from fedglass.core.identity import digest, identity_text, of_model, of_params
from fedglass.rounds.transcript import Transcript
from fedglass.rounds.truth import Truths
from fedglass.rounds.views.server import ServerView
from fedglass.rounds.views.view import Knows, Seen, View


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

    def __post_init__(self) -> None:
        if not self.views:
            raise UsageError("The adversary needs at least one view, such as ServerView(client=0), got none.")
        for view in self.views:
            view.check(self.transcript.attendance)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.transcript.terms.shape

    def identity(self) -> str:
        truths = "" if self.truths is None else self.truths.identity
        origin = self.transcript.origin or self._content()
        told = [] if self.public is None else [self.public.identity]
        return digest("source", self.name, origin, truths, identity_text(self.knows), *told)

    def _content(self) -> str:
        """A hash of all that was said."""
        said = self.transcript
        facts = [identity_text(said.terms), of_model(said.model)]
        for index, past in sorted(said.rounds.items()):
            params = [past.before, past.buffers, past.step, *(p for m in past.messages for p in (m.update, m.buffers))]
            facts += [str(index), identity_text(past.participants), identity_text(past.kept), *map(of_params, params)]
        return digest("recorded", *facts)

    def infos(self) -> Sequence[TargetInfo]:
        return infos_of(self.name, self.views)

    def rehearse(self) -> Iterator[Seen]:
        for view in self.views:
            yield view.see(self.transcript, self.knows, self.truths)

    def targets(self, progress: Said) -> Sequence[Target]:
        found = [target_of(self.transcript, view, self.knows, self.truths) for view in self.views]
        return [replace(target, public=self.public) for target in found]

    def threat(self) -> list[Section]:
        said, named = self.transcript, f" {self.name!r}" if self.name else ""
        size = sum(p.numel() for p in said.model.parameters())
        truth = "The true images are given for scoring." if self.truths else "No truth is given: nothing is scored."
        lines = [f"A {type(said.model).__name__} of {size:,} parameters.", truth]
        seen = next(iter(self.rehearse())).observation
        facts = [f"{name}: {words}" for name, words in knowledge_in_words(seen.knows).items()]
        facts += [] if self.public is None else [self.public.words]
        sees = [f"{info.words[0].upper()}{info.words[1:]}." for info in self.infos()]
        return [
            Section(f"Recording{named}", lines),
            Section("What the adversary sees", sees),
            Section("What it knows beside", facts),
        ]
