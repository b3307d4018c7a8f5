"""Division and SPEAR: the inputs of the network from the update of the first dense layer.

Division divides the update of the weight by that of the bias, which gives the input of one example. SPEAR reads a
whole batch in front of a dense layer with ReLU, from the zeros of its gradients.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import scipy
import torch
from torch import Tensor

from fedglass.attack.exact.dense import DenseUpdate, first_dense
from fedglass.attack.exact.exact import FOUND_NOTHING, Details, ExactSolution, SearchBudget, costs
from fedglass.attack.exact.spear import InputSearch
from fedglass.attack.exact.update_matrix import fit_rank_one, row_ratios
from fedglass.attack.exact.verify import (
    BOUND_SLACK,
    Fit,
    ReplayableMessage,
    as_images,
    fit_layer,
    has_classes,
    label_guesses,
    message_of,
    within_bounds,
)
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
@costs(0.1)
def division(observation: Observation, search: SearchBudget) -> ExactSolution | str:
    """Read x = U_i / v_i in every row i of the first dense layer that only one example has moved [Phong et al., 2018].

    It is exact for one example under any activation, loss factor, clipping of the whole and any number of SGD steps;
    for several examples in the rows that only one of them activates.
    """
    layer = first_dense(observation)
    if isinstance(layer, str):
        return layer
    if not layer.sent.biased and observation.knows.examples > 1:
        return "the first dense layer trains no bias, which several examples need"
    read = _read_one if observation.knows.examples == 1 else _read_several
    return read(message_of(observation), layer) or FOUND_NOTHING


def _read_one(message: ReplayableMessage, layer: DenseUpdate) -> ExactSolution | None:
    """Read the one example: in closed form, or along a direction with a length that a replay determines."""
    knows, whole = message.observation.knows, fit_rank_one(layer.sent.unpruned())

    def guess(how: str, images: Tensor, residual: float, labels: Tensor, layer_residual: float) -> ExactSolution:
        details: Details = {"how": how, "rows": whole.votes, "layer_residual": layer_residual}
        return ExactSolution(images, labels, residual, message.verified(residual), details)

    guesses: list[ExactSolution] = []
    for how, inputs, residual in _closed_forms(layer):
        guesses.append(guess(how, *message.replay_levels(as_images(knows, inputs[None])), residual))
        if guesses[-1].explains:
            return guesses[-1]
    # The bias determines the length of the input if it moved as the weight did.
    if knows.training is not None or not (whole.scaled and whole.clean):
        lengths = [guess(*tried) for tried in _along_direction(message, layer)]
        along = min(lengths, key=lambda tried: tried.residual, default=None)
        if along is not None and (not guesses or along.explains):
            return _with_finite_residual(along)
    if not guesses:
        return None
    best = min(guesses, key=lambda guess: (guess.residual, float(guess.details["layer_residual"])))
    return _with_finite_residual(replace(best, explains=_layer_verifies(message.observation, layer, best.images)))


def _with_finite_residual(guess: ExactSolution) -> ExactSolution:
    """Return the guess with the residual of the layer if there is none of a replay."""
    return guess if math.isfinite(guess.residual) else replace(guess, residual=float(guess.details["layer_residual"]))


def _layer_verifies(observation: Observation, layer: DenseUpdate, images: Tensor) -> bool:
    """Return True if the layer's own update verifies an image and no training is declared that could be replayed."""
    replayable = observation.knows.training is not None and has_classes(observation)
    if replayable or not layer.relu or not layer.sent.biased:
        return False
    return fit_layer(layer, observation.knows.whitening.whiten(images.double()).flatten(1))[2]


def _closed_forms(layer: DenseUpdate) -> Iterator[tuple[str, Tensor, float]]:
    """Yield inputs that the layer gives without a search, the likeliest first, each with the layer's residual.

    The update is taken as declared, and as it is if biases, or all parameters, do not decay.
    """
    if not layer.sent.biased:
        return
    matrix, decay = layer.sent.matrix, layer.shrunk * layer.before
    variants = {"all rows": matrix}
    if layer.shrunk:
        variants["all rows, bias without decay"] = torch.cat([matrix[:, :-1], (matrix - decay)[:, -1:]], 1)
        variants["all rows, without decay"] = matrix - decay
    for how, variant in variants.items():
        fit = fit_rank_one(replace(layer.sent, matrix=variant).unpruned())
        if fit.scaled:
            yield how, fit.inputs, fit.residual


def _along_direction(
    message: ReplayableMessage, layer: DenseUpdate
) -> Iterator[tuple[str, Tensor, float, Tensor, float]]:
    """Yield images along the direction of the weight's update, each of the length that explains the message best.

    With each come the way to it, the residual and the labels of its replay, and the residual of the layer.
    """
    rank_one, knows = fit_rank_one(layer.sent.without_bias().unpruned()), message.observation.knows
    fits: tuple[Fit, ...] = ("tensors",) if layer.sent.biased else ("nothing", "factor")
    for direction, fit in itertools.product((rank_one.inputs, -rank_one.inputs), fits if rank_one.clean else ()):
        most = _longest_within_bounds(knows, direction)
        guesses = label_guesses(message.observation, as_images(knows, most / 2 * direction[None])) if most > 0 else []
        if not guesses:
            continue
        labels = guesses[0]

        def image(length: float, direction: Tensor = direction) -> Tensor:
            return as_images(knows, length * direction[None])

        def misfit(length: float, fit: Fit = fit, labels: Tensor = labels) -> float:
            return message.replay(image(length), labels, fit)[0]

        length = _minimiser(misfit, SHORTEST * most, most)
        how = f"direction, length by replay ({fit} fitted)"
        yield how, image(length), misfit(length), labels, rank_one.residual


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
    knows, rows = message.observation.knows, row_ratios(layer.sent)
    inputs, proved = rows.inputs[: knows.examples], InputSearch(layer, knows)
    if layer.relu and proved.rank == knows.examples:
        proved.prove(torch.cat([rows.inputs, rows.ratios]))
        inputs = proved.inputs if len(proved.inputs) else inputs
    inputs = inputs[within_bounds(knows, inputs)]
    if not len(inputs):
        return None
    images, residual, labels = message.replay_levels(as_images(knows, inputs))
    details: Details = {"groups": len(rows.votes), "rows": int(rows.votes.sum())}
    shown = residual if math.isfinite(residual) else rows.residual
    return ExactSolution(images, labels, shown, message.verified(residual), details)


@register(
    "exact",
    "spear",
    summary="a whole batch from the zeros that ReLU leaves in the first dense layer's update",
    paper=SPEAR_PAPER,
)
@costs(30.0)
def spear(observation: Observation, search: SearchBudget) -> ExactSolution | str:
    """Read a batch from the rank and the zeros of the first dense layer's update [Dimitrov et al., 2024].

    Rows that a single example has moved shorten the search. It takes about 2^b draws for b examples without such rows.
    """
    layer, knows = first_dense(observation), observation.knows
    if isinstance(layer, str):
        return layer
    if knows.examples == 1:
        return "a single example is read by division"
    if not layer.relu:
        return "no ReLU follows the first dense layer"
    if not layer.sent.biased:
        return "the first dense layer trains no bias"
    if knows.examples > min(layer.before.shape[0], layer.before.shape[1] - 1):
        return "there are more examples than units or pixels"
    message = message_of(observation)

    def accept(inputs: Tensor) -> bool:
        return message.verified(message.replay(as_images(knows, inputs))[0])

    rows, reading = row_ratios(layer.sent), InputSearch(layer, knows, accept)
    details: Details = {"rank": reading.rank, "groups": len(rows.inputs)}
    inputs, guesses, layer_residual = rows.inputs[: knows.examples], rows.inputs[:0], rows.residual
    if reading.rank == knows.examples:
        details |= reading.run(torch.cat([rows.inputs, rows.ratios]), search)
        proved, guesses = reading.inputs, reading.guesses
        if len(proved) or len(guesses):
            inputs, layer_residual = proved, reading.residual
    inputs, guesses = (each[within_bounds(knows, each)] for each in (inputs, guesses))
    inputs = guesses if len(guesses) > len(inputs) else inputs
    if not len(inputs):
        return FOUND_NOTHING
    images, residual, labels = message.replay_levels(as_images(knows, inputs))
    all_read = reading.complete is not None and len(inputs) == knows.examples
    sure = message.verified(residual) or (all_read and not message.contradicts(residual))
    return ExactSolution(images, labels, residual if math.isfinite(residual) else layer_residual, sure, details)
