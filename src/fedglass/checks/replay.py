"""The replay of a claimed training: does it produce the message?

The owner of the data can run the claimed training again and compare. Where the order of the batches was not recorded,
several orders are run. A message that lies as near to them as they lie to each other is explained. One full batch has
no order, and leaves only rounding. Entries that rounding decides are left out, and where there are many of them the
replay proves nothing. Random noise of a defence is not part of this: `checks.residual` tests what the replay without
it leaves.

Rounding decides an entry where its true value is zero. A bias before batch normalisation has the gradient zero, of
which arithmetic leaves rounding. Plain SGD makes next to nothing of it. Adam's steps do not depend on a gradient's size
[Kingma and Ba, 2015, Section 2.1]: it walks at random there, and a replay of the very same training ends elsewhere.
Replays from weights a few roundings apart tell these entries from all others, on which they agree.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedglass.checks.claim import UNPROTECTED, Claim
from fedglass.core.errors import ModelError
from fedglass.core.optimisers import SGD, Adam, AdamW
from fedglass.core.rng import stream
from fedglass.core.tensors import Params
from fedglass.core.thresholds import (
    LOUDEST_ROUNDING,
    MOST_UNDECIDED,
    REPLAY_FAINT,
    REPLAY_NEAR,
    REPLAY_ROUNDING,
    UNDECIDED_TENSOR,
)
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.data.dataset import CIFAR10, CIFAR100, FEMNIST
from fedglass.fl.local import train
from fedglass.fl.release import Outgoing

ORDERS = 6
"""Orders of the batches that are run."""
MOST_STEPS = 2000
"""Local steps beyond which a training is not run again."""
SECONDS = 10.0
"""How long other trainings are tried where the claimed one does not give the message."""
NUDGE = 1e-6
"""Relative change of nudged weights: a few roundings in single precision, as another order of sums makes."""
NUDGED_REPLAYS = 6
"""A step that goes up or down by chance goes the same way in all of them once in 2^6 times."""


def nudged(weights: Params, seed: int) -> dict[str, Tensor]:
    """Return weights a few roundings away. Zeros stay zeros, since a gradient of exactly zero is not rounding."""
    generator = stream(seed, "rounding")
    return {name: w * (1 + NUDGE * torch.randn(w.shape, generator=generator).to(w)) for name, w in weights.items()}


def undecided(message: Tensor, replays: Sequence[Tensor], tolerance: float) -> Tensor:
    """Return which entries of one tensor differ between replays that differ by rounding.

    None where the message is too long at these entries for rounding to explain it.

    >>> replays = [torch.tensor([1.0, 1.0, 0.3]), torch.tensor([1.0, 1.0, -0.2])]
    >>> undecided(torch.tensor([1.0, 1.0, 0.1]), replays, 0.02)
    tensor([False, False,  True])
    >>> undecided(torch.tensor([1.0, 1.0, 5.0]), replays, 0.02)
    tensor([False, False, False])
    """
    stacked = torch.stack(list(replays))
    spread = stacked.amax(dim=0) - stacked.amin(dim=0)
    mask = spread > tolerance * torch.maximum(stacked[0].abs(), stacked.square().mean().sqrt())
    if float(mask.double().mean()) >= UNDECIDED_TENSOR:
        mask = torch.ones_like(mask)
    longest = max(float(replayed[mask].norm()) for replayed in replays)
    return mask if float(message[mask].norm()) <= LOUDEST_ROUNDING * longest else torch.zeros_like(mask)


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
"""Common normalisations of pixels."""


def other_trainings(claimed: Training) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield fields of a training that are often claimed wrongly, each with the line of the plan that corrects it."""
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
    for correction, optimiser in optimisers.items():
        if optimiser != claimed.optimiser:
            yield correction, {"optimiser": optimiser}
    other = BatchNorm.FROZEN if claimed.batch_norm is BatchNorm.BATCH else BatchNorm.BATCH
    yield f'normalisation layers used other statistics: set batch_norm = "{other.value}"', {"batch_norm": other}
    for epochs in (1, 2, 3, 4, 5, 10, 20):
        if epochs != claimed.epochs and claimed.steps is None:
            yield f"the number of epochs is another: set epochs = {epochs}", {"epochs": epochs}
    for size in (None, 1, 2, 4, 8, 16, 32, 64):
        if size != claimed.batch_size:
            line = "leave batch_size out" if size is None else f"set batch_size = {size}"
            yield f"the batches are of another size: {line}", {"batch_size": size}


@dataclass(frozen=True)
class ReplayOutcome:
    """The distance between a message and the replay of its claim, and what would explain the message instead."""

    residual: float
    """|replayed - message| / |message|, of the nearest order of batches."""
    bound: float
    """The residual up to which rounding and the order of the batches explain the message."""
    explained: bool
    correction: str = ""
    """The line of the plan that would explain the message; empty where none was found."""
    undecided: float = 0.0
    """The share of the entries that rounding decides, which are not compared."""
    mismatch: float = 0.0
    """The share of the entries that no replay gives."""

    @property
    def proves_nothing(self) -> bool:
        """True where nothing contradicts the claimed training, and too few entries confirm it."""
        return self.residual <= self.bound and not self.explained and self.undecided > MOST_UNDECIDED

    @property
    def text(self) -> str:
        if self.proves_nothing:
            return (
                f"rounding decides {self.undecided:.0%} of what the declared training makes of the true data: a "
                "replay cannot tell whether it gives the message"
            )
        if self.explained:
            excluded = f", except for {self.undecided:.1%} of its entries, which rounding decides"
            return (
                f"replayed on the true data, the declared training gives the message up to {self.residual:.2g}"
                f"{excluded if self.undecided else ''}"
            )
        return f"replayed on the true data, the declared training leaves a relative error of {self.residual:.2g}"


def too_long(claim: Claim) -> bool:
    """Return whether a training has too many local steps to be run again."""
    return any(client.steps > MOST_STEPS for client in claim.clients)


def has_fixed_order(claim: Claim) -> bool:
    """Return whether no order of batches needs drawing: all were recorded, or there is only one."""
    return all(client.has_fixed_order for client in claim.clients)


def message_of(claim: Claim, order: int, draw: int | None = None) -> list[Tensor]:
    """Return what the claimed clients send together, with one order of the batches and one draw of the noise."""
    total = [torch.zeros(())] * len(claim.before)
    for i, (client, share) in enumerate(zip(claim.clients, claim.shares, strict=True)):
        network, start = claim.network(client.training.batch_norm), claim.weights
        inputs, labels = claim.inputs(client.images), client.labels.to(claim.device)
        noise, leaving = (stream(order if draw is None else draw, use, i) for use in ("noise", "release"))
        protection, batches = client.protection, client.batches(order, i)
        after = train(network, start, inputs, labels, batches, client.training, protection.gradient, noise)
        update = {name: (a - b).cpu() for name, a, b in zip(network.names, after, start, strict=True)}
        sent = protection.release.release(Outgoing(update, leaving, claim.round, claim.before))
        total = [t + sent[name].double() * share for t, name in zip(total, network.names, strict=True)]
    return total


def replay(claim: Claim, seconds: float = SECONDS) -> ReplayOutcome | None:
    """Run the claimed training again and, for some seconds, common mistakes in the claim; None where it is too long."""
    outcome = exact_replay(claim)
    if outcome is None or outcome.explained:
        return outcome
    end = time.monotonic() + seconds
    outcome = _beyond_rounding(claim)
    if outcome.explained or outcome.proves_nothing:
        return outcome
    for correction, corrected in _corrections(claim):
        if time.monotonic() > end:
            break
        if _explains(corrected):
            return replace(outcome, correction=correction)
    return outcome


def exact_replay(claim: Claim) -> ReplayOutcome | None:
    """Run the claimed training again and compare every entry; None where it is too long."""
    return None if too_long(claim) else _compare(claim)


def _explains(claim: Claim) -> bool:
    """Return whether another training gives the message, up to rounding."""
    try:
        outcome = _compare(claim)
    except ModelError:  # batch statistics of one value per channel: no client can train so
        return False
    return outcome.explained or (outcome.mismatch <= MOST_UNDECIDED and _beyond_rounding(claim).explained)


def _beyond_rounding(claim: Claim) -> ReplayOutcome:
    """Compare the entries that rounding does not decide."""
    replays = [message_of(claim, 0)]
    replays += [message_of(replace(claim, before=nudged(claim.before, i)), 0) for i in range(NUDGED_REPLAYS)]
    message = _message(claim)
    masks = [undecided(message[i], [tensors[i] for tensors in replays], REPLAY_ROUNDING) for i in range(len(message))]
    share = sum(int(masks[i].sum()) for i in _moved(claim)) / sum(masks[i].numel() for i in _moved(claim))
    outcome = replace(_compare(claim, masks), undecided=share)
    return outcome if share <= MOST_UNDECIDED else replace(outcome, explained=False)


def _compare(claim: Claim, excluded: Sequence[Tensor] = ()) -> ReplayOutcome:
    """Compare tensor by tensor: a wrong claim often shows in one of them alone, such as the first layer's.

    `excluded` are the entries of each tensor that are not compared.
    """
    message = _message(claim)
    replays = [message_of(claim, order) for order in range(1 if has_fixed_order(claim) else ORDERS)]
    worst, mismatch, entries = ReplayOutcome(0.0, REPLAY_ROUNDING, explained=True), 0.0, 0
    for i in sorted({*_moved(claim), *_expected(claim, replays)}):
        sent, candidates = message[i], [tensors[i] for tensors in replays]
        if excluded:
            sent, candidates = sent[~excluded[i]], [tensor[~excluded[i]] for tensor in candidates]
        if not sent.numel():
            continue
        outcome = _compare_tensor(sent, candidates)
        mismatch, entries = mismatch + outcome.mismatch * sent.numel(), entries + sent.numel()
        if outcome.residual / outcome.bound >= worst.residual / worst.bound:
            worst = outcome
    return replace(worst, mismatch=mismatch / max(entries, 1))


def _expected(claim: Claim, replays: Sequence[Sequence[Tensor]]) -> list[int]:
    """Return the tensors that the claimed training changes: a message that leaves them unchanged froze them.

    Changes below rounding are ignored, such as those of a bias that the next normalisation layer cancels.
    """
    sizes = [[_norm(tensor) for tensor in tensors] for tensors in replays]
    least = [REPLAY_FAINT * math.hypot(*norms) for norms in sizes]
    return [
        i
        for i, before in enumerate(claim.before.values())
        if all(norms[i] > max(REPLAY_FAINT * _norm(before), faint) for norms, faint in zip(sizes, least, strict=True))
    ]


def _compare_tensor(message: Tensor, replays: Sequence[Tensor]) -> ReplayOutcome:
    """Compare the distance of one tensor to the nearest replay with the distances between the replays."""
    size = _norm(message) or _norm(replays[0]) or 1.0  # of some entries alone, or of a frozen layer, it may be zero
    residual = min(float((replayed - message).norm()) for replayed in replays) / size
    spread = [
        min(float((one - other).norm()) for j, other in enumerate(replays) if j != i) / float(one.norm() or 1.0)
        for i, one in enumerate(replays)
        if len(replays) > 1
    ]
    bound = REPLAY_ROUNDING + REPLAY_NEAR * max(spread, default=0.0)
    tolerance = bound * torch.maximum(message.abs(), message.square().mean().sqrt())
    mismatch = min(float((~((replayed - message).abs() <= tolerance)).double().mean()) for replayed in replays)
    return ReplayOutcome(residual, bound, math.isfinite(residual) and residual <= bound, mismatch=mismatch)


def _message(claim: Claim) -> list[Tensor]:
    return [claim.update[name].double() for name in claim.before]


def _moved(claim: Claim) -> list[int]:
    """Return the positions of the tensors that moved, which are compared."""
    message = _message(claim)
    moved = [i for i, before in enumerate(claim.before.values()) if _norm(message[i]) > REPLAY_FAINT * _norm(before)]
    # Where all of it is faint, as by a tiny learning rate, all of it is what there is to be explained.
    return moved or [i for i, tensor in enumerate(message) if _norm(tensor) > 0]


def _norm(tensor: Tensor) -> float:
    return float(tensor.norm())


def _corrections(claim: Claim) -> Iterator[tuple[str, Claim]]:
    """Yield claims that are often meant, each with the line of the plan that would state it."""
    if any(client.protection != UNPROTECTED for client in claim.clients):
        yield "it is not defended at all: set recording.defended = false", claim.protected_by(UNPROTECTED)
    first = claim.clients[0]
    for correction, fields in other_trainings(first.training):
        yield correction, _with_trainings(claim, partial(replace, **fields))
    channels = first.images.shape[1]
    for name, whitening in NORMALISATIONS.items():
        if len(whitening.mean) in (1, channels) and whitening != claim.whitening:
            yield f"pixels were normalised otherwise: {name}", replace(claim, whitening=whitening)
    factor = _factor(claim)
    if factor is not None:
        yield (
            f"the steps were {factor:.3g} times as long: another learning rate, or a loss that is summed over the "
            f"examples; set lr = {first.training.lr * factor:.3g}",
            _with_trainings(claim, lambda training: replace(training, lr=training.lr * factor)),
        )


def _with_trainings(claim: Claim, changed: Callable[[Training], Training]) -> Claim:
    clients = (replace(client, training=changed(client.training)) for client in claim.clients)
    return replace(claim, clients=tuple(clients))


def _factor(claim: Claim) -> float | None:
    """Return the factor that brings the replayed message nearest to the true one."""
    pairs = list(zip(message_of(claim, 0), claim.update.values(), strict=True))
    square = sum(float(r.square().sum()) for r, _ in pairs)
    factor = sum(float((r * m).sum()) for r, m in pairs) / square if square > 0 and math.isfinite(square) else 0.0
    return factor if factor > 0 else None
