"""The values that flow from a federation to a verdict; all frozen."""

from __future__ import annotations

import copy
import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.identity import LATER
from fedglass.core.losses import Loss, TargetKind, target_kind
from fedglass.core.optimisers import SGD, Optimiser
from fedglass.core.tensors import Params, Update, moved_statistics


class BatchNorm(enum.Enum):
    """Statistics that the normalisation layers of a client use while it trains."""

    FROZEN = "frozen"
    BATCH = "batch"

    def __repr__(self) -> str:
        return f"BatchNorm.{self.name}"


PLAIN = SGD()


@dataclass(frozen=True)
class Training:
    """A client's local training: mean cross entropy, SGD and batches re-shuffled each epoch, unless it says otherwise.

    `batch_size=None` takes all examples at once; with one epoch that is FedSGD.

    >>> Training(lr=0.1).local_steps(examples=50), Training(lr=0.1, epochs=2, batch_size=20).local_steps(50)
    (1, 6)
    """

    lr: float
    epochs: int = 1
    batch_size: int | None = None
    batch_norm: BatchNorm = BatchNorm.FROZEN
    optimiser: Optimiser = PLAIN
    shuffle: bool = True
    """Without it the batches are taken in file order, the same in each epoch."""
    steps: int | None = None
    """Local steps in place of epochs: as many epochs as are needed are begun, and the last one is cut short."""
    clip: float | None = None
    """The norm over all parameters at which each local step's gradient is clipped."""
    label_smoothing: float = 0.0
    """The share of each label that is spread over all classes by the mean cross entropy."""
    loss: Loss | None = field(default=None, metadata=LATER)
    """The loss, if it is not the mean cross entropy."""

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise UsageError(f"training.lr must be positive and finite, got {self.lr}.")
        self._check_counts()
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise UsageError(
                f"training.clip must be positive and finite, got {self.clip}; leave it out to clip nothing."
            )
        if not 0 <= self.label_smoothing < 1:
            raise UsageError(f"training.label_smoothing must be at least 0 and below 1, got {self.label_smoothing}.")
        if self.loss is not None and self.label_smoothing:
            raise UsageError(
                f"training.label_smoothing belongs to the mean cross entropy, but training.loss is {self.loss!r}: "
                "leave one of them out, or give the smoothing as an option of the loss."
            )

    def _check_counts(self) -> None:
        for name, count in (("epochs", self.epochs), ("batch_size", self.batch_size), ("steps", self.steps)):
            if count is not None and not isinstance(count, int):
                raise UsageError(f"training.{name} must be a whole number, got {count!r}.")
        if self.epochs < 1:
            raise UsageError(f"training.epochs must be at least 1, got {self.epochs}.")
        if self.batch_size is not None and self.batch_size < 1:
            raise UsageError(
                f"training.batch_size must be at least 1, got {self.batch_size}; leave it out to take all "
                "examples at once."
            )
        if self.steps is not None and self.steps < 1:
            raise UsageError(f"training.steps must be at least 1, got {self.steps}; leave it out to count in epochs.")
        if self.steps is not None and self.epochs > 1:
            raise UsageError(
                f"training.steps takes the place of training.epochs, got steps={self.steps} and "
                f"epochs={self.epochs}: leave one of them out."
            )

    def __repr__(self) -> str:
        """Return the training as records name it; what plain SGD does not have is printed only where it is set."""
        printed = [f for f in fields(self) if f.name in _ALWAYS_TOLD or getattr(self, f.name) != f.default]
        return f"Training({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in printed)})"

    def batches(self, examples: int) -> list[slice]:
        """The slices of one (already shuffled) epoch; the last one may be short."""
        size = examples if self.batch_size is None else self.batch_size
        return [slice(i, min(i + size, examples)) for i in range(0, examples, size)]

    def local_steps(self, examples: int) -> int:
        """T = E * ceil(N / B), or as many as `steps` says."""
        return self.epochs * -(-examples // (self.batch_size or examples)) if self.steps is None else self.steps

    def taken(self, examples: int) -> int:
        """Return how many of the examples are trained on: not all, where the steps end within the first epoch.

        >>> Training(lr=0.1, batch_size=20, steps=2).taken(50), Training(lr=0.1).taken(50)
        (40, 50)
        """
        size = examples if self.batch_size is None else self.batch_size
        return min(examples, size * self.local_steps(examples))

    def passes(self, examples: int) -> int:
        """Return how many epochs are begun.

        >>> Training(lr=0.1, batch_size=20, steps=7).passes(examples=50)
        3
        """
        return self.epochs if self.steps is None else math.ceil(self.steps / len(self.batches(examples)))


_ALWAYS_TOLD = ("lr", "epochs", "batch_size", "batch_norm")


@dataclass(frozen=True)
class Whitening:
    """Channel means and deviations between pixels in [0, 1] and what the network is fed.

    >>> Whitening((0.5,), (0.25,)).whiten(torch.ones(1, 1, 1, 1)).item()
    2.0
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        finite = all(map(math.isfinite, (*self.mean, *self.std)))
        if len(self.mean) != len(self.std) or not finite or not all(s > 0 for s in self.std):
            raise UsageError(
                f"whitening needs as many positive deviations as means, all finite, got mean={self.mean}, "
                f"std={self.std}."
            )

    def whiten(self, pixels: Tensor) -> Tensor:
        return (pixels - self._column(self.mean, pixels)) / self._column(self.std, pixels)

    def unwhiten(self, inputs: Tensor) -> Tensor:
        return inputs * self._column(self.std, inputs) + self._column(self.mean, inputs)

    @staticmethod
    def _column(values: tuple[float, ...], like: Tensor) -> Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device).view(-1, 1, 1)


MOST_LOCAL_STEPS = 100_000
"""Local steps of a client in a round that can be run again; recorded trainings of more count as unknown."""
MOST_PIXELS = 2**28
"""Of all images behind one message together: a gibibyte as floats."""


@runtime_checkable
class Filter(Protocol):
    """A change of an update that leaves limits for every entry of the update before it, such as clipping entries."""

    def limits(self, low: Update, high: Update) -> tuple[Update, Update]:
        """Return the lowest and the highest entries that may have become ones between `low` and `high`."""
        ...


@dataclass(frozen=True, eq=False)
class Knowledge:
    """The adversary's knowledge in addition to the message. `None` means unknown; every fact is printed."""

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
    """The clients' learning rate, where it is known without the epochs and the batch size: of plain SGD, supposedly."""
    clients: int = 1
    """How many clients' updates are combined in the message."""
    sizes: tuple[int, ...] | None = None
    """How many examples each of these clients has, where that is known."""
    labels: Tensor | None = None
    """ORACLE: the true labels, in no particular order.  # (n,)"""
    batch_labels: tuple[tuple[int, ...], ...] | None = None
    """ORACLE: the true labels of each local batch, one tuple per local step."""
    counted: bool = True
    """Whether `examples` is the number behind the message; if not, only the least that it can be."""
    present: tuple[int, ...] | None = None
    """How many examples each of the round's clients has, a participant's own last, where it is not known whose updates
    got through the rule: `labels` are then those of all of them, client by client."""
    loss: Loss | None = None
    """The clients' loss, if it is not the mean cross entropy and their training is not known."""
    filter: Filter | None = None
    """The filter that the only client behind the message is declared to have applied to its update."""

    @property
    def objective(self) -> Loss | None:
        """The clients' loss; None for the mean cross entropy, also where nothing is known of it."""
        return self.loss if self.training is None else self.training.loss

    @property
    def facts(self) -> frozenset[Fact]:
        """Return the facts that are known; they are compared with those that the parts of an attack need."""
        training = self.training is not None
        sizes = self.sizes or (1, 1 + self.examples % self.clients)
        is_known_by_fact = {
            Fact.TRAINING: training,
            Fact.STEPS: training or self.steps is not None,
            Fact.LR: training or self.lr is not None,
            Fact.SIZE: self.travel is not None,
            Fact.EQUAL_CLIENTS: len(set(sizes)) == 1,
            Fact.CLIENT_SIZES: len(set(sizes)) == 1 or self.sizes is not None,
            Fact.LABELS: self.labels is not None,
            Fact.EYE: True,  # whoever chooses by eye has looked
            Fact.BATCH_LABELS: training and self.batch_labels is not None,
            Fact.EXAMPLES: self.counted,
            Fact.LOSS: target_kind(self.objective) is not TargetKind.UNKNOWN,
            Fact.GROUPS: self.labels is not None and self.sizes is not None,
        }
        return frozenset(fact for fact, is_known in is_known_by_fact.items() if is_known)

    @property
    def local_steps(self) -> int | None:
        """T, the number of each client's local steps, where it is known."""
        return self.steps if self.training is None else self.training.local_steps(max(1, self.examples // self.clients))

    @property
    def travel(self) -> float | None:
        """Return how far a client's weights go along a constant gradient of size 1: lr T under plain SGD.

        None where the training is not known, or where the distance depends on more than that gradient.
        """
        lr, steps = self.lr if self.training is None else self.training.lr, self.local_steps
        optimiser = PLAIN if self.training is None else self.training.optimiser
        return None if lr is None or steps is None else optimiser.travel(lr, steps)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """The pixel bounds in whitened coordinates.  # (c, 1, 1) each"""
        low, high = (torch.full((self.shape[0], 1, 1), v) for v in (self.low, self.high))
        return self.whitening.whiten(low), self.whitening.whiten(high)


@dataclass(frozen=True, eq=False)
class Own:
    """The contribution of the adversary itself to the message, where it takes part in the round."""

    images: Tensor  # (n, c, h, w), pixels before whitening
    labels: Tensor  # (n,)
    update: Update
    share: float | None = None
    """What the update weighs in the message: 0 where it did not get through, None where that is not known."""


def copied_to(params: Params, device: torch.device) -> dict[str, Tensor]:
    """Return copies of named tensors on a device, also where they are on it already."""
    return {name: _copied(tensor, device) for name, tensor in params.items()}


def _copied(value: Any, device: torch.device) -> Any:
    return value.detach().to(device, copy=True) if isinstance(value, Tensor) else value


@dataclass(frozen=True, eq=False)
class Observation:
    """The input of an attack."""

    model: nn.Module
    """The architecture; its own weights mean nothing, `before` and `buffers` count."""
    before: Params
    buffers: Params
    update: Update
    knows: Knowledge
    own: Own | None = None
    """What the adversary contributed itself, where it is a participant."""
    buffers_after: Params = field(default_factory=dict)
    """The running statistics that came with the message; empty where they were not seen."""
    also: tuple[Observation, ...] = ()
    """Messages of other rounds from the same examples, where several are looked at together."""

    def copied_to(self, device: torch.device) -> Observation:
        """Return a copy on a device, which shares neither a tensor nor the model with this one.

        Tensors are copied even where they are on the device already. Fresh ones are aligned alike in every process, and
        the last bits of a matrix product may depend on that.
        """
        facts = {f.name: _copied(getattr(self.knows, f.name), device) for f in fields(Knowledge)}
        own = self.own
        if own is not None:
            images, labels = (_copied(tensor, device) for tensor in (own.images, own.labels))
            own = Own(images, labels, copied_to(own.update, device), own.share)
        return Observation(
            copy.deepcopy(self.model).to(device),
            copied_to(self.before, device),
            copied_to(self.buffers, device),
            copied_to(self.update, device),
            Knowledge(**facts),
            own,
            copied_to(self.buffers_after, device),
            tuple(other_round.copied_to(device) for other_round in self.also),
        )

    @property
    def facts(self) -> frozenset[Fact]:
        """Return the facts that are known in addition to the message, the adversary's own contribution included."""
        facts = self.knows.facts | ({Fact.STATISTICS} if moved_statistics(self.buffers, self.buffers_after) else set())
        if self.own is None:
            return facts
        facts |= {Fact.OWN_EXAMPLES} if len(self.own.labels) else set()
        if self.own.share == 0:
            return facts
        return facts | {Fact.OWN} | (set() if self.own.share is None else {Fact.OWN_SHARE})


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


@dataclass(frozen=True)
class Trial:
    """A guess about what the adversary does not know, and how well its own images came back under it."""

    lr: float
    examples: int
    error: float
    """Mean squared error of the adversary's own images, each beside what shows it best."""
    seconds: float
    """What the trial took."""


@dataclass(frozen=True, eq=False)
class Film:
    """Pictures on the way of a refinement, for whoever wants to look what became of the raw ones."""

    epochs: tuple[int, ...]
    frames: Tensor  # (epochs, n, c, h, w), pixels before whitening
    chosen: tuple[int, ...]
    """The epoch at which each image was taken; where that was before, its frame shows the image as taken."""

    def caption(self, image: int) -> str:
        """Return in words how an image is seen."""
        return f"epochs {', '.join(map(str, self.epochs))} of the refinement; epoch {self.chosen[image]} was taken"

    def beside(self, still: Tensor) -> Film:
        """The film, followed by images that nothing was done to.  # (m, c, h, w)"""
        frames = torch.cat([self.frames, still.expand(len(self.frames), *still.shape)], dim=1)
        return Film(self.epochs, frames, (*self.chosen, *[self.epochs[0]] * len(still)))


@dataclass(frozen=True)
class Accepted:
    """The clients whose updates are supposed to have got through the server's rule."""

    others: tuple[int, ...]
    """The others by their positions; where their labels are not told, any of that size."""
    own: bool
    """Whether the adversary's own did."""


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """The output of an attack."""

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
    rule: str = ""
    """The aggregation rule under which the message was explained best, where the attack had to guess."""
    kept: Accepted | None = None
    """Whose updates got through that rule, where the attack had to guess."""
    grouping: tuple[tuple[int, ...], ...] = ()
    """The labels of each of the others, where the attack had to find out whose label is whose."""
    tried: tuple[Trial, ...] = ()
    """The guesses that were compared, where the attack had to search for what it does not know."""
    raw: Tensor | None = None
    """The images before they were refined; None where nothing was.  # (n, c, h, w)"""
    energy_refined: float | None = None
    """That of the refined images: one that no longer explains the message is imagination."""
    film: Film | None = None
    """How the refined images came about, where a refinement shows it."""
    method: str = ""
    """The exact method that read the images; empty where a search found them, or nothing was read."""
    explains: bool = False
    """Whether the images of an exact method were verified to explain the message."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Exact method -> why it does not apply, or that it found nothing."""
