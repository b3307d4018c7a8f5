"""Label counts: the number of examples of each class, recovered from the last layer's update.

For softmax and cross entropy the gradient of the last layer's weights, summed over the row of class k, is
sum_j (p_k(x_j) - [y_j = k]) O(x_j) / N, with O the sum of the hidden activations. Random images replace the
unknown x_j in p and O [Geng et al., 2021], or those of a participant. With a bias, no activations need be guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.forward.target import head_of, like, network_of, step_length
from fedglass.attack.labels.given import fixed_labels
from fedglass.attack.parts import Bound
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact, refusal
from fedglass.core.registry import register
from fedglass.core.text import DLFA
from fedglass.core.types import Observation

LARGEST_COUNT = 2.0**40
"""Counts beyond this carry no information; clamped, they can be added up without overflow."""


def round_to_sum(counts: Tensor, total: int) -> Tensor:
    """Round counts to whole numbers of the given sum, none negative, as DLFA's release does [Dimitrov et al., 2022].

    Rounded down and clamped at zero, then one more for the largest remainders, or one less for positive counts
    with the smallest remainders, until the sum is right.

    >>> round_to_sum(torch.tensor([1.6, 0.7, -0.2]), 3)
    tensor([2, 1, 0])
    >>> round_to_sum(torch.tensor([2.1, 1.9]), 2)
    tensor([1, 1])
    """
    counts = counts.detach().cpu().double().clamp(-LARGEST_COUNT, LARGEST_COUNT)
    rounded = counts.floor().clamp(min=0).long()
    while (missing := total - int(rounded.sum())) != 0:
        remainder = counts - rounded
        open_rows = torch.arange(len(rounded)) if missing > 0 else rounded.nonzero().flatten()
        sign = 1 if missing > 0 else -1
        # As many full turns over all classes at once as fit: they do not change the order of the remainders.
        turns = abs(missing) // len(open_rows)
        if missing < 0:
            turns = min(turns, int(rounded[open_rows].min()))
        if turns:
            rounded[open_rows] += sign * turns
            continue
        order = remainder[open_rows].argsort(descending=missing > 0, stable=True)
        rounded[open_rows[order[: abs(missing)]]] += sign
    return rounded


RANDOM_IMAGES = 3000
"""Number of random images that replace the client's, as in DLFA's release."""
CHUNK = 500
"""Number of them in memory at once."""
GENG = (
    "Geng, Mou, Li, Li, Beyan, Decker, Rong: Towards General Deep Leakage in Federated Learning, 2021, "
    "https://arxiv.org/abs/2110.09074"
)


class Counts:
    """Base of label counts from the gradient of the last layer's weights."""

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.SIZE})

    def check(self, observation: Observation) -> None:
        """Refuse what `bind` would refuse of this network, without its work."""
        required_steps(observation)
        accumulated_head_gradient(observation)


@register("labels", "counts_before", summary="label counts from the last layer, at the weights before", paper=GENG)
@dataclass(frozen=True)
class CountsBefore(Counts):
    """Counts with p and O at the weights before training [Geng et al., 2021]: exact in the mean for FedSGD."""

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        return _bind(observation, generator, lambda steps: [0.0])


@register("labels", "counts_after", summary="label counts from the last layer, at the weights after", paper=GENG)
@dataclass(frozen=True)
class CountsAfter(Counts):
    """Counts with p and O at the weights after training; DLFA's release takes the point (T - 1) / T of the way."""

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        return _bind(observation, generator, lambda steps: [1.0])


@register(
    "labels",
    "interpolated_counts",
    summary="label counts from the last layer, averaged over the way from before to after",
    paper=DLFA,
)
@dataclass(frozen=True)
class InterpolatedCounts(Counts):
    """Counts with p and O moved linearly from the weights before to those after [Dimitrov et al., 2022, Sec. 4.5].

    N_k = mean_i (N p_i - N dW_k / (T O_i)) with coefficient i / T, i = 0..T-1, from the server's to the client's
    weights; the paper prints the coefficients the other way round, its release has them so.
    """

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        return _bind(observation, generator, lambda steps: [i / steps for i in range(steps)])


def _bind(observation: Observation, generator: torch.Generator, shares: Callable[[int], list[float]]) -> Bound:
    steps = required_steps(observation)
    counts = raw_counts(observation, generator, shares(steps), steps)
    return labels_from_counts(counts, observation, generator)


def labels_from_counts(counts: Tensor, observation: Observation, generator: torch.Generator) -> Bound:
    """Round counts and return the labels in random order: the batch of each label is not known.  # (classes,)"""
    n = observation.knows.examples
    rounded = round_to_sum(unsmoothed(counts, observation), n)
    labels = torch.repeat_interleave(torch.arange(len(rounded)), rounded)
    return fixed_labels(labels[torch.randperm(n, generator=generator)].to(like(observation).device))


def required_steps(observation: Observation) -> int:
    """Return T, or refuse to count where it is not known."""
    steps = observation.knows.local_steps
    if steps is None:
        raise refusal("Counting labels", [Fact.SIZE])
    return steps


def raw_counts(observation: Observation, generator: torch.Generator, shares: Sequence[float], steps: int) -> Tensor:
    """Compute counts before rounding, averaged over points of the way from before (0) to after (1).  # (classes,)"""
    before = head_statistics(observation, generator.clone_state(), 0.0)
    ends = before, head_statistics(observation, generator, 1.0)
    return mean_counts(observation, ends, shares, steps, "random images")


def mean_counts(
    observation: Observation,
    ends: Iterable[tuple[Tensor, Tensor]],
    shares: Sequence[float],
    steps: int,
    images: str,
) -> Tensor:
    """Return the mean of N p - N dW / (T O) over points of the way, from softmax p and activations O at its ends.

    # (classes,) and () at both ends -> (classes,)
    """
    ((p0, o0), (p1, o1)), n = ends, observation.knows.examples
    row = accumulated_head_gradient(observation).sum(1)  # (classes,)
    counts_by_share = [n * torch.lerp(p0, p1, s) - n * row / (steps * torch.lerp(o0, o1, s)) for s in shares]
    counts = torch.stack(counts_by_share).mean(0)
    if not torch.isfinite(counts).all():
        raise UsageError(
            "Label counts cannot be recovered from this message: the last hidden activations add up to zero on "
            f"{images}. Choose another labels part, such as sign_rule."
        )
    return counts


def accumulated_head_gradient(observation: Observation) -> Tensor:
    """Return the sum over local steps of the last layer's gradient, (before - after) / lr.  # (classes, features)

    With momentum, the gradient is taken to be the same in all steps.
    """
    length = step_length(observation)
    if length is None or is_clipped(observation):
        raise refusal("Counting labels", [Fact.SIZE])
    return observation.update[head_of(observation)[0]] / -(length * batch_factor(observation))


def batch_factor(observation: Observation) -> float:
    """Return how many mean gradients the gradient of a loss is: those of a batch where the loss is summed over it."""
    if getattr(observation.knows.objective, "reduction", "mean") == "mean":
        return 1.0
    knows = observation.knows
    examples = max(1, knows.examples // knows.clients)
    size = None if knows.training is None else knows.training.batch_size
    return float(examples if size is None else min(size, examples))


def mean_travel(observation: Observation) -> float | None:
    """Return how far an update travels along a mean gradient of size 1; None where it is not known."""
    travel = observation.knows.travel
    return None if travel is None else travel * batch_factor(observation)


def smoothing_of(observation: Observation) -> float:
    """Return the label smoothing of the declared training."""
    training, loss = observation.knows.training, observation.knows.objective
    if loss is not None:
        return float(getattr(loss, "label_smoothing", 0.0))
    return 0.0 if training is None else training.label_smoothing


def is_clipped(observation: Observation) -> bool:
    """Check whether the client clips its gradients, so that the message does not show their size."""
    training = observation.knows.training
    return training is not None and training.clip is not None


def unsmoothed(counts: Tensor, observation: Observation) -> Tensor:
    """Undo the client's label smoothing, which spreads a share of each label evenly over all classes, and its weights.

    Weights of classes scale the counts: the mean is taken over the weights.
    """
    smoothing, weights = smoothing_of(observation), getattr(observation.knows.objective, "weight", None)
    if smoothing:
        spread = smoothing * observation.knows.examples / len(counts)
        counts = (counts - spread) / (1 - smoothing)
    if weights is None:
        return counts
    shares = counts.clamp(min=0) / counts.new_tensor(weights).clamp(min=torch.finfo(counts.dtype).tiny)
    return shares * (observation.knows.examples / shares.sum())


def head_statistics(
    observation: Observation, generator: torch.Generator, share: float, images: int = RANDOM_IMAGES
) -> tuple[Tensor, Tensor]:
    """Return mean softmax and mean sum of the last hidden activations over random images.  # (classes,), ()"""
    sizes, shape = [min(CHUNK, images)] * max(1, images // CHUNK), observation.knows.shape
    return _mean_statistics(observation, share, (torch.randn(n, *shape, generator=generator) for n in sizes))


def _mean_statistics(observation: Observation, share: float, batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean softmax and mean sum of the last hidden activations over whitened images.  # (classes,), ()"""
    network = network_of(observation)
    weights = [observation.before[name] + share * observation.update[name] for name in network.names]
    with torch.no_grad():
        parts = [network.features(weights, batch.to(weights[0])) for batch in batches]
    probability = torch.cat([logits for logits, _ in parts]).softmax(-1).mean(0)
    activation = torch.cat([hidden for _, hidden in parts]).flatten(1).sum(1).mean()
    return probability, activation


@register("labels", "bias_counts", summary="label counts from the last layer's bias, at the weights before", paper=GENG)
@dataclass(frozen=True)
class BiasCounts(Counts):
    """N_k = N (p_k - b_k), b the mean gradient of the last layer's bias and p the mean softmax at the weights before.

    For softmax and cross entropy b_k is the mean of p_k(x_j) - [y_j = k], without the hidden activations that
    `CountsBefore` has to guess; random images replace the x_j in p, as there [Geng et al., 2021]. The
    "bias-corrected" strategy of the Breaching framework (unpublished, after Wainakh et al., 2022) assigns labels by
    a guessed impact of one example instead, and miscounts where the network's softmax is even: it is not followed.
    """

    def check(self, observation: Observation) -> None:
        mean_bias_gradient(observation)

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        n, gradient = observation.knows.examples, mean_bias_gradient(observation)
        probability, _ = head_statistics(observation, generator, 0.0)
        return labels_from_counts(n * (probability - gradient), observation, generator)


def mean_bias_gradient(observation: Observation) -> Tensor:
    """Return the mean over the local steps of the gradient of the last layer's bias.  # (classes,)"""
    _, bias = head_of(observation)
    if bias is None:
        raise UsageError(
            "Label counts from the bias need a last layer with a bias, but this network's has none: choose another "
            "labels part, such as minimum_rule."
        )
    travel = mean_travel(observation)
    if travel is None or is_clipped(observation):
        raise refusal("Counting labels", [Fact.SIZE])
    return observation.update[bias] / -travel


MA = (
    "Ma, Sun, Cui, Li, Guan, Liu: Instance-wise Batch Label Restoration via Gradients in Federated Learning, "
    "ICLR 2023, https://openreview.net/forum?id=FIrQfNSOoTr"
)


@register("labels", "instance_counts", summary="label counts from the last layer's weights and bias (iLRG)", paper=MA)
@dataclass(frozen=True)
class InstanceCounts(BiasCounts):
    """Counts n that solve sum_j n_j = N and sum_j p_j[i] n_j - n_i = N b_i for every class i [Ma et al., 2023].

    b is the mean gradient of the last layer's bias and G that of its weights; e_j = G_j / b_j estimates the features
    of the examples of class j, and p_j = softmax(W e_j + bias) the network's answer to them. Solved by least squares,
    then rounded to the right sum: the release's rounding is wrong where the rounded counts add up to less. Of several
    local steps the mean is taken for one gradient.
    """

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        n, bias_gradient = observation.knows.examples, mean_bias_gradient(observation)
        counts = solve_counts(predictions_by_class(observation, bias_gradient), bias_gradient.cpu().double(), n)
        return labels_from_counts(counts, observation, generator)


def predictions_by_class(observation: Observation, bias_gradient: Tensor) -> Tensor:
    """Return p_j, the softmax for the examples of class j, one row for each class.  # (classes, classes), double"""
    weight, bias = head_of(observation)
    assert bias is not None, "the gradient of the bias was computed before"
    travel = mean_travel(observation)
    assert travel is not None, "the size of the bias's gradient was known before"
    gradient = observation.update[weight].cpu().double() / -travel  # (classes, features)
    features = gradient / bias_gradient.cpu().double()[:, None]
    # A class without any gradient shows nothing of its examples' features: the median of all classes is used.
    sound = features.isfinite().all(1)
    middle = features[sound].median(0).values if bool(sound.any()) else torch.zeros_like(features[0])
    features = torch.where(sound[:, None], features, middle)
    head = (observation.before[name].cpu().double() for name in (weight, bias))
    logits = F.linear(features, *head)
    return logits.softmax(-1)


def solve_counts(answers: Tensor, bias_gradient: Tensor, examples: int) -> Tensor:
    """Return the counts before rounding, none of them negative.  # (classes, classes), (classes,) -> (classes,)

    >>> answers = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    >>> gradient = torch.tensor([1 / 3 - 1 / 2, 1 / 3 - 1 / 2, 1 / 3], dtype=torch.float64)  # labels 0 and 1
    >>> solve_counts(answers, gradient, 2).round(decimals=6) + 0.0
    tensor([1., 1., 0.], dtype=torch.float64)
    """
    classes = len(answers)
    rows = torch.cat([answers.new_ones(1, classes), answers.T - torch.eye(classes).to(answers)])
    right = torch.cat([bias_gradient.new_ones(1), bias_gradient]) * examples
    counts: Tensor = torch.linalg.lstsq(rows.cpu(), right.cpu()[:, None], driver="gelsd").solution[:, 0]
    return counts.clamp(min=0)


@register("labels", "own_counts", summary="label counts from the last layer, a participant's own images standing in")
@dataclass(frozen=True)
class OwnCounts(Counts):
    """`InterpolatedCounts` with the adversary's own images instead of noise, where it is a participant.

    Mean softmax p and mean sum of activations O are then those of pictures like the unknown ones; noise excites the
    hidden units more than photographs do, which makes every count too small. No bias is needed.
    """

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        contribution = observation.own
        if contribution is None or not len(contribution.labels):
            return InterpolatedCounts().bind(observation, generator)
        steps = required_steps(observation)
        inputs = observation.knows.whitening.whiten(contribution.images.to(like(observation)))
        ends = [_mean_statistics(observation, share, [inputs]) for share in (0.0, 1.0)]
        shares = [i / steps for i in range(steps)]
        counts = mean_counts(observation, ends, shares, steps, "the adversary's own images")
        return labels_from_counts(counts, observation, generator)


@register("labels", "last_layer", summary="instance_counts where the last layer has a bias, else own_counts")
@dataclass(frozen=True)
class LastLayerCounts(Counts):
    """`InstanceCounts` where the last layer has a bias, `OwnCounts` where it has none."""

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        _, bias = head_of(observation)
        part = OwnCounts() if bias is None else InstanceCounts()
        return part.bind(observation, generator)
