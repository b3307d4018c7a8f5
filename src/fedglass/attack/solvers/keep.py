"""Which iterate a solver returns: the last one, or the one of lowest energy. Never one chosen by the truth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Keeper(Protocol):
    """Sees every iterate with its energy, and chooses at the end."""

    def offer(self, energy: Tensor, tensors: Sequence[Tensor]) -> None: ...

    def choose(self, energy: Tensor, tensors: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tensor]: ...


class Keep(Protocol):
    """The rule; `start` makes the state for one run."""

    def start(self, tensors: Sequence[Tensor]) -> Keeper: ...


@dataclass(frozen=True)
class Last:
    """The last (finite) iterate."""

    def start(self, tensors: Sequence[Tensor]) -> Keeper:
        return _KeepLast()


@dataclass(frozen=True)
class Lowest:
    """The iterate of lowest energy; compared on the device, without waiting for it."""

    def start(self, tensors: Sequence[Tensor]) -> Keeper:
        return _KeepLowest(tensors)


class _KeepLast:
    def offer(self, energy: Tensor, tensors: Sequence[Tensor]) -> None:
        pass

    def choose(self, energy: Tensor, tensors: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tensor]:
        return tuple(t.detach() for t in tensors), energy


class _KeepLowest:
    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.best = [t.detach().clone() for t in tensors]
        self.energy = torch.full((), math.inf, device=tensors[0].device, dtype=tensors[0].dtype)

    def offer(self, energy: Tensor, tensors: Sequence[Tensor]) -> None:
        lower = (energy < self.energy) & torch.isfinite(energy)
        self.energy = torch.where(lower, energy.detach(), self.energy)
        for kept, tensor in zip(self.best, tensors, strict=True):
            torch.where(lower, tensor.detach(), kept, out=kept)

    def choose(self, energy: Tensor, tensors: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tensor]:
        return tuple(self.best), self.energy
