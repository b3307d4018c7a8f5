"""Does the declared training produce the message? The owner of the data can play it again and compare.

Where the order of the batches was not recorded, several are played, and a message that lies as near to them as they
lie to each other is explained. One full batch has no order, and leaves rounding alone. Entries that rounding decides
are left out, and where these are many, nothing can be told. What a defence adds at random is no part of this: it is
tested by what the replay without it leaves (`checks.residual`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedglass.core.errors import ModelError
from fedglass.core.optimisers import SGD, Adam, AdamW
from fedglass.core.rng import stream
from fedglass.core.tensors import Params
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.data.dataset import CIFAR10, CIFAR100, FEMNIST
from fedglass.fl.local import LocalBatch, schedule, train
from fedglass.fl.release import Outgoing, Protection
from fedglass.models.network import Network

# Which entries of a replayed message rounding decides: nobody can say what these should have been.
#
# A bias before batch normalisation has the gradient zero, of which arithmetic leaves rounding. Plain SGD makes next to
# nothing of it. Adam's steps do not depend on a gradient's size [Kingma and Ba, 2015, Section 2.1]: it walks at random
# there, and a replay of the very same training ends elsewhere. Plays that start from weights a few roundings apart tell
# these entries from all others, on which they agree.


GRAIN = 1e-6
"""The share by which weights are moved: a few roundings in single precision, as another order of sums makes."""
PLAYS = 6
"""A step that goes up or down by chance goes the same way in all of them once in 2^6 times."""
TENSOR = 0.5
"""The share of a tensor from which on all of it is left to rounding: the rest agrees by chance."""
LOUDER = 3.0
"""How many times longer than in any play entries may be that are left to rounding: it does not make more of them."""


def nudged(weights: Params, seed: int) -> dict[str, Tensor]:
    """Weights a few roundings away; what is zero stays so, since a gradient that is exactly zero is no rounding."""
    generator = stream(seed, "rounding")
    return {name: w * (1 + GRAIN * torch.randn(w.shape, generator=generator).to(w)) for name, w in weights.items()}


def undecided(message: Tensor, plays: Sequence[Tensor], tolerance: float) -> Tensor:
    """The entries of one tensor on which plays that differ by rounding do not agree; none that they can not explain.

    >>> plays = [torch.tensor([1.0, 1.0, 0.3]), torch.tensor([1.0, 1.0, -0.2])]
    >>> undecided(torch.tensor([1.0, 1.0, 0.1]), plays, 0.02)
    tensor([False, False,  True])
    >>> undecided(torch.tensor([1.0, 1.0, 5.0]), plays, 0.02)
    tensor([False, False, False])
    """
    stacked = torch.stack(list(plays))
    spread = stacked.amax(dim=0) - stacked.amin(dim=0)
    found = spread > tolerance * torch.maximum(stacked[0].abs(), stacked.square().mean().sqrt())
    if float(found.double().mean()) >= TENSOR:
        found = torch.ones_like(found)
    longest = max(float(play[found].norm()) for play in plays)
    return found if float(message[found].norm()) <= LOUDER * longest else torch.zeros_like(found)


# What is often declared wrongly of a training, each with the line that would say it rightly.


NORMALISATIONS = {
    "none (mean 0, std 1)": Whitening((0.0,), (1.0,)),
    "none, pixels of 0 to 255 (mean 0, std 1/255)": Whitening((0.0,), (1 / 255,)),
    "mean 0.5, std 0.5": Whitening((0.5,), (0.5,)),
    "MNIST's (mean 0.1307, std 0.3081)": Whitening((0.1307,), (0.3081,)),
    "FEMNIST's": FEMNIST,
    "CIFAR-10's": CIFAR10,
    "CIFAR-100's": CIFAR100,
    "ImageNet's": Whitening((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""By which pixels are often normalised."""


def other_trainings(declared: Training) -> Iterator[tuple[str, Change]]:
    """What a client may have done in place of what is declared."""
    optimisers = {
        "the optimiser has momentum: set momentum = 0.9": SGD(momentum=0.9),
        "the optimiser has momentum: set momentum = 0.5": SGD(momentum=0.5),
        "the optimiser has Nesterov's momentum: set momentum = 0.9, nesterov = true": SGD(momentum=0.9, nesterov=True),
        'the optimiser is Adam: set optimiser = "adam"': Adam(),
        'the optimiser is AdamW: set optimiser = "adamw"': AdamW(),
        "the optimiser is plain SGD: leave momentum and optimiser out": SGD(),
        **{
            f"the optimiser decays the weights: set weight_decay = {decay:g}": SGD(weight_decay=decay)
            for decay in (1e-4, 5e-4, 1e-3, 1e-2, 1e-1)
        },
        "the optimiser has momentum and decays the weights: set momentum = 0.9, weight_decay = 0.0005": SGD(
            momentum=0.9, weight_decay=5e-4
        ),
    }
    for words, optimiser in optimisers.items():
        if optimiser != declared.optimiser:
            yield words, Change("optimiser", optimiser)
    other = BatchNorm.FROZEN if declared.batch_norm is BatchNorm.BATCH else BatchNorm.BATCH
    yield f'normalisation layers used other statistics: set batch_norm = "{other.value}"', Change("batch_norm", other)
    for epochs in (1, 2, 3, 4, 5, 10, 20):
        if epochs != declared.epochs and declared.steps is None:
            yield f"the number of epochs is another: set epochs = {epochs}", Change("epochs", epochs)
    for size in (None, 1, 2, 4, 8, 16, 32, 64):
        if size != declared.batch_size:
            words = "leave batch_size out" if size is None else f"set batch_size = {size}"
            yield f"the batches are of another size: {words}", Change("batch_size", size)


@dataclass(frozen=True)
class Change:
    """One field of a training set to another value."""

    field: str
    value: object

    def __call__(self, training: Training) -> Training:
        return replace(training, **{self.field: self.value})  # type: ignore[arg-type] # named beside its value


ROUNDING = 0.02
"""The relative error up to which a message counts as explained: another device or half precision may make as much."""
ORDERS = 6
"""Orders of the batches that are played."""
NEAR = 1.5
"""How many times farther than the orders lie from each other a message may lie from the nearest of them."""
FAINT = 1e-5
"""Tensors that moved by a smaller share of themselves are left out: rounding alone may have made that."""
MOST_UNDECIDED = 0.25
"""The share of a message beyond which nothing is told by what rounding does not decide of it."""
MOST_STEPS = 2000
"""Local steps beyond which a training is not played again."""
SECONDS = 10.0
"""How long other trainings are tried in the place of a declared one that does not give the message."""
PLAIN = Protection()


@dataclass(frozen=True, eq=False)
class Part:
    """One client's part of a message: its examples and what it is said to have done with them."""

    images: Tensor  # (n, c, h, w), pixels in [0, 1]
    labels: Tensor  # (n,)
    training: Training
    protection: Protection = PLAIN
    weight: int | None = None
    """In the mean with others, where that is not the number of examples."""
    order: tuple[tuple[int, ...], ...] | None = None
    """Which examples each local step took, where that was recorded."""

    @property
    def steps(self) -> int:
        return self.training.local_steps(len(self.labels)) if self.order is None else len(self.order)

    @property
    def has_no_order(self) -> bool:
        """Whether there is nothing to draw: the order was recorded, or there is only one."""
        fixed = self.order is not None or not self.training.shuffle
        return fixed or len(self.training.batches(len(self.labels))) == 1


@dataclass(frozen=True, eq=False)
class Declared:
    """All that is said to have made a message."""

    model: nn.Module
    before: Params
    buffers: Params
    update: Params
    whitening: Whitening
    parts: tuple[Part, ...]
    """Combined as their numbers of examples weigh."""
    round: int = 0
    own: int = 0
    """How many parts at the end are the adversary's own: their noise is no secret to it."""
    combined_by_mean: bool = True
    """False: another rule combined the parts, so that a replay cannot give the message."""

    @property
    def bare(self) -> Declared:
        """The same without what protects it."""
        return replace(self, parts=tuple(replace(part, protection=PLAIN) for part in self.parts))


@dataclass(frozen=True)
class Replay:
    """How far the message lies from what was declared, and what would explain it."""

    residual: float
    """|replayed - message| / |message|, of the nearest order of batches."""
    bound: float
    """Up to which it is explained by rounding and by the order of the batches."""
    explained: bool
    other: str = ""
    """What would explain the message in its place, in words with the line of the plan; empty where nothing would."""
    undecided: float = 0.0
    """The share of the entries that rounding decides, which are not compared."""
    apart: float = 0.0
    """The share of the entries that are not those of any play."""

    @property
    def untold(self) -> bool:
        """Whether nothing speaks against the declared training, and too little for it."""
        return self.residual <= self.bound and not self.explained and self.undecided > MOST_UNDECIDED

    @property
    def words(self) -> str:
        if self.untold:
            return (
                f"rounding decides {self.undecided:.0%} of what the declared training makes of the true data: a "
                "replay cannot tell whether it gives the message"
            )
        if self.explained:
            rest = f", but for {self.undecided:.1%} of its entries, which rounding decides" if self.undecided else ""
            return f"replayed on the true data, the declared training gives the message up to {self.residual:.2g}{rest}"
        return f"replayed on the true data, the declared training leaves a relative error of {self.residual:.2g}"


def played(declared: Declared) -> Params | None:
    """Return what the declared clients send together; None where it is too long or diverges."""
    if too_long(declared):
        return None
    tensors = zip(declared.before.items(), message_of(declared, 0), strict=True)
    update = {name: tensor.to(before.dtype) for (name, before), tensor in tensors}
    return update if all(bool(torch.isfinite(tensor).all()) for tensor in update.values()) else None


def too_long(declared: Declared) -> bool:
    """Return whether a training has too many local steps to be played again."""
    return any(part.steps > MOST_STEPS for part in declared.parts)


def replay(declared: Declared, seconds: float = SECONDS) -> Replay | None:
    """Play the declared training again, and what is often done in its place; None where it is too long.

    Others are tried for some seconds at the most.
    """
    found = as_declared(declared)
    if found is None or found.explained:
        return found
    end = time.monotonic() + seconds
    found = _beyond_rounding(declared)
    if found.explained or found.untold:
        return found
    for words, other in _others(declared):
        if time.monotonic() > end:
            break
        if _explains(other):
            return replace(found, other=words)
    return found


def as_declared(declared: Declared) -> Replay | None:
    """Play the declared training again, and nothing else, to the last entry; None where it is too long."""
    return None if too_long(declared) else _played(declared)


def _explains(other: Declared) -> bool:
    """Whether another training gives the message, but for rounding."""
    try:
        found = _played(other)
    except ModelError:  # batch statistics of one value per channel: nobody can train so
        return False
    return found.explained or (found.apart <= MOST_UNDECIDED and _beyond_rounding(other).explained)


def _beyond_rounding(declared: Declared) -> Replay:
    """The same comparison of what rounding does not decide."""
    plays = [message_of(declared, 0)]
    plays += [message_of(replace(declared, before=nudged(declared.before, i)), 0) for i in range(PLAYS)]
    message = _message(declared)
    left = [undecided(message[i], [play[i] for play in plays], ROUNDING) for i in range(len(message))]
    share = sum(int(left[i].sum()) for i in _moved(declared)) / sum(left[i].numel() for i in _moved(declared))
    found = replace(_played(declared, left), undecided=share)
    return found if share <= MOST_UNDECIDED else replace(found, explained=False)


def _played(declared: Declared, left: Sequence[Tensor] = ()) -> Replay:
    """Tensor by tensor: what is declared wrongly often shows in one of them, such as the first layer's, alone.

    `left` are the entries of each that are not compared.
    """
    message = _message(declared)
    tries = [message_of(declared, order) for order in range(1 if has_no_order(declared) else ORDERS)]
    worst, apart, entries = Replay(0.0, ROUNDING, explained=True), 0.0, 0
    for i in sorted({*_moved(declared), *_expected(declared, tries)}):
        whole, played = message[i], [each[i] for each in tries]
        if left:
            whole, played = whole[~left[i]], [each[~left[i]] for each in played]
        if not whole.numel():
            continue
        found = _compared(whole, played)
        apart, entries = apart + found.apart * whole.numel(), entries + whole.numel()
        if found.residual / found.bound >= worst.residual / worst.bound:
            worst = found
    return replace(worst, apart=apart / max(entries, 1))


def _expected(declared: Declared, tries: Sequence[Sequence[Tensor]]) -> list[int]:
    """What the training moves: that the message does not is amiss too, since layers were frozen then.

    By more than rounding, which is all that a bias moves by that the next layer's normalisation takes out again.
    """
    sizes = [[_norm(tensor) for tensor in each] for each in tries]
    least = [FAINT * math.hypot(*each) for each in sizes]
    return [
        i
        for i, before in enumerate(declared.before.values())
        if all(each[i] > max(FAINT * _norm(before), faint) for each, faint in zip(sizes, least, strict=True))
    ]


def _compared(message: Tensor, tries: Sequence[Tensor]) -> Replay:
    """How far one tensor of the message lies from the nearest try, beside how far the tries lie from each other."""
    size = _norm(message) or _norm(tries[0]) or 1.0  # of some entries alone, or of a frozen layer, it may be zero
    residual = min(float((each - message).norm()) for each in tries) / size
    apart = [
        min(float((one - other).norm()) for j, other in enumerate(tries) if j != i) / float(one.norm() or 1.0)
        for i, one in enumerate(tries)
        if len(tries) > 1
    ]
    bound = ROUNDING + NEAR * max(apart, default=0.0)
    grain = bound * torch.maximum(message.abs(), message.square().mean().sqrt())
    amiss = min(float((~((each - message).abs() <= grain)).double().mean()) for each in tries)
    return Replay(residual, bound, math.isfinite(residual) and residual <= bound, apart=amiss)


def _message(declared: Declared) -> list[Tensor]:
    return [declared.update[name].double() for name in declared.before]


def _moved(declared: Declared) -> list[int]:
    """The tensors that are compared, by their numbers."""
    message = _message(declared)
    moved = [i for i, before in enumerate(declared.before.values()) if _norm(message[i]) > FAINT * _norm(before)]
    # Where all of it is faint, as by a tiny learning rate, all of it is what there is to be explained.
    return moved or [i for i, tensor in enumerate(message) if _norm(tensor) > 0]


def _norm(tensor: Tensor) -> float:
    return float(tensor.norm())


def has_no_order(declared: Declared) -> bool:
    """Return whether there is nothing to draw: all orders were recorded, or there is only one."""
    return all(part.has_no_order for part in declared.parts)


def message_of(declared: Declared, order: int, draw: int | None = None) -> list[Tensor]:
    """What the declared clients send together, with the batches in one of their orders and one draw of their noise."""
    weights = [len(part.labels) if part.weight is None else part.weight for part in declared.parts]
    total = [torch.zeros(())] * len(declared.before)
    for i, part in enumerate(declared.parts):
        network = Network(declared.model, declared.buffers, part.training.batch_norm)
        start = [declared.before[name] for name in network.names]
        batches = batches_of(part, order, i)
        inputs = declared.whitening.whiten(part.images)
        noise, leaving = (stream(order if draw is None else draw, use, i) for use in ("noise", "release"))
        after = train(network, start, inputs, part.labels, batches, part.training, part.protection.gradient, noise)
        update = {name: a - b for name, a, b in zip(network.names, after, start, strict=True)}
        sent = part.protection.release.release(Outgoing(update, leaving, declared.round, declared.before))
        share = weights[i] / sum(weights)
        total = [t + sent[name].double() * share for t, name in zip(total, network.names, strict=True)]
    return total


def batches_of(part: Part, order: int = 0, place: int = 0) -> Iterable[LocalBatch]:
    """Return the recorded batches, or a draw of those that the declared training of the part at `place` makes."""
    if part.order is None:
        return schedule(part.training, len(part.labels), stream(order, "replay", place))
    each = len(part.training.batches(len(part.labels)))
    return [LocalBatch(i // each, torch.tensor(rows), i % each) for i, rows in enumerate(part.order)]


def _others(declared: Declared) -> Iterator[tuple[str, Declared]]:
    """What is often declared wrongly, each with the line that would say it rightly."""
    if any(part.protection != PLAIN for part in declared.parts):
        yield "it is not defended at all: set recording.defended = false", declared.bare
    for words, change in other_trainings(declared.parts[0].training):
        yield words, replace(declared, parts=tuple(replace(p, training=change(p.training)) for p in declared.parts))
    channels = declared.parts[0].images.shape[1]
    for name, whitening in NORMALISATIONS.items():
        if len(whitening.mean) in (1, channels) and whitening != declared.whitening:
            yield f"pixels were normalised otherwise: {name}", replace(declared, whitening=whitening)
    factor = _factor(declared)
    if factor is not None:
        yield (
            f"the steps were {factor:.3g} times as long: another learning rate, or a loss that is summed over the "
            f"examples; set lr = {declared.parts[0].training.lr * factor:.3g}",
            replace(
                declared,
                parts=tuple(
                    replace(p, training=replace(p.training, lr=p.training.lr * factor)) for p in declared.parts
                ),
            ),
        )


def _factor(declared: Declared) -> float | None:
    """By how much the replayed message must be scaled to come nearest to the true one."""
    pairs = list(zip(message_of(declared, 0), declared.update.values(), strict=True))
    square = sum(float(r.square().sum()) for r, _ in pairs)
    factor = sum(float((r * m).sum()) for r, m in pairs) / square if square > 0 and math.isfinite(square) else 0.0
    return factor if factor > 0 else None
