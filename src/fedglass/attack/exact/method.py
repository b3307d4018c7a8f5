"""The role of an exact attack: it solves equations of the message instead of searching, so it needs no solver."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fedglass.core.types import Observation

T = TypeVar("T")


def once(read: Callable[[Observation], T]) -> Callable[[Observation], T]:
    """Return a function that remembers what it read of an observation for as long as the observation lives."""
    known: WeakKeyDictionary[Observation, T] = WeakKeyDictionary()

    @functools.wraps(read)
    def remembered(observation: Observation) -> T:
        if observation not in known:
            known[observation] = read(observation)
        return known[observation]

    return remembered


@dataclass(frozen=True, eq=False)
class Solved:
    """What an exact method read from a message."""

    images: Tensor  # (n, c, h, w), pixels before whitening; n may be smaller than the number of examples
    labels: Tensor  # (n,); -1 where the method cannot tell
    residual: float
    """Relative size of what the images leave unexplained of the message (or of the first layer's update)."""
    explains: bool
    """Whether the images were verified: by a replay, or by an explanation of a whole layer at rounding level."""
    details: dict[str, float | int | str] = field(default_factory=dict)
    """Figures for the record, such as the rank, the number of rows that agree, or the seconds of the search."""


@dataclass(frozen=True, eq=False)
class Search:
    """What a method may use beside the observation."""

    generator: torch.Generator
    seconds: float = 30.0
    """Time limit of a search, such as SPEAR's."""


class ExactMethod(Protocol):
    """One closed-form method. A frozen dataclass that holds no tensor."""

    @property
    def name(self) -> str:
        """The method's name in records, such as `division`."""
        ...

    @property
    def paper(self) -> str:
        """The citation that `fedglass list attacks` prints."""
        ...

    @property
    def cost(self) -> float:
        """Seconds that it takes about where it applies: cheap methods are tried first."""
        ...

    def applies(self, observation: Observation) -> str:
        """Return why the method does not apply to this network and knowledge; empty where it does."""
        ...

    def solve(self, observation: Observation, search: Search) -> Solved | None:
        """Return what the method reads from the message; None where it finds nothing."""
        ...
