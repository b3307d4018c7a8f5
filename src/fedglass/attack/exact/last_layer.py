"""The examples of a batch by two readings of dense layers: peeling a ReLU layer, and chaining back from the last layer.

Peeling reads the inputs of a ReLU layer, one example after another. A unit that only one example activates has that
example's input as the ratio U_i / v_i of its row; other ratios are mixtures. The head behind the layer distinguishes
them: from an input z and a label y it gives the gradient d(z, y) at the layer's outputs, and U = s D Z has only the
true ones in its column space. Inputs that were read are subtracted from the update, which leaves more rows to single
examples, until all are read.

The chain needs fewer examples than classes. The last layer's update is s G'H with the features H and
G = softmax(H W' + c) - Y. Its column space is known, so that G = M C with a small unknown matrix M; M must give the
features that give M, which a few Newton steps solve. From the features and G the gradient at every dense layer before
follows, as far as its activation can be inverted, and from it that layer's inputs by least squares. No unit needs to be
active for only one example, and no ReLU is needed.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import scipy
import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.exact.dense import DenseUpdate, dense_layers, first_dense
from fedglass.attack.exact.exact import FOUND_NOTHING, Details, ExactSolution, SearchBudget, costs
from fedglass.attack.exact.split_network import (
    SAME_EXAMPLE,
    Cut,
    Features,
    cut_at,
    gradients_at,
    head_gradients,
    refine_inputs,
    verify_features,
)
from fedglass.attack.exact.update_matrix import truncated_svd, with_ones
from fedglass.attack.exact.verify import has_classes, message_of, needs_classes
from fedglass.attack.labels.counts import (
    InstanceCounts,
    is_clipped,
    mean_travel,
    round_to_sum,
    smoothing_of,
    unsmoothed,
)
from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.core.types import Observation

MOST_DISTANCE = 1e-2
"""Relative distance of a gradient from the update's column space up to which it may be a true one.

Measured on CIFAR with a ReLU CNN: true ones below 1e-6 at a learning rate of 0.1 and below 1e-3 at 0.001, mixtures
above 0.05."""
TIMES_BEST = 30.0
"""Other candidates may have this many times the best distance of a round: a faint mixture comes later, or cleaner."""
CERTAIN_DISTANCE = 1e-5
"""A distance that is always accepted."""
FAINT = 1e-6
"""Gradients below this share of the largest have lost their direction to rounding."""


def peeled_inputs(observation: Observation, layer: DenseUpdate) -> Features | None:
    """Return the inputs of a ReLU layer, of as many examples as can be read; None if there are none."""
    cut, count = cut_at(observation, layer.name), observation.knows.examples
    if not layer.sent.biased or not layer.relu or not cut.headed():
        return None
    sent = layer.sent.matrix  # (h, d + 1)
    inputs, labels = sent.new_zeros(0, sent.shape[1] - 1), torch.zeros(0, dtype=torch.int64)
    factors, remainder = sent.new_zeros(0), sent
    while len(inputs) < count:
        more = _peel(observation, layer, cut, remainder, count - len(inputs), inputs)
        if more is None:
            break
        inputs, labels, factors = (torch.cat(parts) for parts in zip((inputs, labels, factors), more, strict=True))
        gradients = gradients_at(observation, layer, cut, inputs, labels)  # (n, h)
        remainder = sent - factors.median() * gradients.T @ with_ones(inputs)
    if len(inputs) == 0:
        return None
    if len(inputs) == count:
        inputs = refine_inputs(observation, layer, cut, inputs, labels)
    return verify_features(observation, layer, cut, inputs, labels)


def _peel(
    observation: Observation, layer: DenseUpdate, cut: Cut, remainder: Tensor, missing: int, read_before: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Read the rows of a remainder: new inputs, their labels, and the factors from gradient to update."""
    bias = remainder[:, -1]
    rows = torch.nonzero(bias.abs() > torch.maximum(3 * layer.sent.error[:, -1], 1e-6 * bias.abs().max()))[:, 0]
    if len(rows) == 0:
        return None
    ratios = remainder[rows, :-1] / bias[rows, None]
    gradients = head_gradients(observation, layer, cut, ratios)  # (m, k, h)
    basis = torch.linalg.eigh(remainder @ remainder.T).eigenvectors[:, -missing:]  # (h, missing)
    sizes = gradients.norm(dim=2)  # (m, k)
    factors = bias[rows, None] / gradients[torch.arange(len(rows)), :, rows]
    # A huge mixture saturates the softmax, which leaves no gradient; and every step goes against its gradient.
    possible = (sizes > FAINT * sizes.max()) & (factors < 0)
    distances = (gradients - gradients @ basis @ basis.T).norm(dim=2) / sizes
    best, labels = torch.where(possible, distances, torch.inf).min(1)
    chosen = _distinct_candidates(ratios, best, missing, read_before)
    return (ratios[chosen], labels[chosen], factors[chosen, labels[chosen]]) if chosen else None


def _distinct_candidates(ratios: Tensor, distances: Tensor, missing: int, read_before: Tensor) -> list[int]:
    """Return the rows of the best candidates, one for each example that was not read before."""
    most = min(MOST_DISTANCE, max(CERTAIN_DISTANCE, TIMES_BEST * float(distances.min())))
    chosen: list[int] = []
    for row in distances.argsort().tolist():
        if len(chosen) == missing or float(distances[row]) > most:
            break
        candidate = ratios[row]
        if not bool(((read_before - candidate).norm(dim=1) <= SAME_EXAMPLE * candidate.norm()).any()):
            chosen.append(row)
            read_before = torch.cat([read_before, candidate[None]])
    return chosen


@register(
    "exact",
    "peeling",
    summary="the examples of a batch one after another where a ReLU layer sees the pixels, each checked by the head",
)
@costs(1.0)
def peeling(observation: Observation, search: SearchBudget) -> ExactSolution | str:
    """Read a batch of a network that feeds its pixels to a dense ReLU layer, example after example."""
    layer = first_dense(observation)
    if isinstance(layer, str):
        return layer
    if observation.knows.examples == 1:
        return "division reads a single example"
    if not has_classes(observation):
        return needs_classes(observation)
    if not layer.relu or not layer.sent.biased:
        return "no ReLU follows a first dense layer with a bias"
    features = peeled_inputs(observation, layer)
    return FOUND_NOTHING if features is None else solution_from_pixels(observation, features)


def solution_from_pixels(observation: Observation, features: Features) -> ExactSolution:
    """Return the images that have these inputs as whitened pixels."""
    knows = observation.knows
    images = knows.whitening.unwhiten(features.inputs.view(-1, *knows.shape)).float()
    message = message_of(observation)
    residual, _ = message.replay(images, features.labels)
    details: Details = {"examples_read": len(images), "head_residual": features.residual}
    return ExactSolution(images, features.labels, residual, message.verified(residual), details)


STARTS = 10
"""Starts of the search for M; if all labels differ the first one converges (24 of 24 on CIFAR networks)."""
LOGIT_SPREAD = 0.3
"""Standard deviation of the start logits that separate examples of one label: that of a fresh network."""
CONVERGED = 1e-6
"""Misfit of the equations at which the search ends: rounding of float32 at a learning rate of 0.1."""
EXACT_WITHIN = 10.0
"""The equations are exact if the last layer's update has at most this many times its rounding outside of the examples'
own rank. On LeNet and a small CNN it was 0.5 to 0.7 after one step, 17 and more after five, 400 at noise of 0.1 %."""
EVALUATIONS = 200
"""Most evaluations of one start; those that converge take 10 to 60."""
OPEN_RELU = 1e-5
"""Features above this share of the largest are behind an open ReLU; the others are rounding."""

Slope = Callable[[Tensor], Tensor]
ACTIVATIONS: tuple[tuple[Callable[[Tensor], Tensor], Slope], ...] = (
    (F.relu, lambda y: (y > OPEN_RELU * y.abs().max()).to(y)),
    (torch.tanh, lambda y: 1 - y.square()),
    (torch.sigmoid, lambda y: y * (1 - y)),
    (F.leaky_relu, lambda y: torch.where(y > 0, 1.0, 0.01).to(y)),
    (F.elu, lambda y: torch.where(y > 0, torch.ones_like(y), y + 1)),
    (lambda a: a, torch.ones_like),
)
"""Functions of one number, and their slopes as functions of their value."""


def chained_inputs(observation: Observation, layers: Sequence[DenseUpdate], search: SearchBudget) -> Features | None:
    """Return the inputs of the first of these layers from the last of them, which gives the logits.

    Return None if a layer between has no invertible activation, or if there are too many examples.
    """
    last = _last_inputs(observation, layers[-1], search)
    if last is None:
        return None
    inputs, labels, factor = last
    # The gradient at the logits (n, k), and from it that at each layer before.
    gradient = (with_ones(inputs) @ layers[-1].before.T).softmax(1) - _targets(observation, labels)
    for layer, after in zip(reversed(layers[:-1]), reversed(layers[1:]), strict=True):
        slope = _slope_between(cut_at(observation, layer.name), after.name)
        if slope is None:
            return None
        gradient = gradient @ after.weight_before * slope(inputs)  # (n, h)
        solved = torch.linalg.pinv(gradient.T) @ layer.sent.matrix / factor
        inputs = solved[:, :-1] / solved[:, -1:]
    cut = cut_at(observation, layers[0].name)
    if len(layers) > 1:
        inputs = refine_inputs(observation, layers[0], cut, inputs, labels)
    return verify_features(observation, layers[0], cut, inputs, labels)


def _last_inputs(
    observation: Observation, layer: DenseUpdate, search: SearchBudget
) -> tuple[Tensor, Tensor, float] | None:
    """Return the features of all examples, their labels, and the factor between gradient and update."""
    count, travel = observation.knows.examples, mean_travel(observation)
    if not 1 <= count < observation.knows.classes or travel is None or not layer.sent.biased:
        return None
    if is_clipped(observation) or not _gives_logits(observation, layer):
        return None
    _, values, _, excess_noise = truncated_svd(layer.sent, count)
    if len(values) < count:  # the message has fewer equations, or more noise, than examples have unknowns
        return None
    # If the equations hold only roughly, other starts end no better.
    starts = STARTS if excess_noise < EXACT_WITHIN else 1
    factor = -travel / count
    begun, best = time.monotonic(), (torch.inf, torch.zeros(0), torch.zeros(0))
    for trial, labels in itertools.product(range(starts), _label_guesses(observation, layer, factor, search)):
        misfit, features = _solve_logits(observation, layer, labels, factor, trial > 0, search)
        if misfit < best[0]:
            best = (misfit, features, labels)
        if best[0] < CONVERGED or time.monotonic() - begun > search.seconds:
            break
    return best[1], best[2], factor


def _solve_logits(
    observation: Observation, layer: DenseUpdate, labels: Tensor, factor: float, spread: bool, search: SearchBudget
) -> tuple[float, Tensor]:
    """Return the features that solve the last layer's equations from one start, after the misfit that they leave.

    The unknown is N = M^-1: the features with ones, [H | 1], are N'B.  # (b, d)
    """
    sent, count, targets = layer.sent.matrix, len(labels), _targets(observation, labels)  # Y, (b, k)
    basis = torch.linalg.svd(sent, full_matrices=False).U[:, :count].T  # C, (b, k)
    inner = basis @ sent / factor  # B = C U / s, (b, d + 1)
    answers = layer.before @ inner.T  # Q = [W | c] B', (k, b): the logits are Q N

    def misfit(flat: Tensor) -> Tensor:
        """Return the residuals of all equations for a guess of N."""
        unknown = flat.view(count, count)
        gradient = (answers @ unknown).softmax(0).T - targets  # (b, k)
        inside = gradient @ basis.T  # M
        outside = gradient - inside @ basis
        inverse = inside @ unknown - torch.eye(count, dtype=flat.dtype)
        return torch.cat([outside.flatten(), inverse.flatten(), inner[:, -1] @ unknown - 1])

    repeated = spread or len(set(labels.tolist())) < len(labels)
    noise = torch.randn(count, len(layer.bias_before), generator=search.generator, dtype=torch.float64)
    logits = layer.bias_before + LOGIT_SPREAD * repeated * noise
    start = torch.linalg.pinv((logits.softmax(1) - targets) @ basis.T).flatten()
    slopes = torch.func.jacrev(misfit)
    optimum = scipy.optimize.least_squares(
        lambda x: misfit(torch.from_numpy(x)).numpy(),
        start.numpy(),
        jac=lambda x: slopes(torch.from_numpy(x)).numpy(),
        method="lm",
        max_nfev=EVALUATIONS,
    )
    features = (torch.from_numpy(optimum.x).view(count, count).T @ inner)[:, :-1]
    return float((2 * optimum.cost) ** 0.5), features


def _label_guesses(observation: Observation, layer: DenseUpdate, factor: float, search: SearchBudget) -> list[Tensor]:
    """Return guesses of all labels, in any order: as for an untrained network, and by the logits of features."""
    count = observation.knows.examples
    counts = unsmoothed(count * layer.bias_before.softmax(0) - layer.sent.matrix[:, -1] / factor, observation)
    first = torch.repeat_interleave(torch.arange(len(counts)), round_to_sum(counts, count))
    try:
        second = InstanceCounts().bind(observation, search.generator).decode([]).sort().values
    except UsageError:
        return [first]
    return [first] if torch.equal(first, second) else [first, second]


def _gives_logits(observation: Observation, layer: DenseUpdate) -> bool:
    """Return True if the layer's outputs are the logits themselves."""
    cut = cut_at(observation, layer.name)
    outputs = torch.linspace(-1, 1, 2 * len(layer.weight_before), dtype=torch.float64).view(2, -1)
    return cut.headed() and torch.equal(cut.head(outputs), outputs)


def _slope_between(cut: Cut, after: str) -> Slope | None:
    """Return the slope of the activation between two layers as a function of its value; None if it is unknown."""
    units = cut.model.get_submodule(cut.layer).get_parameter("weight").shape[0]
    outputs = torch.linspace(-4, 4, 2 * units, dtype=torch.float64).view(2, -1).flip(0)
    reached = cut.between(outputs, after)
    matches = (
        slope for act, slope in ACTIVATIONS if reached.shape == outputs.shape and torch.allclose(act(outputs), reached)
    )
    return next(matches, None)


def _targets(observation: Observation, labels: Tensor) -> Tensor:
    smoothing, classes = smoothing_of(observation), observation.knows.classes
    return (1 - smoothing) * F.one_hot(labels, classes).double() + smoothing / classes


@register(
    "exact",
    "last_layer",
    summary="the examples of a batch smaller than the number of classes, from the last dense layer back to the pixels",
)
@costs(3.0)
def last_layer(observation: Observation, search: SearchBudget) -> ExactSolution | str:
    """Read a batch from the last layer of a network of dense layers."""
    layer, knows = first_dense(observation), observation.knows
    if isinstance(layer, str):
        return f"{layer}, so that the last layer's features give no pixels"
    if not has_classes(observation):
        return needs_classes(observation)
    if not knows.examples < knows.classes:
        return f"{knows.examples} examples are not fewer than the {knows.classes} classes"
    if knows.examples == 1:
        return "division reads a single example"
    features = chained_inputs(observation, dense_layers(observation), search)
    return FOUND_NOTHING if features is None else solution_from_pixels(observation, features)
