"""What an audit attacks: a federation that is simulated, or messages that were recorded from a real one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from fedglass.audit.protection import defences_of, privacy_in_words, undefended
from fedglass.core.errors import UsageError
from fedglass.core.identity import digest, identity_text, of_architecture, of_model, of_params, of_tensor
from fedglass.core.types import BatchNorm, Observation
from fedglass.models.network import Network
from fedglass.rounds.federation import Federation, Transcript
from fedglass.rounds.truth import Truth
from fedglass.rounds.views import Knows, ServerView, View

AT_ONCE = 256
"""Test images classified at a time."""


@dataclass(frozen=True, eq=False)
class Target:
    """One message with all that belongs to it; `truth` is None where nobody recorded it."""

    observation: Observation
    truth: Truth | None
    class_names: tuple[str, ...] | None = None
    utility: Mapping[str, float] = field(default_factory=dict)
    """How good the model is that the federation trained."""
    defences: tuple[str, ...] | None = None
    """What protects the message, and what that promises; None where it is not known."""
    undefended: bool = False
    """Whether it is known that neither a defence nor secure aggregation protects the message."""


@dataclass(frozen=True)
class Sight:
    """What is known of a target before the federation has run."""

    spec: str
    """The view as printed: a part of the case's identity."""
    words: str
    round: int
    """Counted from 1, as in `words`."""


class Source(Protocol):
    """Something that yields targets."""

    @property
    def name(self) -> str: ...

    @property
    def oracle(self) -> frozenset[str]:
        """The oracle facts that the adversary is given."""
        ...

    def identity(self) -> str:
        """A hash of everything that decides the messages."""
        ...

    def sights(self) -> Sequence[Sight]: ...

    def targets(self, progress: Callable[[int, int], None]) -> Sequence[Target]:
        """The targets, in the order of `sights`."""
        ...


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled images that nobody trains on."""

    images: Tensor  # (n, c, h, w), pixels in [0, 1]
    labels: Tensor  # (n,)


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
    """Examples of no client, on which the trained model is measured."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise UsageError(f"federation.rounds must be at least 1, got {self.rounds}.")
        if not self.views:
            raise UsageError("The adversary needs at least one view, such as ServerView(client=0), got none.")
        for view in self.views:
            self._check(view)

    def _check(self, view: View) -> None:
        """Say before the training what `see` would only say after it."""
        index, clients = getattr(view, "round", 0), len(self.federation.clients)
        if not 0 <= index < self.rounds:
            raise UsageError(
                f"adversary.round must be one of 0 to {self.rounds - 1}, got {index}: the federation runs "
                f"{self.rounds} rounds; choose an earlier round or raise federation.rounds."
            )
        if isinstance(view, ServerView) and not 0 <= view.client < clients:
            raise UsageError(
                f"adversary.client must be one of 0 to {clients - 1}, got {view.client}: choose another "
                "client or raise federation.clients."
            )

    @property
    def oracle(self) -> frozenset[str]:
        given = {"labels": self.knows.labels, "batch_labels": self.knows.batch_labels}
        return frozenset(name for name, told in given.items() if told)

    def identity(self) -> str:
        f = self.federation
        clients = [
            part
            for c in f.clients
            for part in (
                c.name,
                of_tensor(c.images),
                of_tensor(c.labels),
                identity_text(c.gradient, f"The gradient of {c.name}"),
                identity_text(c.release, f"The defence of {c.name}"),
            )
        ]
        facts = {
            "training": f.training,
            "classes": f.classes,
            "whitening": f.whitening,
            "rule": f.aggregator,
            "participation": f.participation,
            "seed": f.seed,
            "rounds": self.rounds,
            "knows": self.knows,
        }
        test = [] if self.test is None else [of_tensor(self.test.images), of_tensor(self.test.labels)]
        return digest(
            "simulated", self.name, of_model(f.model), identity_text(facts, "The federation"), *clients, *test
        )

    def sights(self) -> Sequence[Sight]:
        before = f"{self.name}: " if self.name else ""
        return [
            Sight(identity_text(v, "The adversary's view"), before + v.describe(), getattr(v, "round", 0) + 1)
            for v in self.views
        ]

    def targets(self, progress: Callable[[int, int], None]) -> Sequence[Target]:
        transcript = self.federation.run(self.rounds, progress)
        utility = self._utility(transcript, progress)
        alone = len(self.federation.clients) == 1
        defences = tuple(self.protection())
        return [
            Target(
                *view.see(transcript, self.knows),
                self.class_names,
                utility,
                defences,
                undefended=not defences and (alone or isinstance(view, ServerView)),
            )
            for view in self.views
        ]

    def protection(self) -> list[str]:
        """The defences of all clients and what they promise, in words; none where there is none."""
        found = dict.fromkeys(part for client in self.federation.clients for part in defences_of(client))
        return [*(f"Defended by {part}." for part in found), *privacy_in_words(self.federation, self.rounds)]

    def _utility(self, transcript: Transcript, progress: Callable[[int, int], None]) -> dict[str, float]:
        """The model's accuracy, and what it would be without the defences."""
        if self.test is None:
            return {}
        utility = {"test accuracy": accuracy(transcript, self.test)}
        if any(map(defences_of, self.federation.clients)):
            bare = replace(self.federation, clients=[undefended(c) for c in self.federation.clients])
            utility["test accuracy, undefended"] = accuracy(bare.run(self.rounds, progress), self.test)
        return utility


def accuracy(transcript: Transcript, test: Examples) -> float:
    """The share of the test examples that the model after the last round classifies rightly."""
    federation, last = transcript.federation, transcript.rounds[-1]
    network = Network(federation.model, last.buffers, BatchNorm.FROZEN)
    weights, right = [last.after[name] for name in network.names], 0
    with torch.no_grad():
        for rows in torch.split(torch.arange(len(test.labels)), AT_ONCE):
            images, labels = test.images[rows], test.labels[rows]
            logits = network(weights, federation.whitening.whiten(images))
            right += int((logits.argmax(1) == labels).sum())
    return right / len(test.labels)


@dataclass(frozen=True, eq=False)
class Recorded:
    """A message from a real federation, with the data behind it where its owner has them."""

    observation: Observation
    truth: Truth | None = None
    name: str = ""
    class_names: tuple[str, ...] | None = None

    @property
    def oracle(self) -> frozenset[str]:
        knows = self.observation.knows
        given = {"labels": knows.labels, "batch_labels": knows.batch_labels}
        return frozenset(name for name, told in given.items() if told is not None)

    def identity(self) -> str:
        seen, truth = self.observation, self.truth
        data = ["no truth"] if truth is None else [of_tensor(truth.images), of_tensor(truth.labels)]
        knows = seen.knows
        facts = [(name, of_tensor(v) if isinstance(v, Tensor) else v) for name, v in vars(knows).items()]
        messages = [of_params(p) for p in (seen.before, seen.buffers, seen.update)]
        return digest(
            "recorded", self.name, of_architecture(seen.model), identity_text(facts, "The recording"), *messages, *data
        )

    def sights(self) -> Sequence[Sight]:
        clients = self.observation.knows.clients
        words = "the recorded update of one client"
        if clients > 1:
            words = f"the recorded aggregate of {clients} clients' updates"
        return [Sight("recorded", f"{self.name}: {words}" if self.name else words, 1)]

    def targets(self, progress: Callable[[int, int], None]) -> Sequence[Target]:
        return [Target(self.observation, self.truth, self.class_names)]
