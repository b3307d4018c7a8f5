"""Canaries: random directions that a fair coin includes in what a private mechanism protects.

An auditor knows directions and coins, looks at the result, and guesses the coins: how often that succeeds bounds
epsilon from below, in one run [Andrew et al., 2023; Steinke et al., 2023]. Each canary has entries of its own, drawn at
random, so that any two are orthogonal and all together take no more memory than the model.

In DP-SGD a canary is an example that has only a gradient, longer than the clip: the mechanism clips it as any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.fl.local import GradientFn, Step

LENGTH = 10.0
"""The length of a canary, in units of the clip: a clipping that is missing shows too."""
UNCLIPPED_LENGTH = 1000.0
"""The length of a canary where no clip is known."""
CHUNK_ENTRIES = 2**23
"""Entries of canaries' gradients that are held at once."""


@dataclass(frozen=True)
class Canaries:
    """Directions and coins of so many canaries, which follow from a seed.

    >>> canaries = Canaries(seed=1, count=3)
    >>> like = {"w": torch.zeros(4, 2), "steps": torch.tensor(7)}
    >>> [round(float(score), 4) for score in canaries.scores(canaries.total(like, torch.ones(3)))]
    [1.0, 1.0, 1.0]
    """

    seed: int
    count: int

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise UsageError(f"The number of canaries must be a whole number of at least 1, got {self.count!r}.")

    def check(self, entries: int) -> None:
        """Refuse a model with fewer entries than canaries."""
        if entries < self.count:
            raise UsageError(
                f"{self.count:,} canaries need as many weights, and the model has {entries:,}: take fewer canaries."
            )

    def coins(self) -> Tensor:
        """Return whether each canary is included.  # (count,)"""
        return torch.rand(self.count, generator=stream(self.seed, "coins")) < 0.5

    def total(self, like: Mapping[str, Tensor], lengths: Tensor) -> dict[str, Tensor]:
        """Return the sum of all canaries of these lengths, in the shapes of a model.  # lengths (count,)"""
        owner, pattern = self._pattern(like)
        return _shaped(pattern * lengths.float()[owner], like)

    def scores(self, update: Mapping[str, Tensor]) -> Tensor:
        """Return the inner product of an update with each canary's unit direction.  # (count,)"""
        owner, pattern = self._pattern(update)
        entries = torch.cat([update[name].detach().double().cpu().reshape(-1) for name in _floating(update)])
        return torch.zeros(self.count, dtype=torch.float64).index_add_(0, owner, entries * pattern)

    def chunks(self, like: Mapping[str, Tensor], rows: Sequence[int], length: float) -> Iterator[dict[str, Tensor]]:
        """Yield these canaries one by one, stacked in chunks.  # (chunk, *shape) each"""
        owner, pattern = self._pattern(like)
        size = max(1, CHUNK_ENTRIES // len(pattern))
        for first in range(0, len(rows), size):
            block = torch.tensor(rows[first : first + size])
            entries = torch.where(owner[None] == block[:, None], pattern * length, 0.0)  # (chunk, d)
            yield _shaped(entries, like)

    def _pattern(self, like: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return, for each entry of a model, the canary that it belongs to and its value in the unit direction."""
        entries = sum(like[name].numel() for name in _floating(like))
        self.check(entries)
        return _pattern(self.seed, self.count, entries)


@lru_cache(maxsize=2)
def _pattern(seed: int, count: int, entries: int) -> tuple[Tensor, Tensor]:
    owner = torch.empty(entries, dtype=torch.int64)
    owner[torch.randperm(entries, generator=stream(seed, "entries"))] = torch.arange(entries) % count
    values = torch.randn(entries, generator=stream(seed, "directions"))
    squares = torch.zeros(count).index_add_(0, owner, values.square())
    return owner, values / squares.sqrt()[owner]


def _floating(like: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that are no counters, in an order that does not depend on that of the model."""
    return sorted(name for name, tensor in like.items() if tensor.is_floating_point())


def _shaped(entries: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return entries in the shapes and types of a model; what is no float is 0.  # (..., d)"""
    names, ahead = _floating(like), entries.shape[:-1]
    pieces = torch.split(entries, [like[name].numel() for name in names], dim=-1)
    tensors = {name: piece.reshape((*ahead, *like[name].shape)) for name, piece in zip(names, pieces, strict=True)}
    return {
        name: tensors[name].to(tensor) if name in tensors else tensor.new_zeros((*ahead, *tensor.shape))
        for name, tensor in like.items()
    }


@dataclass(eq=False)
class CanaryExamples:
    """Canaries among the examples of a local step."""

    canaries: Canaries
    rows: Sequence[int]
    length: float
    uses: list[bool] = field(default_factory=list)
    """Not empty once a mechanism has taken them."""

    def sampled(self, rate: float, generator: torch.Generator) -> CanaryExamples:
        """Return a Poisson sample of them."""
        self.uses.append(True)
        drawn = torch.rand(len(self.rows), generator=generator, device=generator.device) < rate
        return replace(self, rows=[row for row, taken in zip(self.rows, drawn.tolist(), strict=True) if taken])

    def gradients(self, step: Step) -> Iterator[list[Tensor]]:
        """Yield their gradients as those of examples, in the order of the step's weights."""
        self.uses.append(True)
        names = step.network.names
        like = {name: weight.detach() for name, weight in zip(names, step.weights, strict=True)}
        for chunk in self.canaries.chunks(like, self.rows, self.length):
            yield [chunk[name] for name in names]


@dataclass(frozen=True)
class WithCanaries:
    """A gradient function of DP-SGD on examples and canaries: each canary is in one batch of every epoch.

    The sum is divided by the number of examples alone, which tells nothing of the coins.
    """

    rule: GradientFn
    canaries: Canaries
    length: float
    batches: int = 1
    """Batches of an epoch."""

    def gradient(self, step: Step) -> Sequence[Tensor]:
        included = self.canaries.coins().nonzero()[:, 0].tolist()
        rows = [row for row in included if row % self.batches == step.place]
        examples = CanaryExamples(self.canaries, rows, self.length)
        gradient = self.rule.gradient(replace(step, canaries=examples))
        if not examples.uses:
            raise UsageError(
                f"{self.rule!r} does not use the gradients of single examples (example_gradients), so that canaries "
                "cannot be inserted."
            )
        return gradient
