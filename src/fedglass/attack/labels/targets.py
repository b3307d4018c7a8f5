"""Labels from the signs of the last layer's gradient: they suppose activations of one sign.

Where activations have both signs, counting does better. Of 336 labels behind one local step of six networks, 40 that
the signs gave were wrong, and none that was counted; with activations of one sign they were right where counts were
not.

Targets of a loss without one class for each example: known, recovered from the last layer, or optimised.

The gradient of the last layer's bias is the sum over the examples of the loss's gradient by the outputs, the residual.
For binary cross entropy and squared error it is affine in the targets, so that it gives their mean, with the outputs of
noise images in place of the unknown ones. Labels that hold or not are then whole numbers of examples. Which example has
which is read from the last layer's weights: the residual of each example lies in the span of their update. What remains
open is optimised together with the images.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedglass.attack.forward.target import head_gradient, head_of, is_gradient, like, network_of
from fedglass.attack.labels.counts import head_statistics, is_clipped, mean_travel, round_to_sum, unsmoothed
from fedglass.attack.labels.given import OracleBatchLabels, OracleLabels, fixed_labels
from fedglass.attack.parts import Bound, Labels
from fedglass.core.errors import FedglassError
from fedglass.core.losses import Loss, TargetKind, target_kind
from fedglass.core.registry import register
from fedglass.core.rng import stream
from fedglass.core.text import IDLG, TAKEN_AS_DISTINCT
from fedglass.core.types import Observation, Unknown

COUNTING_LABELS = "last_layer"
NOISE_IMAGES = 16
"""Images of noise with which a network's activations are computed."""


def counted_instead(observation: Observation) -> str:
    """Return the name of a labels part that counts, where the last layer's inputs have both signs for noise images."""
    if target_kind(observation.knows.objective) is not TargetKind.CLASSES:
        return ""
    network, shape = network_of(observation), (NOISE_IMAGES, *observation.knows.shape)
    noise = torch.randn(shape, generator=stream(0, "activations")).to(next(iter(observation.before.values())))
    with torch.no_grad():
        _, hidden = network.features([observation.before[name] for name in network.names], noise)
    return COUNTING_LABELS if bool((hidden < 0).any()) else ""


RANDOM_IMAGES = 100
"""Number of random images that replace the client's: their mean softmax must give the nearest whole count."""


def labels_in_order(order: Tensor, observation: Observation, generator: torch.Generator) -> Bound:
    """Return the first n classes of an order, or, where the message shows it clearly, some of them more than once.

    For softmax and cross entropy the last layer's bias has the mean gradient b_k = p_k - N_k / n, p the mean
    softmax, so that N_k = n (p_k - b_k) [Geng et al., 2021]. Only counts near to whole numbers that add up to n are
    believed. They overrule the order only where one of them exceeds 1: labels that are all different stay as the
    order has them. Without believable counts the first n are taken, as published, and noted.
    """
    n = observation.knows.examples
    distinct = order.repeat(-(-n // len(order)))[:n]  # more examples than classes: the same order is repeated
    if n == 1:
        return fixed_labels(distinct)
    counts = believable_counts(observation, generator)
    if counts is None:
        return replace(fixed_labels(distinct), notes=(TAKEN_AS_DISTINCT,))
    repeated = torch.repeat_interleave(order, counts.to(order.device)[order])
    return fixed_labels(distinct if int(counts.max()) < 2 else repeated)


def believable_counts(observation: Observation, generator: torch.Generator) -> Tensor | None:
    """Return the count of each class; None where no estimate is near to whole numbers that add up.  # (classes,)"""
    n = observation.knows.examples
    probability, _ = head_statistics(observation, generator, 0.0, RANDOM_IMAGES)
    for gradient in _mean_gradients(observation, probability):
        counts = unsmoothed(n * (probability - gradient), observation).detach().cpu()
        rounded = round_to_sum(counts, n)
        if bool((counts - rounded).abs().max() < 0.5):  # false for NaN too
            return rounded
    return None


def _mean_gradients(observation: Observation, probability: Tensor) -> Iterator[Tensor]:
    """Yield b_k in the size that is known, then in the size that the absent classes give it.  # (classes,)

    Where the last hidden activations are not negative, a class is absent whose row of weights has no negative
    entry unless others outweigh it. There b_k = p_k, which gives the size of the message where it is not known, or
    was changed by a defence. Without a bias the sums of the rows replace it.
    """
    weight, bias = head_of(observation)
    rows = -observation.update[weight]  # (classes, features)
    sums = rows.sum(1) if bias is None else -observation.update[bias]
    travel = mean_travel(observation)
    if bias is not None and travel is not None and not is_clipped(observation):
        yield sums / travel
    absent = rows.amin(1) >= 0
    if is_gradient(observation) and bool(absent.any()):
        yield sums * (probability[absent].sum() / sums[absent].sum())


@register(
    "labels",
    "sign_rule",
    summary="classes with the most negative gradient in the last layer, repeated where it says so",
    paper=IDLG,
)
@dataclass(frozen=True)
class SignRule:
    """The class whose row of the last layer's gradient points against all others [Zhao et al., 2020].

    The rows of one example are multiples of its features, by a factor that is negative for the true class alone.
    Several examples have no such rows: there the n classes with the most negative sums are taken, each once, which
    supposes features that are not negative. Two rows that point against each other cannot be distinguished: of two
    classes, the sum decides too. Labels are repeated only where the gradient shows it clearly (`labels_in_order`).
    """

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        rows, n = head_gradient(observation), observation.knows.examples  # (classes, features)
        by_direction = n == 1 and len(rows) > 2
        order = torch.argsort(_agreement(rows) if by_direction else rows.sum(dim=1))
        return labels_in_order(order, observation, generator)

    def instead(self, observation: Observation) -> str:
        return counted_instead(observation)


def _agreement(rows: Tensor) -> Tensor:
    """Return the sum of each row's cosines with all rows.

    >>> _agreement(torch.tensor([[1.0, -1.0], [2.0, -2.0], [-3.0, 3.0]]))[2] < 0
    tensor(True)
    """
    directions = normalize(rows, dim=1)
    return directions @ directions.sum(dim=0)


@register(
    "labels",
    "minimum_rule",
    summary="classes with the most negative single entry in the last layer's gradient, repeated where it says so",
    paper=(
        "Yin, Mallya, Vahdat, Alvarez, Kautz, Molchanov: See through Gradients (GradInversion), CVPR 2021, "
        "https://arxiv.org/abs/2104.07586"
    ),
)
@dataclass(frozen=True)
class MinimumRule:
    """The n classes with the most negative entry in their row of the last layer's gradient [Yin et al., 2021].

    `SignRule` with the minimum over the features instead of the sum: an example's negative entry is less
    easily outweighed by the positive ones of the other examples. The paper takes all labels to be different. So
    does this, unless the gradient of the last layer shows clearly that one of them is repeated (`labels_in_order`).
    """

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        order = torch.argsort(head_gradient(observation).amin(dim=1))  # (classes,)
        return labels_in_order(order, observation, generator)

    def instead(self, observation: Observation) -> str:
        return counted_instead(observation)


INPUT_DRAWS = 100
"""Noise images over which the network's outputs are averaged."""
BELIEVABLE = 0.3
"""The largest distance of a count of labels from a whole number: beyond it the outputs of noise are no guide."""
MOST_PATTERNS = 2**16
"""Combinations of labels that are compared with the span of the residuals."""
CLEARER = 2.0
"""The next combination of labels must lie this many times as far from the span as the chosen one."""
LEAST_PATTERNS, MOST_GROUPS = 12, 100
"""Combinations of labels nearest to the span that are tried at least, and choices among them at most."""
MOST_EXAMPLES = 8
"""Examples beyond which no choice of combinations was ever clear."""
MOST_DISTANCE = 0.15
"""Relative distance of a residual from the span beyond which it is not one of the examples'. Measured on small CNNs
with 14 labels and X-ray-like images: true ones up to 0.04, others above 0.3 unless they are sums of true ones."""
SPREAD = 0.05
"""Standard deviation of starts around a recovered mean: equal starts would move alike."""


def labels_for_loss(labels: Labels, observation: Observation) -> Labels:
    """Return the labels part that fits the loss: itself for classes, else one for targets, inside the same wrappers."""
    kind = target_kind(observation.knows.objective)
    if kind is TargetKind.CLASSES or isinstance(labels, OracleLabels | OracleBatchLabels | RecoveredTargets):
        return labels
    part: Any = labels
    if hasattr(part, "labels"):  # a wrapper, such as a participant's
        inner = labels_for_loss(part.labels, observation)
        return replace(part, labels=inner)  # type: ignore[no-any-return] # the same wrapper
    return RecoveredTargets()


@register(
    "labels",
    "targets",
    summary="targets of a loss without classes: from the last layer, else optimised with the images",
)
@dataclass(frozen=True)
class RecoveredTargets:
    """Targets that the last layer gives, or else unknowns that start at their recovered mean.

    `rate` is relative to the solver's.
    """

    rate: float = 1.0

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        loss, tensor = observation.knows.objective, like(observation)
        outputs = noise_outputs(observation, generator)  # (...), of one example
        kind, mean = target_kind(loss), None
        if kind not in (TargetKind.CLASSES, TargetKind.PIXELS):
            mean = mean_targets(observation, outputs)
        if kind is TargetKind.SHARES and mean is not None:
            patterns = _recovered_patterns(observation, outputs, mean)
            if patterns is not None:
                return fixed_labels(patterns.to(tensor))
        noise = SPREAD * torch.randn(observation.knows.examples, *outputs.shape, generator=generator).to(tensor)
        if kind in (TargetKind.CLASSES, TargetKind.PIXELS):
            # Free logits give the probability of each class, of an example or a pixel.  # (n, classes, ...)
            unknown = Unknown(noise, rate=self.rate)
            return Bound((unknown,), lambda t: t[0].sigmoid() if t[0].shape[1] == 1 else t[0].softmax(1))
        if kind is TargetKind.SHARES:
            start = ((mean if mean is not None else torch.full_like(outputs, 0.5)) + noise).clamp(0, 1)
            unknown = Unknown(start, tensor.new_zeros(()), tensor.new_ones(()), self.rate)
        else:
            unknown = Unknown((mean if mean is not None else outputs) + noise, rate=self.rate)
        return Bound((unknown,), lambda tensors: tensors[0])


def noise_outputs(observation: Observation, generator: torch.Generator) -> Tensor:
    """Return the mean outputs of the network for noise images, at the weights before.  # (outputs, ...)"""
    network, tensor = network_of(observation), like(observation)
    noise = torch.randn(INPUT_DRAWS, *observation.knows.shape, generator=generator).to(tensor)
    with torch.no_grad():
        outputs = network([observation.before[name] for name in network.names], noise)
    return outputs.mean(0)


def mean_targets(observation: Observation, outputs: Tensor) -> Tensor | None:
    """Return the mean over the examples of their targets; None where the last layer does not give it.  # (outputs,)"""
    loss, residual = observation.knows.objective, residual_sum(observation)
    if residual is None or loss is None or not getattr(loss, "affine", False) or residual.shape != outputs.shape:
        return None
    at_zero, slope = _residuals(observation, loss, outputs)
    return (residual - at_zero) / slope


def _residuals(observation: Observation, loss: Loss, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of residuals if all targets are 0, and what it gains if all are 1.  # (outputs,) each"""
    training = observation.knows.training
    n = observation.knows.examples // observation.knows.clients
    batch = n if training is None or training.batch_size is None else min(n, training.batch_size)
    logits = outputs.expand(max(1, batch), *outputs.shape).clone().requires_grad_()
    with torch.enable_grad():
        values = [loss.value(logits, torch.full_like(logits, target)) for target in (0.0, 1.0)]
        first, last = (torch.autograd.grad(value, logits)[0].sum(0) for value in values)
    return first, last - first


def residual_sum(observation: Observation) -> Tensor | None:
    """Return the mean over the local steps of the gradient of the last layer's bias; None where it is not known."""
    try:
        _, bias = head_of(observation)
    except FedglassError:  # no dense layer, or one that is not trained
        return None
    travel = observation.knows.travel
    if bias is None or bias not in observation.update or travel is None or is_clipped(observation):
        return None
    return observation.update[bias] / -travel


def _recovered_patterns(observation: Observation, outputs: Tensor, mean: Tensor) -> Tensor | None:
    """Return the labels of each example, where they hold or not; None where they are not clear.  # (n, outputs)"""
    n = observation.knows.examples
    counts = n * mean
    whole = counts.round().clamp(0, n)
    if bool((counts - whole).abs().max() > BELIEVABLE):
        return None
    certain = (whole == 0) | (whole == n)
    if bool(certain.all()):
        return (whole / n).expand(n, -1).clone()
    if int((~certain).sum()) == 1:  # all choices are the same but for the order of the examples
        return (torch.arange(n, device=whole.device)[:, None] < whole).to(outputs)
    return _patterns_in_span(observation, outputs, whole)


def _patterns_in_span(observation: Observation, outputs: Tensor, counts: Tensor) -> Tensor | None:
    """Return n combinations of labels with these counts whose residuals lie in the span of the last layer's update."""
    n, loss = observation.knows.examples, observation.knows.objective
    assert loss is not None, "the mean cross entropy has classes"
    weight, bias = head_of(observation)
    assert bias is not None, "the mean of the targets was computed from it"
    update = torch.cat([observation.update[weight].flatten(1), observation.update[bias][:, None]], 1).cpu().double()
    if n >= min(update.shape) or n > MOST_EXAMPLES:
        return None
    basis = torch.linalg.svd(update, full_matrices=False).U[:, :n]  # (outputs, n)
    open_labels = torch.nonzero((counts > 0) & (counts < n))[:, 0].cpu()
    if 2 ** len(open_labels) > MOST_PATTERNS:
        return None
    combinations = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * len(open_labels)).view(-1, len(open_labels))
    labels = (counts > 0).cpu().double().repeat(len(combinations), 1)
    labels[:, open_labels] = combinations.double()
    at_zero, slope = (part.cpu().double() for part in _residuals(observation, loss, outputs))
    residuals = at_zero + slope * labels  # (patterns, outputs)
    distances = (residuals - residuals @ basis @ basis.T).norm(dim=1) / residuals.norm(dim=1)
    chosen = _distinct_patterns(labels, distances, counts.cpu().double(), n)
    return None if chosen is None else labels[list(chosen)].to(outputs)


def _distinct_patterns(labels: Tensor, distances: Tensor, counts: Tensor, n: int) -> tuple[int, ...] | None:
    """Return the n different combinations near the span that add up to the counts; None if two choices are as near.

    Examples of the same labels would leave the span a dimension short.
    """
    nearest = distances.argsort()[: max(LEAST_PATTERNS, 4 * n)].tolist()
    patterns = [[int(label) for label in labels[row].tolist()] for row in nearest]
    groups = itertools.islice(_adding_up(patterns, [int(count) for count in counts.tolist()], n), MOST_GROUPS)
    ranked = sorted((max(float(distances[nearest[i]]) for i in group), group) for group in groups)
    if not ranked or ranked[0][0] > MOST_DISTANCE or (len(ranked) > 1 and ranked[1][0] < CLEARER * ranked[0][0]):
        return None
    return tuple(nearest[i] for i in ranked[0][1])


def _adding_up(patterns: Sequence[Sequence[int]], counts: Sequence[int], n: int) -> Iterator[tuple[int, ...]]:
    """Yield the choices of n patterns, by their places, that add up to the counts.

    >>> list(_adding_up([[1, 0], [0, 1], [1, 1]], [1, 2], 2))
    [(1, 2)]
    """
    if n == 0:
        yield from [()] * (not any(counts))
        return
    for i, pattern in enumerate(patterns):
        missing = [count - label for count, label in zip(counts, pattern, strict=True)]
        if all(0 <= count < n for count in missing):
            for others in _adding_up(patterns[i + 1 :], missing, n - 1):
                yield (i, *(i + 1 + place for place in others))
