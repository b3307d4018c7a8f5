"""The values that flow from a federation to a verdict; all frozen."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.params import Params, Update


class BatchNorm(enum.Enum):
    """Which statistics the normalisation layers of a client use while it trains."""

    FROZEN = "frozen"
    BATCH = "batch"

    def __repr__(self) -> str:
        return f"BatchNorm.{self.name}"


@dataclass(frozen=True)
class Training:
    """A client's local training: plain SGD on mean cross entropy, batches re-shuffled each epoch.

    `batch_size=None` takes all examples at once; with one epoch that is FedSGD.

    >>> Training(lr=0.1).steps(examples=50), Training(lr=0.1, epochs=2, batch_size=20).steps(50)
    (1, 6)
    """

    lr: float
    epochs: int = 1
    batch_size: int | None = None
    batch_norm: BatchNorm = BatchNorm.FROZEN

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise UsageError(f"training.lr must be positive and finite, got {self.lr}.")
        for name, count in (("epochs", self.epochs), ("batch_size", self.batch_size)):
            if count is not None and not isinstance(count, int):
                raise UsageError(f"training.{name} must be a whole number, got {count!r}.")
        if self.epochs < 1:
            raise UsageError(f"training.epochs must be at least 1, got {self.epochs}.")
        if self.batch_size is not None and self.batch_size < 1:
            raise UsageError(
                f"training.batch_size must be at least 1, got {self.batch_size}; leave it out to take all "
                "examples at once."
            )

    def batches(self, examples: int) -> list[slice]:
        """The slices of one (already shuffled) epoch; the last one may be short."""
        size = examples if self.batch_size is None else self.batch_size
        return [slice(i, min(i + size, examples)) for i in range(0, examples, size)]

    def steps(self, examples: int) -> int:
        """T = E * ceil(N / B)."""
        return self.epochs * len(self.batches(examples))


@dataclass(frozen=True)
class Whitening:
    """Channel means and deviations between pixels in [0, 1] and what the network is fed.

    >>> Whitening((0.5,), (0.25,)).whiten(torch.ones(1, 1, 1, 1)).item()
    2.0
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(s > 0 for s in self.std):
            raise UsageError(
                f"whitening needs as many positive deviations as means, got mean={self.mean}, std={self.std}."
            )

    def whiten(self, pixels: Tensor) -> Tensor:
        return (pixels - self._column(self.mean, pixels)) / self._column(self.std, pixels)

    def unwhiten(self, inputs: Tensor) -> Tensor:
        return inputs * self._column(self.std, inputs) + self._column(self.mean, inputs)

    @staticmethod
    def _column(values: tuple[float, ...], like: Tensor) -> Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device).view(-1, 1, 1)


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What the adversary knows beside the message. `None` means unknown; every fact is printed."""

    shape: tuple[int, int, int]
    """Channels, height and width of one input."""
    classes: int
    examples: int
    """How many examples stand behind the message (all clients together for an aggregate)."""
    whitening: Whitening
    low: float = 0.0
    high: float = 1.0
    """Pixel bounds before whitening."""
    training: Training | None = None
    steps: int | None = None
    """Number of local steps, where it is known without the epochs and the batch size."""
    lr: float | None = None
    """The clients' learning rate, where it is known without the epochs and the batch size."""
    clients: int = 1
    """How many clients' updates are combined in the message."""
    sizes: tuple[int, ...] | None = None
    """How many examples each of these clients has, where that is known."""
    labels: Tensor | None = None
    """ORACLE: the true labels, in no particular order.  # (n,)"""
    batch_labels: tuple[tuple[int, ...], ...] | None = None
    """ORACLE: the true labels of each local batch, one tuple per local step."""

    @property
    def facts(self) -> frozenset[Fact]:
        """What is known, by name: what the parts of an attack need is compared with it."""
        training = self.training is not None
        sizes = self.sizes or (1, 1 + self.examples % self.clients)
        known = {
            Fact.TRAINING: training,
            Fact.STEPS: training or self.steps is not None,
            Fact.LR: training or self.lr is not None,
            Fact.SIZE: training or (self.steps is not None and self.lr is not None),
            Fact.EQUAL_CLIENTS: len(set(sizes)) == 1,
            Fact.LABELS: self.labels is not None,
            Fact.BATCH_LABELS: training and self.batch_labels is not None,
        }
        return frozenset(fact for fact, is_known in known.items() if is_known)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """The pixel bounds in whitened coordinates.  # (c, 1, 1) each"""
        low, high = (torch.full((self.shape[0], 1, 1), v) for v in (self.low, self.high))
        return self.whitening.whiten(low), self.whitening.whiten(high)


@dataclass(frozen=True, eq=False)
class Own:
    """What an adversary that takes part in the round has put into the message itself."""

    images: Tensor  # (n, c, h, w), pixels before whitening
    labels: Tensor  # (n,)
    update: Update


@dataclass(frozen=True, eq=False)
class Observation:
    """All that an attack is given."""

    model: nn.Module
    """The architecture; its own weights mean nothing, `before` and `buffers` count."""
    before: Params
    buffers: Params
    update: Update
    knows: Knowledge
    own: Own | None = None
    """What the adversary contributed itself, where it is a participant."""

    @property
    def facts(self) -> frozenset[Fact]:
        """What is known beside the message, the adversary's own contribution included."""
        return self.knows.facts | (frozenset() if self.own is None else frozenset({Fact.OWN}))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A hypothesis about the client's data, in whitened coordinates."""

    images: Tensor  # (epochs, n, c, h, w); epochs is 1 where all epochs share their images
    labels: Tensor  # (n,) class indices, (n, classes) probabilities, or (epochs, n) indices in each epoch's order


@dataclass(frozen=True, eq=False)
class Unknown:
    """A tensor that a solver may move: where it starts, its box, and its rate relative to the solver's.

    A first-order solver computes its gradient at every `every`-th iteration and uses it until the next one:
    for an unknown that moves slowly and is dear to differentiate.
    """

    start: Tensor
    low: Tensor | None = None
    high: Tensor | None = None
    rate: float = 1.0
    every: int = 1
    name: str = ""
    """An operator's own unknown has one, under which a reconstruction tells where it ended."""


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """What an attack returns."""

    images: Tensor  # (n, c, h, w), pixels before whitening
    labels: Tensor  # (n,)
    energy: float
    """How badly the images explain the message before they were refined; the lower the better."""
    trace: tuple[float, ...] = ()
    """Energies of the chosen restart, thinned."""
    notes: tuple[str, ...] = ()
    """Things the audit must know, such as `non-finite`."""
    unknowns: Mapping[str, Tensor] = field(default_factory=dict)
    """Where the operator's own unknowns ended, such as SME's alpha."""
    supposed: Training | None = None
    """The clients' training that the attack found to fit, where it had to guess."""
    raw: Tensor | None = None
    """The images before they were refined; None where nothing was.  # (n, c, h, w)"""
    energy_refined: float | None = None
    """That of the refined images: one that no longer explains the message is imagination."""
