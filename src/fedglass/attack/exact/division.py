"""Division and SPEAR: the inputs of the network from the update of the first dense layer.

Division divides the update of the weight by that of the bias, which gives the input of one example. SPEAR reads a
whole batch in front of a dense layer with ReLU, from the zeros of its gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import scipy
import torch
from torch import Tensor

from fedglass.attack.exact.dense import DenseUpdate, first_dense
from fedglass.attack.exact.method import Details, ExactSolution, SearchBudget
from fedglass.attack.exact.rows import RowRatios, fit_rank_one, stack_update, truncated_svd
from fedglass.attack.exact.sparse import Accept, ReluLayer, SparseInputs, proved_inputs, sparse_inputs
from fedglass.attack.exact.verify import Fit, ReplayableMessage, ReplayFit, best_label, fit_layer, message_of
from fedglass.core.registry import register
from fedglass.core.types import Knowledge, Observation

DIVISION_PAPER = (
    "Phong, Aono, Hayashi, Wang, Moriai: Privacy-Preserving Deep Learning via Additively Homomorphic Encryption, "
    "IEEE TIFS 2018, https://eprint.iacr.org/2017/715"
)
SPEAR_PAPER = (
    "Dimitrov, Baader, Müller, Vechev: SPEAR: Exact Gradient Inversion of Batches in Federated Learning, NeurIPS 2024, "
    "https://arxiv.org/abs/2403.03945"
)
BOUND_SLACK = 0.02
"""How far rounding may move a pixel out of its bounds, as a share of their distance."""
SCALES = 24
"""Lengths of a direction that are tried before the best is refined."""
SHORTEST = 0.02
"""The shortest one, as a share of the longest that the pixel bounds allow."""


@register(
    "exact",
    "division",
    summary="the first dense layer's weight update divided by its bias update",
    paper=DIVISION_PAPER,
)
@dataclass(frozen=True)
class Division:
    """x = U_i / v_i in every row i of the first dense layer that only one example has moved [Phong et al., 2018].

    It is exact for one example under any activation, loss factor, clipping of the whole and any number of SGD steps;
    for several examples in the rows that only one of them activates.
    """

    name: ClassVar[str] = "division"
    paper: ClassVar[str] = DIVISION_PAPER
    cost: ClassVar[float] = 0.1

    def applies(self, observation: Observation) -> str:
        layer = first_dense(observation)
        if isinstance(layer, str):
            return layer
        if layer.bias is None and observation.knows.examples > 1:
            return "the first dense layer trains no bias, which several examples need"
        return ""

    def solve(self, observation: Observation, search: SearchBudget) -> ExactSolution | None:
        layer = first_dense(observation)
        if isinstance(layer, str):
            return None
        read = _read_one if observation.knows.examples == 1 else _read_several
        return read(message_of(observation), layer)


def as_images(knows: Knowledge, inputs: Tensor) -> Tensor:
    """Return pixels within their bounds from whitened inputs of a first layer.  # (n, d) -> (n, c, h, w)"""
    return knows.whitening.unwhiten(inputs.view(-1, *knows.shape)).clamp(knows.low, knows.high).float()


def within_bounds(knows: Knowledge, inputs: Tensor) -> Tensor:
    """Mark the whitened inputs that are pictures: no pixel lies far outside of its bounds.  # (n, d) -> (n,)"""
    pixels = knows.whitening.unwhiten(inputs.view(-1, *knows.shape)).flatten(1)
    slack = BOUND_SLACK * (knows.high - knows.low)
    return ((pixels >= knows.low - slack) & (pixels <= knows.high + slack)).all(1)


@dataclass(frozen=True, eq=False)
class _Guess:
    """A candidate for the image, with its replay and the way that led to it."""

    images: Tensor  # (1, c, h, w)
    replay: ReplayFit
    how: str
    residual: float
    """The residual of the layer's update."""


def _read_one(message: ReplayableMessage, layer: DenseUpdate) -> ExactSolution | None:
    """Read the one example: in closed form, or along a direction with a length that a replay determines."""
    guesses: list[_Guess] = []
    knows = message.observation.knows
    for how, inputs, residual in _closed_forms(layer):
        guesses.append(_Guess(*message.replay_levels(as_images(knows, inputs[None])), how, residual))
        if message.verified(guesses[-1].replay.residual):
            return _solution(layer, guesses[-1], True)
    along = _along_direction(message, layer) if knows.training is not None or not _bias_tells_length(layer) else None
    if along is not None and (not guesses or message.verified(along.replay.residual)):
        return _solution(layer, along, message.verified(along.replay.residual))
    if not guesses:
        return None
    best = min(guesses, key=lambda guess: (guess.replay.residual, guess.residual))
    return _solution(layer, best, _layer_verifies(message.observation, layer, best))


def _bias_tells_length(layer: DenseUpdate) -> bool:
    """Return True if the bias moved as the weight did, so that it determines the length of the input."""
    fit = fit_rank_one(layer.stacked(pruned=True))
    return fit.scaled and fit.clean


def _solution(layer: DenseUpdate, guess: _Guess, sure: bool) -> ExactSolution:
    rows = fit_rank_one(layer.stacked(pruned=True)).votes
    details: Details = {"how": guess.how, "rows": rows, "layer_residual": guess.residual}
    residual = guess.replay.residual if math.isfinite(guess.replay.residual) else guess.residual
    return ExactSolution(guess.images, guess.replay.labels, residual, sure, details)


def _layer_verifies(observation: Observation, layer: DenseUpdate, guess: _Guess) -> bool:
    """Return True if the layer's own update verifies an image and no training is declared that could be replayed."""
    if observation.knows.training is not None or not layer.relu or layer.bias is None or layer.bias_before is None:
        return False
    sent = layer.stacked()
    inputs = observation.knows.whitening.whiten(guess.images.double()).flatten(1)
    return fit_layer(sent.matrix, inputs, layer.weight_before, layer.bias_before, sent.error, layer.after).complete


def _closed_forms(layer: DenseUpdate) -> Iterator[tuple[str, Tensor, float]]:
    """Yield inputs that the layer gives without a search, the likeliest first, each with the layer's residual."""
    for how, variant in _decay_variants(layer):
        if variant.bias is None or variant.bias_error is None:
            continue
        fit = fit_rank_one(variant.stacked(pruned=True))
        if fit.scaled:
            yield how, fit.inputs, fit.residual


def _decay_variants(layer: DenseUpdate) -> Iterator[tuple[str, DenseUpdate]]:
    """Yield the layer's update as declared, and as it is if biases, or all parameters, do not decay."""
    yield "all rows", layer
    if layer.shrunk and layer.bias is not None and layer.bias_before is not None:
        bias = layer.bias - layer.shrunk * layer.bias_before
        yield "all rows, bias without decay", replace(layer, bias=bias)
        weight = layer.weight - layer.shrunk * layer.weight_before
        yield "all rows, without decay", replace(layer, weight=weight, bias=bias)


def _along_direction(message: ReplayableMessage, layer: DenseUpdate) -> _Guess | None:
    """Return the image along the direction of the weight's update, with the length that a replay determines."""
    rank_one = fit_rank_one(stack_update(layer.weight, None, layer.weight_error, None, pruned=True))
    if not rank_one.clean:
        return None
    fits: tuple[Fit, ...] = ("nothing", "factor") if layer.bias is None else ("tensors",)
    guesses = [
        guess
        for direction in (rank_one.inputs, -rank_one.inputs)
        for fit in fits
        if (guess := _best_length(message, direction, fit, rank_one.residual)) is not None
    ]
    return min(guesses, key=lambda guess: guess.replay.residual, default=None)


def _best_length(message: ReplayableMessage, direction: Tensor, fit: Fit, residual: float) -> _Guess | None:
    """Return the image of the length that explains the message best, within the bounds of the pixels."""
    knows = message.observation.knows
    most = _longest_within_bounds(knows, direction)
    if not most > 0:
        return None
    label = best_label(message.observation, as_images(knows, most / 2 * direction[None]))
    if label is None:
        return None

    def image(length: float) -> Tensor:
        return as_images(knows, length * direction[None])

    def misfit(length: float) -> float:
        return message.replay(image(length), label, fit).residual

    length = _minimiser(misfit, SHORTEST * most, most)
    return _Guess(
        image(length), ReplayFit(misfit(length), label), f"direction, length by replay ({fit} fitted)", residual
    )


def _minimiser(misfit: Callable[[float], float], shortest: float, longest: float) -> float:
    """Return the length with the lowest misfit: the best of some lengths, refined between its neighbours."""
    lengths = torch.logspace(math.log10(shortest), math.log10(longest), SCALES, dtype=torch.float64).tolist()
    best = min(range(SCALES), key=lambda i: misfit(lengths[i]))
    low, high = lengths[max(0, best - 1)], lengths[min(SCALES - 1, best + 1)]
    optimum = scipy.optimize.minimize_scalar(
        misfit, bounds=(low, high), method="bounded", options={"xatol": 1e-8 * longest}
    )
    return float(optimum.x)


def _longest_within_bounds(knows: Knowledge, direction: Tensor) -> float:
    """Return the largest length of a direction that keeps all pixels within their bounds."""
    low, high = (bound.double().expand(knows.shape).flatten() for bound in knows.bounds())
    slack = BOUND_SLACK * (high - low)
    steps = torch.where(direction > 0, (high + slack) / direction, (low - slack) / direction)
    return float(steps[direction != 0].min())


def _read_several(message: ReplayableMessage, layer: DenseUpdate) -> ExactSolution | None:
    """Read the examples that have rows of their own: inputs on which rows agree, at most one for each example."""
    knows = message.observation.knows
    if layer.bias is None or layer.bias_error is None:
        return None
    rows = layer.ratios()
    inputs = _layer_inputs(layer, rows, knows)
    inputs = inputs[within_bounds(knows, inputs)]
    if not len(inputs):
        return None
    images, replay = message.replay_levels(as_images(knows, inputs))
    residual = replay.residual if math.isfinite(replay.residual) else rows.residual
    details: Details = {"groups": len(rows.votes), "rows": int(rows.votes.sum())}
    return ExactSolution(images, replay.labels, residual, message.verified(replay.residual), details)


def _layer_inputs(layer: DenseUpdate, rows: RowRatios, knows: Knowledge) -> Tensor:
    """Return the inputs that inactive units prove, or else those on which rows agree, at most one for each example.

    # (m, d)
    """
    sent = layer.stacked()
    factor = truncated_svd(sent, knows.examples)
    if layer.relu and layer.bias_before is not None and factor.rank == knows.examples:
        inputs = proved_inputs(sent, factor, _relu_layer(layer, knows), torch.cat([rows.inputs, rows.ratios]))
        if len(inputs):
            return inputs
    return rows.inputs[: knows.examples]


def _relu_layer(layer: DenseUpdate, knows: Knowledge) -> ReluLayer:
    assert layer.bias_before is not None, "a trained bias has a value before"
    return ReluLayer((layer.weight_before, layer.bias_before), layer.after, knows.local_steps)


@register(
    "exact",
    "spear",
    summary="a whole batch from the zeros that ReLU leaves in the first dense layer's update",
    paper=SPEAR_PAPER,
)
@dataclass(frozen=True)
class Spear:
    """All examples of a batch from the rank and the zeros of the first dense layer's update [Dimitrov et al., 2024].

    Rows that a single example has moved shorten the search. It takes about 2^b draws for b examples without such rows.
    """

    name: ClassVar[str] = "spear"
    paper: ClassVar[str] = SPEAR_PAPER
    cost: ClassVar[float] = 30.0

    def applies(self, observation: Observation) -> str:
        layer = first_dense(observation)
        if isinstance(layer, str):
            return layer
        if observation.knows.examples == 1:
            return "a single example is read by division"
        if not layer.relu:
            return "no ReLU follows the first dense layer"
        if layer.bias is None or layer.bias_before is None:
            return "the first dense layer trains no bias"
        if observation.knows.examples > min(layer.weight.shape):
            return "there are more examples than units or pixels"
        return ""

    def solve(self, observation: Observation, search: SearchBudget) -> ExactSolution | None:
        layer, knows = first_dense(observation), observation.knows
        if isinstance(layer, str) or layer.bias is None or layer.bias_before is None or layer.bias_error is None:
            return None
        message = message_of(observation)

        def accept(inputs: Tensor) -> bool:
            return message.verified(message.replay(as_images(knows, inputs)).residual)

        reading = _batch_inputs(layer, knows, search, accept)
        inputs = reading.inputs[within_bounds(knows, reading.inputs)]
        if len(reading.guesses):
            guesses = reading.guesses[within_bounds(knows, reading.guesses)]
            inputs = guesses if len(guesses) > len(inputs) else inputs
        if not len(inputs):
            return None
        images, replay = message.replay_levels(as_images(knows, inputs))
        all_read = reading.complete and len(inputs) == knows.examples
        sure = message.verified(replay.residual) or (all_read and not message.contradicts(replay.residual))
        residual = replay.residual if math.isfinite(replay.residual) else reading.residual
        return ExactSolution(images, replay.labels, residual, sure, reading.details)


def _batch_inputs(layer: DenseUpdate, knows: Knowledge, search: SearchBudget, accept: Accept) -> SparseInputs:
    """Search for the inputs of all examples; return those on which rows agree if the search finds none."""
    sent, rows = layer.stacked(), layer.ratios()
    factor = truncated_svd(sent, knows.examples)
    details: Details = {"rank": factor.rank, "groups": len(rows.inputs)}
    if factor.rank == knows.examples:
        candidates = torch.cat([rows.inputs, rows.ratios])
        sparse = sparse_inputs(sent, factor, _relu_layer(layer, knows), candidates, search, accept)
        details |= sparse.details
        if len(sparse.inputs) or len(sparse.guesses):
            return replace(sparse, details=details)
    return SparseInputs(rows.inputs[: knows.examples], rows.inputs[:0], False, rows.residual, details)
