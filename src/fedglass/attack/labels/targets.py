"""Targets of a loss without one class for each example: known, recovered from the last layer, or optimised.

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

from fedglass.attack.forward.target import head_of, like, network_of
from fedglass.attack.labels.counts import is_clipped
from fedglass.attack.labels.given import OracleBatchLabels, OracleLabels, fixed_labels
from fedglass.attack.parts import Bound, Labels
from fedglass.core.errors import FedglassError
from fedglass.core.losses import Loss, TargetKind, target_kind
from fedglass.core.registry import register
from fedglass.core.types import Observation, Unknown

NOISE_IMAGES = 100
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
        n, kind = observation.knows.examples, target_kind(loss)
        if kind in (TargetKind.CLASSES, TargetKind.PIXELS):
            start = SPREAD * torch.randn(n, *outputs.shape, generator=generator).to(tensor)
            return Bound((Unknown(start, rate=self.rate),), _shares)
        mean = mean_targets(observation, outputs)
        if kind is TargetKind.SHARES and mean is not None:
            patterns = _recovered_patterns(observation, outputs, mean)
            if patterns is not None:
                return fixed_labels(patterns.to(tensor))
        noise = SPREAD * torch.randn(n, *outputs.shape, generator=generator).to(tensor)
        if kind is TargetKind.SHARES:
            start = ((mean if mean is not None else torch.full_like(outputs, 0.5)) + noise).clamp(0, 1)
            zero, one = tensor.new_zeros(()), tensor.new_ones(())
            return Bound((Unknown(start, zero, one, self.rate),), lambda tensors: tensors[0])
        start = (mean if mean is not None else outputs) + noise
        return Bound((Unknown(start, rate=self.rate),), lambda tensors: tensors[0])


def _shares(tensors: Any) -> Tensor:
    """Return the probability of each class, of an example or a pixel, from free logits.  # (n, classes, ...)"""
    logits: Tensor = tensors[0]
    return logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(1)


def noise_outputs(observation: Observation, generator: torch.Generator) -> Tensor:
    """Return the mean outputs of the network for noise images, at the weights before.  # (outputs, ...)"""
    network, tensor = network_of(observation), like(observation)
    noise = torch.randn(NOISE_IMAGES, *observation.knows.shape, generator=generator).to(tensor)
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
