"""The roles that an attack is composed of, as protocols of one or two methods.

A *spec* (a frozen dataclass such as `Cosine()` or `Pixels()`) holds no tensor. Binding a spec to an
observation gives closures over tensors, which is all that the hot loop sees.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from fedglass.core.tensors import assign, squared_distances
from fedglass.core.types import Candidate, Film, Knowledge, Observation, Unknown, Whitening

Progress = Callable[[int, int], None]
"""Told now and then how many iterations are done, and of how many."""


def no_progress(done: int, total: int) -> None:
    """The progress callback that does nothing."""


def discard_film(film: Film) -> None:
    """The callback for films that nobody looks at."""


def unchanged(images: Tensor) -> Tensor:
    """The images themselves, which are the nearest where every image can be represented."""
    return images


@dataclass(frozen=True, eq=False)
class Bound:
    """A set of unknowns and how to turn their tensors into images or labels."""

    unknowns: tuple[Unknown, ...]
    decode: Callable[[Sequence[Tensor]], Tensor]
    nearest: Callable[[Tensor], Tensor] = unchanged
    """Of images: those next to the given ones that `decode` can give.  # (epochs, n, c, h, w), whitened, both"""
    notes: tuple[str, ...] = ()
    """Things the audit must know of how they were found, for the reconstruction's own."""


class Labels(Protocol):
    """Observation -> labels, either at once or as unknowns to be optimised with the images."""

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound: ...


@runtime_checkable
class HasLabelCheck(Protocol):
    """Labels whose `bind` is work: they can also say beforehand what it would refuse."""

    def check(self, observation: Observation) -> None: ...


@runtime_checkable
class HasBetterLabels(Protocol):
    """Labels that know for which messages another labels part does better."""

    def instead(self, observation: Observation) -> str:
        """Return the registered name of the better labels part; empty where there is none."""
        ...


def better_labels(labels: object, observation: Observation) -> str:
    """Return the name of a labels part that does better on this message; empty where none is known to."""
    return labels.instead(observation) if isinstance(labels, HasBetterLabels) else ""


class Images(Protocol):
    """How the images are written as unknowns."""

    def bind(self, observation: Observation, generator: torch.Generator, start: Tensor | None) -> Bound:
        """`start`, where given, are the previous stage's images, whitened.  # (epochs, n, c, h, w)"""
        ...


@runtime_checkable
class GeneratesImages(Protocol):
    """Images drawn by a network that has learned what images look like, and so draws some without any message.

    An audit names what it has learned from, and demands of each image that it beats what is drawn of nothing.
    """

    @property
    def learned_from(self) -> str:
        """In words, such as `an autoencoder that was trained on 6000 images of mnist`."""
        ...

    def imagined(self, observation: Observation, count: int, generator: torch.Generator) -> Tensor:
        """What random codes decode to; the message is not looked at.  # (count, c, h, w), pixels before whitening"""
        ...


@dataclass(frozen=True, eq=False)
class BoundForward:
    """The operator A on tensors: what the candidate would have sent, beside what was sent."""

    target: tuple[Tensor, ...]
    predict: Callable[[Candidate, Sequence[Tensor]], Sequence[Tensor]]
    names: tuple[str, ...]
    unknowns: tuple[Unknown, ...] = ()
    """Unknowns of the operator's own, such as SME's alpha."""
    batches: int = 1
    """How many local steps of one epoch the message sums up."""


class Forward(Protocol):
    """The operator A: what message would a candidate have caused?"""

    def bind(self, observation: Observation) -> BoundForward: ...


@dataclass(frozen=True, eq=False)
class Binding:
    """All that a term of the objective is told before the first iteration."""

    target: tuple[Tensor, ...]
    """The message in the operator's units; its device and type are those of the candidate's images."""
    names: tuple[str, ...]
    whitening: Whitening
    shape: tuple[int, int, int]
    """Channels, height and width of one image."""
    batches: int = 1
    """How many local steps of one epoch the message sums up."""


def binding_of(forward: BoundForward, knows: Knowledge) -> Binding:
    """What the terms of a stage are told of its operator."""
    return Binding(forward.target, forward.names, knows.whitening, knows.shape, forward.batches)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """All that a term of the objective is told at one iteration."""

    predicted: Sequence[Tensor]
    candidate: Candidate
    progress: float = 1.0
    """Share of the solver's iterations that are done, in [0, 1]."""


BoundTerm = Callable[[Evaluation], Tensor]
"""The scalar energy of a term at one iteration, differentiable in the candidate."""


@dataclass(frozen=True, eq=False)
class Problem:
    """What a solver sees: unknowns and their energy at a share of the way, nothing else."""

    unknowns: tuple[Unknown, ...]
    energy: Callable[[Sequence[Tensor], float], Tensor]


@dataclass(frozen=True, eq=False)
class Solution:
    """What a solver returns: the chosen iterate, its energy, and the energies on the way."""

    tensors: tuple[Tensor, ...]
    energy: float
    trace: Tensor
    finite: bool = True


class Solver(Protocol):
    """Moves the unknowns to lower the energy."""

    def minimise(self, problem: Problem, progress: Progress) -> Solution: ...


T = TypeVar("T")
PausableRun = Generator[tuple[float, float | Tensor], None, T]
"""A run that pauses after each iteration: the share of its way that is done, and the last energy. At its end, T."""


@runtime_checkable
class PausableSolver(Protocol):
    """A solver whose run can be paused, and so be given up for another one that promises more."""

    def steps(self, problem: Problem, progress: Progress) -> PausableRun[Solution]: ...


def run_to_end(steps: PausableRun[T]) -> T:
    """What a run comes to without any pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


class Merge(Protocol):
    """One image for each example out of one for each example and epoch."""

    def merge(self, images: Tensor) -> Tensor:
        """(epochs, n, c, h, w) -> (n, c, h, w), pixels before whitening."""
        ...


@dataclass(frozen=True, eq=False)
class Refinement:
    """All that a refinement is told: what was found and what is known beside the message, but not the message."""

    images: Tensor  # (n, c, h, w), pixels before whitening
    labels: Tensor  # (n,)
    knows: Knowledge
    generator: torch.Generator
    progress: Progress = no_progress
    film: Callable[[Film], None] = discard_film
    """Given pictures of the way, where a refinement has some to show."""


class Refine(Protocol):
    """Images -> better images, without the message."""

    def refine(self, given: Refinement) -> Tensor:
        """The images made better.  # (n, c, h, w), pixels before whitening"""
        ...


@runtime_checkable
class HasPrecheck(Protocol):
    """A refinement whose work takes long: it can also say beforehand what it would refuse."""

    def check(self, knows: Knowledge) -> None: ...


@runtime_checkable
class Learned(Protocol):
    """A refinement by a model that has learned what images look like, and so may make up what it shows.

    An audit compares what it shows with what the same model shows of another image, and with what it shows untrained.
    """

    def refine(self, given: Refinement) -> Tensor: ...

    def untrained(self) -> Refine:
        """The same with a model that has learned nothing."""
        ...


# One image for each example out of one for each example and epoch.


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
    """The images of the first epoch."""

    def merge(self, images: Tensor) -> Tensor:
        return images[0]
