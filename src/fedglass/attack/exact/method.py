"""Exact methods: they solve equations of the message instead of searching, so they need no solver."""

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
Details = dict[str, float | int | str]
"""Figures for the record, such as the rank, the number of rows that agree, or the seconds of the search."""


def once(read: Callable[[Observation], T]) -> Callable[[Observation], T]:
    """Return the function with a cache of its results, which lasts as long as the observation lives."""
    results: WeakKeyDictionary[Observation, T] = WeakKeyDictionary()

    @functools.wraps(read)
    def remembered(observation: Observation) -> T:
        if observation not in results:
            results[observation] = read(observation)
        return results[observation]

    return remembered


@dataclass(frozen=True, eq=False)
class ExactSolution:
    """The images that an exact method read from a message."""

    images: Tensor  # (n, c, h, w), pixels before whitening; n may be smaller than the number of examples
    labels: Tensor  # (n,); -1 where the method cannot tell
    residual: float
    """Relative size of the part of the message (or of the first layer's update) that the images do not explain."""
    explains: bool
    """True if the images were verified: by a replay, or by an explanation of a whole layer at rounding level."""
    details: Details = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SearchBudget:
    """The random numbers and the time that a method may use."""

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
        """About how many seconds the method takes if it applies: cheap methods are tried first."""
        ...

    def applies(self, observation: Observation) -> str:
        """Return why the method does not apply to this network and knowledge; empty if it applies."""
        ...

    def solve(self, observation: Observation, search: SearchBudget) -> ExactSolution | None:
        """Return the images that the method reads from the message; None if it finds nothing."""
        ...
