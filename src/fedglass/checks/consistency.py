"""Traces in a message that contradict its claim; these checks need no true examples.

Each check looks at one trace that a training leaves whatever the data were. They are one-sided: a message that passes
may still have been made otherwise, and one that fails was not made as claimed. One check compares the size of the
message with the sizes that the claimed training gives on other images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase

from fedglass.checks.claim import Claim
from fedglass.core.optimisers import SGD, Adam, AdamW
from fedglass.core.rng import stream
from fedglass.core.tensors import COUNTER, MEAN, VARIANCE, counted_batches, moved_statistics
from fedglass.core.thresholds import (
    CLIP_SLACK_ARITHMETIC,
    EQUAL_SIZES,
    LARGEST_ADAM_EPS,
    LARGEST_BEYOND,
    LARGEST_OVER_MEDIAN,
    MOVED_ENTRIES,
    PILED_SIZES,
    SCATTERED_SIZES,
    SMALLEST_BELOW,
    STEP_ROUNDING,
    SURE,
    largest_norm,
)
from fedglass.core.types import BatchNorm, Training
from fedglass.fl.local import schedule, train

MOST_TRIED_STEPS = 50
"""Local steps beyond which a training is not run on other images."""
Expected = list[tuple[Tensor, Tensor]]
"""Images, and the probabilities that the network gives their classes."""


def contradictions(claim: Claim) -> tuple[str, ...]:
    """Return what in the message contradicts the claim, each with the line of the plan to correct."""
    if claim.training is None:
        return ()
    sizes = () if claim.defended else (_equal_sizes, _scattered_sizes, _beyond_adam, _size)
    return tuple(chain.from_iterable(check(claim, claim.training) for check in (_statistics, _counter, *sizes)))


def _statistics(claim: Claim, training: Training) -> Iterator[str]:
    """Check the running statistics: they move where layers normalise by the batch, and stay where they are frozen."""
    names = [f"{name}.{kind}" for name in _normalising(claim.model) for kind in (MEAN, VARIANCE)]
    if not any(name in claim.buffers and name in claim.buffers_after for name in names):
        return
    moved = moved_statistics(claim.buffers, claim.buffers_after)
    frozen = training.batch_norm is BatchNorm.FROZEN
    if frozen and moved:
        yield (
            f"the running statistics moved ({moved[0]} and {len(moved) - 1} more) although frozen ones are declared: "
            'set training.batch_norm = "batch"'
        )
    if not frozen and not moved:
        yield (
            "the running statistics did not move although training by the batch's own is declared: set "
            'training.batch_norm = "frozen", or record those after the training (recording.buffers_after)'
        )


def _counter(claim: Claim, training: Training) -> Iterator[str]:
    """Check `num_batches_tracked`: each step in train mode adds one; a mean over clients has no such count."""
    counters = [f"{name}.{COUNTER}" for name in _normalising(claim.model)]
    recorded = [name for name in counters if name in claim.buffers and name in claim.buffers_after]
    if training.batch_norm is BatchNorm.FROZEN or len(claim.clients) > 1 or not recorded:
        return
    change = {name: claim.buffers_after[name].long() - claim.buffers[name].long() for name in recorded}
    counted = {int(count) for count in counted_batches(change)}
    if counted != {0} and claim.steps not in counted:  # none at all is told by the statistics themselves
        yield (
            f"the layers counted {max(counted)} batch(es), and {claim.steps} local step(s) are declared: correct "
            "training.epochs, training.batch_size or training.steps"
        )


def _equal_sizes(claim: Claim, training: Training) -> Iterator[str]:
    """Check for equal sizes: Adam's first step is lr sign(g) up to eps [Kingma and Ba, 2015, Section 2.1].

    Gradients are never so even.
    """
    sizes = _moved(claim)
    if not isinstance(training.optimiser, SGD) or sizes is None:
        return
    share = _densest(sizes)
    if share >= PILED_SIZES and float(sizes[-1]) <= LARGEST_OVER_MEDIAN * float(sizes.median()):
        yield (
            f"{share:.0%} of the weights moved by the same amount ({float(sizes.median()):.3g}), as by Adam or a "
            f'sign and not by SGD: set training.optimiser = "adam" with lr = {float(sizes.median()) / claim.steps:.2g}'
        )


def _scattered_sizes(claim: Claim, training: Training) -> Iterator[str]:
    """Check for scattered sizes: one step of Adam moves nearly all weights by the same amount.

    Several steps need not, nor a mean over clients, nor gradients below eps, as in a network that has learnt its data.
    """
    optimiser, sizes = training.optimiser, _moved(claim)
    alone = claim.steps == 1 and len(claim.clients) == 1
    if not isinstance(optimiser, Adam | AdamW) or optimiser.eps > LARGEST_ADAM_EPS or not alone or sizes is None:
        return
    share = _densest(sizes)
    # A network that has learnt its data may have hardly a gradient there.
    if share < SCATTERED_SIZES and not _sure(_expected(claim, training)):
        yield (
            f"at most {share:.1%} of the weights moved by the same amount, where one step of Adam moves nearly all by "
            "its learning rate: leave training.optimiser out"
        )


def _beyond_adam(claim: Claim, training: Training) -> Iterator[str]:
    """Check the longest step: Adam's are at most lr max(1, (1 - b1) / sqrt(1 - b2)) [Kingma and Ba, 2015].

    The first is no longer than lr. AdamW's decay comes on top.
    """
    optimiser = training.optimiser
    if not isinstance(optimiser, Adam | AdamW):
        return
    beta1, beta2 = optimiser.betas
    longest = 1.0 if claim.steps == 1 else max(1.0, (1 - beta1) / math.sqrt(1 - beta2))
    decay = optimiser.weight_decay if isinstance(optimiser, AdamW) else 0.0
    largest = max(float(w.abs().max()) for w in claim.before.values() if w.numel())
    reach = training.lr * claim.steps
    most = reach * (longest + decay * (largest + reach * longest))
    size = max(float(u.abs().max()) for u in claim.update.values() if u.numel())
    if size > largest_norm(most, CLIP_SLACK_ARITHMETIC):
        yield (
            f"a weight moved by {size:.3g}, where {claim.steps} step(s) of Adam with lr = {training.lr:g} move it by "
            f"{most:.3g} at the most: correct training.lr, or leave training.optimiser out"
        )


def _size(claim: Claim, training: Training) -> Iterator[str]:
    """Compare the size of the message with those that the claimed training gives on other images.

    One step that is far larger is impossible within reason: the gradient of cross entropy is the network's Jacobian
    times p - y, which is the largest for the label that surprises the network most, and the Jacobian was seen to
    differ by a factor of 2 between images, not of LARGEST_BEYOND. Several steps may diverge, to any size, unless they
    are clipped. Far smaller is common: a network that has learnt its data has hardly a gradient there. It counts only
    where the network is sure of no image, compared with a training of the same length on the labels it expects.
    """
    if not isinstance(training.optimiser, SGD):
        return
    size = math.sqrt(sum(float(u.double().square().sum()) for u in claim.update.values()))
    correct = "correct training.lr (a loss that is summed over the examples makes it larger), epochs or batch_size"
    expected = _expected(claim, training)
    most, least = _most(claim, training, expected), _least(claim, training, expected)
    if most is not None and size > most:
        yield (
            f"the message has the norm {size:.3g}, where the declared training moves no image's weights by more than "
            f"{most:.3g} within reason: {correct}"
        )
    if least is not None and size * SMALLEST_BELOW < least:
        yield (
            f"the message has the norm {size:.3g}, where the declared training moves the weights by about "
            f"{least:.3g} on any image, since the network is sure of none: {correct}"
        )


def _most(claim: Claim, training: Training, expected: Expected) -> float | None:
    """Return the largest norm that a message may have; None where nothing bounds it.

    One step is compared with steps under the labels that surprise the network most. Several may leave the region where
    gradients are what they were: a training that diverges has no largest size.
    """
    optimiser = training.optimiser
    assert isinstance(optimiser, SGD)
    if training.clip is not None and not optimiser.weight_decay:
        travelled = optimiser.travel(training.lr, claim.steps)
        return None if travelled is None else largest_norm(training.clip * travelled, CLIP_SLACK_ARITHMETIC)
    if claim.steps > 1:
        return None
    return LARGEST_BEYOND * max(_norm(claim, training, inputs, p.argmin(1)) for inputs, p in expected)


def _least(claim: Claim, training: Training, expected: Expected) -> float | None:
    """Return the smallest norm under the labels that the network expects; infinite where every training diverges.

    None where the network is sure of any image, so that it may have learnt what it is sure of, or where the training
    is too long to be run.
    """
    if claim.steps > MOST_TRIED_STEPS or _sure(expected):
        return None
    return min(_norm(claim, training, inputs, p.argmax(1)) for inputs, p in expected)


def _normalising(model: nn.Module) -> list[str]:
    return [name for name, layer in model.named_modules() if isinstance(layer, _NormBase)]


def _moved(claim: Claim) -> Tensor | None:
    """Return by how much each weight moved, sorted; None where too few moved for a comparison.

    One layer alone may have gradients of equal size: zero weights of two classes, and pixels that are black or white.
    """
    pairs = [(u.abs().double(), claim.before[name].abs().double()) for name, u in claim.update.items()]
    sizes = [moved[moved > STEP_ROUNDING * claim.steps * size] for moved, size in pairs]
    enough = [moved for moved in sizes if len(moved) >= MOVED_ENTRIES]
    return torch.cat(enough).sort().values if len(enough) > 1 else None


def _densest(sizes: Tensor) -> float:
    """Return the largest share of sorted sizes that count as equal."""
    logs = sizes.log()
    ends = torch.searchsorted(logs, logs + EQUAL_SIZES, right=True)
    return float((ends - torch.arange(len(logs))).max()) / len(logs)


def _sure(expected: Expected) -> bool:
    """Return whether the network is sure of any image."""
    return any(not float(p.max()) < SURE for _, p in expected)


def _expected(claim: Claim, training: Training) -> Expected:
    """Return other images, and the probabilities that the network gives their classes.

    One image at a time; all together where layers normalise by the batch, which may need several.
    """
    network, weights, inputs = claim.network(training.batch_norm), claim.weights, claim.inputs(_images(claim.shape))
    batches = [inputs] if training.batch_norm is BatchNorm.BATCH else torch.split(inputs, 1)
    with torch.no_grad():
        return [(batch, F.softmax(network(weights, batch), dim=1)) for batch in batches]


def _images(shape: tuple[int, int, int]) -> Tensor:
    """Return noise, smooth noise, black and white: from the busiest to the plainest images.  # (4, c, h, w)"""
    noise = torch.rand(1, *shape, generator=stream(0, "plausible"))
    coarse = torch.rand(1, shape[0], 3, 3, generator=stream(1, "plausible"))
    smooth = F.interpolate(coarse, size=shape[1:], mode="bilinear", align_corners=True)
    return torch.cat([noise, smooth, torch.zeros(1, *shape), torch.ones(1, *shape)])


def _norm(claim: Claim, training: Training, inputs: Tensor, labels: Tensor) -> float:
    """Return the norm of the message; infinite where the training diverges."""
    network, start = claim.network(training.batch_norm), claim.weights
    full_batch = replace(training, epochs=1, batch_size=None, steps=claim.steps, shuffle=False)
    after = train(network, start, inputs, labels, schedule(full_batch, len(labels), None), full_batch)
    square = sum(float((a - b).cpu().double().square().sum()) for a, b in zip(after, start, strict=True))
    return math.sqrt(square) if math.isfinite(square) else math.inf
