"""Which iterate a solver returns: the last one, or the one of lowest energy. Never one chosen by the truth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedglass.core.errors import UsageError


class Keeper(Protocol):
    """Sees every iterate with its energy, and chooses at the end."""

    def offer(self, energy: Tensor, tensors: Sequence[Tensor]) -> None: ...

    def choose(self, energy: Tensor, tensors: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tensor]: ...


class Keep(Protocol):
    """The rule; `start` makes the state for one run, which offers that many iterates and the final one."""

    def start(self, tensors: Sequence[Tensor], iterations: int) -> Keeper: ...


@dataclass(frozen=True)
class Last:
    """The last (finite) iterate."""

    def start(self, tensors: Sequence[Tensor], iterations: int) -> Keeper:
        return _KeepLast()


@dataclass(frozen=True)
class Lowest:
    """The iterate of lowest energy; compared on the device, without waiting for it."""

    def start(self, tensors: Sequence[Tensor], iterations: int) -> Keeper:
        return _KeepLowest(tensors)


@dataclass(frozen=True)
class LowestFrom:
    """The iterate of lowest energy among those from the given share of the way on.

    For an objective that gains a term on its way (`After`): an earlier iterate's energy lacks that term, and would
    win for that alone. The final iterate is always among those compared.
    """

    share: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise UsageError(f"keep.share must be between 0 and 1, got {self.share:g}.")

    def start(self, tensors: Sequence[Tensor], iterations: int) -> Keeper:
        # The k-th of n iterates has the progress k / n, computed as the solver does: no rounding moves the border.
        skip = sum(k / iterations < self.share for k in range(iterations))
        return _Skipping(skip, _KeepLowest(tensors))


class _KeepLast:
    def offer(self, energy: Tensor, tensors: Sequence[Tensor]) -> None:
        pass

    def choose(self, energy: Tensor, tensors: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tensor]:
        return tuple(t.detach() for t in tensors), energy


class _Skipping:
    """Withholds the first few offers."""

    def __init__(self, skip: int, keeper: Keeper) -> None:
        self.left = skip
        self.keeper = keeper

    def offer(self, energy: Tensor, tensors: Sequence[Tensor]) -> None:
        if self.left > 0:
            self.left -= 1
        else:
            self.keeper.offer(energy, tensors)

    def choose(self, energy: Tensor, tensors: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tensor]:
        return self.keeper.choose(energy, tensors)


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
