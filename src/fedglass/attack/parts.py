"""The roles that an attack is composed of, as protocols of one or two methods.

A *spec* (a frozen dataclass such as `Cosine()` or `Pixels()`) holds no tensor. Binding a spec to an
observation gives closures over tensors, which is all that the hot loop sees.

Each part declares the facts that it needs, and an attack needs what its parts need.

A part has a class attribute for each of these that is not empty:

- `needs`: facts that it cannot do without;
- `uses`: facts that it can do without, but makes use of where they are known;
- `supplies`: facts that it gives to the parts inside it and next to it, such as a training that it guesses.

A stage's operator may also have a method `reads(observation)`: facts that it takes from the message itself, for all
parts of its stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from fedglass.core.facts import Fact, refusal
from fedglass.core.tensors import assign, squared_distances
from fedglass.core.types import Candidate, Film, Knowledge, Observation, Unknown, Whitening

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""A callback that is called now and then with the iterations that are done and their total number."""


def no_progress(done: int, total: int) -> None:
    """Ignore progress: the callback where nothing shows it."""


def discard_film(film: Film) -> None:
    """Ignore a film: the callback where nothing shows it."""


def unchanged(value: T) -> T:
    """Return the value itself: the nearest images where every image can be represented, for example."""
    return value


@dataclass(frozen=True, eq=False)
class Bound:
    """A set of unknowns and how to turn their tensors into images or labels."""

    unknowns: tuple[Unknown, ...]
    decode: Callable[[Sequence[Tensor]], Tensor]
    nearest: Callable[[Tensor], Tensor] = unchanged
    """Returns the images nearest to the given ones that `decode` can give.  # (epochs, n, c, h, w), whitened, both"""
    notes: tuple[str, ...] = ()
    """Notes for the reconstruction: what the audit must know about how the labels were recovered."""


class Labels(Protocol):
    """Labels from an observation, either at once or as unknowns to be optimised with the images."""

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound: ...


def check_labels(labels: Labels, observation: Observation, generator: torch.Generator) -> None:
    """Refuse what `bind` would refuse; labels with an expensive `bind` have a method `check(observation)` for it."""
    check = getattr(labels, "check", None)
    if check is None:
        labels.bind(observation, generator)
    else:
        check(observation)


def better_labels(labels: object, observation: Observation) -> str:
    """Return the registered name of a labels part that does better on this message; empty where none is known to.

    Labels that know one have a method `instead(observation)`.
    """
    instead = getattr(labels, "instead", None)
    name: str = "" if instead is None else instead(observation)
    return name


class Images(Protocol):
    """A representation of the images by unknowns."""

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        """Bind; `start`, where given, holds the previous stage's images, whitened.  # (epochs, n, c, h, w)"""
        ...


@runtime_checkable
class GeneratesImages(Protocol):
    """Images drawn by a network that has learned what images look like, and draws some without any message.

    An audit names what the network has learned from. It demands that each image beats those drawn without a message.
    """

    @property
    def learned_from(self) -> str:
        """The training data as text, such as `an autoencoder that was trained on 6000 images of mnist`."""
        ...

    def imagined(self, observation: Observation, count: int, generator: torch.Generator) -> Tensor:
        """Decode random codes; the message is not used.  # (count, c, h, w), pixels before whitening"""
        ...


@dataclass(frozen=True, eq=False)
class BoundForward:
    """The operator A on tensors: the message that a candidate would have caused, and the target, which was sent."""

    target: tuple[Tensor, ...]
    predict: Callable[[Candidate, Sequence[Tensor]], Sequence[Tensor]]
    names: tuple[str, ...]
    unknowns: tuple[Unknown, ...] = ()
    """Unknowns of the operator's own, such as SME's alpha."""
    batches: int = 1
    """How many local steps of one epoch the message sums up."""
    rounds: tuple[slice, ...] = ()
    """The tensors of each round, where several rounds are attacked together."""


class Forward(Protocol):
    """The operator A: predicts the message that a candidate would have caused."""

    def bind(self, observation: Observation) -> BoundForward: ...


@dataclass(frozen=True, eq=False)
class Binding:
    """Input of a term of the objective before the first iteration."""

    target: tuple[Tensor, ...]
    """The message in the operator's units; its device and type are those of the candidate's images."""
    names: tuple[str, ...]
    whitening: Whitening
    shape: tuple[int, int, int]
    """Channels, height and width of one image."""
    batches: int = 1
    """How many local steps of one epoch the message sums up."""


def binding_of(forward: BoundForward, knows: Knowledge) -> Binding:
    """Return the input of a stage's terms, from its operator."""
    return Binding(forward.target, forward.names, knows.whitening, knows.shape, forward.batches)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Input of a term of the objective at one iteration."""

    predicted: Sequence[Tensor]
    candidate: Candidate
    progress: float = 1.0
    """Share of the solver's iterations that are done, in [0, 1]."""


BoundTerm = Callable[[Evaluation], Tensor]
"""The scalar energy of a term at one iteration, differentiable in the candidate."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Input of a solver: the unknowns and their energy at a share of the way, nothing else."""

    unknowns: tuple[Unknown, ...]
    energy: Callable[[Sequence[Tensor], float], Tensor]


@dataclass(frozen=True, eq=False)
class Solution:
    """Output of a solver: the chosen iterate, its energy, and the energies on the way."""

    tensors: tuple[Tensor, ...]
    energy: float
    trace: Tensor
    finite: bool = True


class Solver(Protocol):
    """Moves the unknowns to lower the energy."""

    def minimise(self, problem: Problem, progress: Progress) -> Solution: ...


class Merge(Protocol):
    """Merges the images of each epoch into one image for each example."""

    def merge(self, images: Tensor) -> Tensor:
        """Merge images of pixels before whitening.  # (epochs, n, c, h, w) -> (n, c, h, w)"""
        ...


@dataclass(frozen=True, eq=False)
class Refinement:
    """Input of a refinement: the reconstructed images and the adversary's knowledge, but not the message."""

    images: Tensor  # (n, c, h, w), pixels before whitening
    labels: Tensor  # (n,)
    knows: Knowledge
    generator: torch.Generator
    progress: Progress = no_progress
    film: Callable[[Film], None] = discard_film
    """A callback for pictures of the way, where a refinement has some to show."""


class Refine(Protocol):
    """Improves images without the message."""

    def refine(self, refinement: Refinement) -> Tensor:
        """Return the improved images.  # (n, c, h, w), pixels before whitening"""
        ...


def check_refinement(part: Refine, refinement: Refinement) -> None:
    """Refuse what `refine` would refuse; a part that takes long has a method `check(knows)` for it."""
    check = getattr(part, "check", None)
    if check is None:
        part.refine(refinement)
    else:
        check(refinement.knows)


@runtime_checkable
class Learned(Protocol):
    """A refinement by a model that has learned what images look like, and so may invent what it shows.

    An audit compares its result with that of the same model for another image, and with that of an untrained model.
    """

    def refine(self, refinement: Refinement) -> Tensor: ...

    def untrained(self) -> Refine:
        """Return the same refinement with a model that has learned nothing."""
        ...


@dataclass(frozen=True)
class MatchAndAverage:
    """Match every epoch's images to those of the first epoch, then average [Dimitrov et al., 2022, Sec. 4.4].

    The matching minimises the mean log of the squared distances, i.e. maximises the mean PSNR, as in the
    paper's release. With a single epoch this changes nothing.
    """

    def merge(self, images: Tensor) -> Tensor:
        first = images[0]
        matched = [first]
        for later in images[1:]:
            partner = assign(torch.log(squared_distances(first, later) + 1e-12))
            matched.append(later[partner.to(later.device)])
        return torch.stack(matched).mean(0)


@dataclass(frozen=True)
class FirstEpoch:
    """Keeps the images of the first epoch."""

    def merge(self, images: Tensor) -> Tensor:
        return images[0]


NO_FACTS: frozenset[Fact] = frozenset()


def reads_of(part: object, observation: Observation) -> frozenset[Fact]:
    """Return the facts that a part takes from the message itself; none for a part that does not say."""
    reads = getattr(part, "reads", None)
    facts: frozenset[Fact] = NO_FACTS if reads is None else reads(observation)
    return facts


def needs_of(part: object) -> frozenset[Fact]:
    """Return the facts that a part and its inner parts need, without those that one of them supplies to another.

    >>> from fedglass.attack.labels.given import OracleLabels
    >>> needs_of((OracleLabels(), 3))
    frozenset({Fact.LABELS})
    """
    return frozenset(fact for fact, _ in _missing(part, NO_FACTS))


def uses_of(part: object) -> frozenset[Fact]:
    """Return the facts that a part or one of its inner parts makes use of without needing them."""
    return NO_FACTS.union(*(_declared(inner, "uses") for inner in parts_of(part)))


def supplies_of(part: object) -> frozenset[Fact]:
    """Return the facts that a part or one of its direct children supplies."""
    return _declared(part, "supplies").union(*(_declared(child, "supplies") for child in _inside(part)))


def check_needs(part: object, observation: Observation, supplied: frozenset[Fact] = NO_FACTS) -> None:
    """Refuse a part that needs a fact which the adversary does not have, and name the inner part that needs it."""
    missing = _missing(part, observation.facts | supplied, observation)
    if missing:
        fact, who = min(missing, key=lambda pair: list(Fact).index(pair[0]))
        raise refusal(who, [fact])


def parts_of(value: object) -> Iterator[object]:
    """Yield the value and everything that it is composed of."""
    yield value
    for child in _inside(value):
        yield from parts_of(child)


def _inside(value: object) -> tuple[object, ...]:
    if isinstance(value, tuple):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(getattr(value, field.name) for field in fields(value))
    return ()


def _missing(part: object, facts: frozenset[Fact], observation: Observation | None = None) -> list[tuple[Fact, str]]:
    """Return the missing facts, each with the name of the part that needs it; some may be read from an observation."""
    missing = [(fact, type(part).__name__) for fact in _declared(part, "needs") - facts]
    inside, children = list[tuple[Fact, str]](), _inside(part)
    for child in children:
        # A part supplies facts to those inside it and next to it.
        suppliers = (part, *(sibling for sibling in children if sibling is not child))
        inside += _missing(child, facts.union(*(_declared(s, "supplies") for s in suppliers)), observation)
    # The message is read only where something is missing.
    read = reads_of(part, observation) if inside and observation is not None else NO_FACTS
    return missing + [(fact, who) for fact, who in inside if fact not in read]


def _declared(part: object, attribute: str) -> frozenset[Fact]:
    declared: frozenset[Fact] = getattr(part, attribute, NO_FACTS)
    return declared
