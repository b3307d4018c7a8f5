"""Division: the update of the first dense layer, divided by that of its bias, is the input of the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import scipy
import torch
from torch import Tensor

from fedglass.attack.exact.dense import DenseUpdate, dense_inputs, first_dense, row_ratios
from fedglass.attack.exact.method import Search, Solved
from fedglass.attack.exact.rows import Rows, one_input, spectrum, stacked
from fedglass.attack.exact.sparse import Layer, proved_inputs
from fedglass.attack.exact.verify import Fit, Message, Replay, best_label, layer_explained, message_of
from fedglass.core.registry import register
from fedglass.core.types import Knowledge, Observation

# its parts are imported when they are first used


DIVISION_PAPER = (
    "Phong, Aono, Hayashi, Wang, Moriai: Privacy-Preserving Deep Learning via Additively Homomorphic Encryption, "
    "IEEE TIFS 2018, https://eprint.iacr.org/2017/715"
)
SLACK = 0.02
"""How far outside of its bounds a pixel may come out, as a share of their distance: what rounding does."""
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
    """x = U_i / v_i in every row i of the first dense layer that one example alone has moved [Phong et al., 2018].

    Exact for one example under any activation, loss factor, clipping of the whole and any number of SGD steps; for
    several examples in the rows that only one of them activates.
    """

    name: ClassVar[str] = "division"
    paper: ClassVar[str] = DIVISION_PAPER
    cost: ClassVar[float] = 0.1

    def applies(self, observation: Observation) -> str:
        layer = first_dense(observation)
        if isinstance(layer, str):
            return layer
        if layer.bias is None and observation.knows.examples > 1:
            return "the first dense layer trains no bias, which only a single example can do without"
        return ""

    def solve(self, observation: Observation, search: Search) -> Solved | None:
        layer = first_dense(observation)
        if isinstance(layer, str):
            return None
        read = _one if observation.knows.examples == 1 else _several
        return read(message_of(observation), layer)


def as_images(knows: Knowledge, inputs: Tensor) -> Tensor:
    """Return pixels within their bounds from whitened inputs of a first layer.  # (n, d) -> (n, c, h, w)"""
    return knows.whitening.unwhiten(inputs.view(-1, *knows.shape)).clamp(knows.low, knows.high).float()


def within_bounds(knows: Knowledge, inputs: Tensor) -> Tensor:
    """Return which whitened inputs are pictures: no pixel lies far outside of its bounds.  # (n, d) -> (n,)"""
    pixels = knows.whitening.unwhiten(inputs.view(-1, *knows.shape)).flatten(1)
    slack = SLACK * (knows.high - knows.low)
    return ((pixels >= knows.low - slack) & (pixels <= knows.high + slack)).all(1)


@dataclass(frozen=True, eq=False)
class _Guess:
    """An image that may be the one, and what led to it."""

    images: Tensor  # (1, c, h, w)
    found: Replay
    how: str
    residual: float
    """Of the layer's update alone."""


def _one(message: Message, layer: DenseUpdate) -> Solved | None:
    """The one example: in closed form, or along a direction whose length a replay finds."""
    guesses: list[_Guess] = []
    knows = message.observation.knows
    for how, inputs, residual in _closed_forms(layer):
        guesses.append(_Guess(*message.replay_levels(as_images(knows, inputs[None])), how, residual))
        if message.verified(guesses[-1].found.residual):
            return _told(layer, guesses[-1], True)
    along = _along_direction(message, layer) if knows.training is not None or not _biased(layer) else None
    if along is not None and (not guesses or message.verified(along.found.residual)):
        return _told(layer, along, message.verified(along.found.residual))
    if not guesses:
        return None
    best = min(guesses, key=lambda guess: (guess.found.residual, guess.residual))
    return _told(layer, best, _layer_alone(message.observation, layer, best))


def _biased(layer: DenseUpdate) -> bool:
    """Whether the bias moved as the weight did, so that it tells how long the input is."""
    sent = stacked(layer.weight, layer.bias, layer.weight_error, layer.bias_error, pruned=True)
    found = one_input(sent)
    return found.scaled and found.clean


def _told(layer: DenseUpdate, guess: _Guess, sure: bool) -> Solved:
    sent = stacked(layer.weight, layer.bias, layer.weight_error, layer.bias_error, pruned=True)
    details: dict[str, float | int | str] = {
        "how": guess.how,
        "rows": one_input(sent).votes,
        "layer_residual": guess.residual,
    }
    residual = guess.found.residual if math.isfinite(guess.found.residual) else guess.residual
    return Solved(guess.images, guess.found.labels, residual, sure, details)


def _layer_alone(observation: Observation, layer: DenseUpdate, guess: _Guess) -> bool:
    """Whether the layer's own update verifies an image, where nobody knows what to replay."""
    if observation.knows.training is not None or not layer.relu or layer.bias is None or layer.bias_before is None:
        return False
    sent = stacked(layer.weight, layer.bias, layer.weight_error, layer.bias_error)
    inputs = observation.knows.whitening.whiten(guess.images.double()).flatten(1)
    return layer_explained(
        sent.matrix, inputs, layer.weight_before, layer.bias_before, sent.error, layer.after
    ).complete


def _closed_forms(layer: DenseUpdate) -> Iterator[tuple[str, Tensor, float]]:
    """Inputs that the layer gives without a search, the likeliest first, each with the layer's residual."""
    for how, each in _as_decayed(layer):
        if each.bias is None or each.bias_error is None:
            continue
        sent = stacked(each.weight, each.bias, each.weight_error, each.bias_error, pruned=True)
        found = one_input(sent)
        if found.scaled:
            yield how, found.inputs, found.residual


def _as_decayed(layer: DenseUpdate) -> Iterator[tuple[str, DenseUpdate]]:
    """The layer's update as declared, and as it is where biases, or all parameters, do not decay after all."""
    yield "all rows", layer
    if layer.shrunk and layer.bias is not None and layer.bias_before is not None:
        bias = layer.bias - layer.shrunk * layer.bias_before
        yield "all rows, bias without decay", replace(layer, bias=bias)
        weight = layer.weight - layer.shrunk * layer.weight_before
        yield "all rows, without decay", replace(layer, weight=weight, bias=bias)


def _along_direction(message: Message, layer: DenseUpdate) -> _Guess | None:
    """The image along the direction that the weight's update gives by itself, as long as a replay says."""
    sent = stacked(layer.weight, None, layer.weight_error, None, pruned=True)
    found = one_input(sent)
    if not found.clean:
        return None
    fits: tuple[Fit, ...] = ("nothing", "factor") if layer.bias is None else ("tensors",)
    guesses = [
        guess
        for direction in (found.inputs, -found.inputs)
        for fit in fits
        if (guess := _longest(message, direction, fit, found.residual)) is not None
    ]
    return min(guesses, key=lambda guess: guess.found.residual, default=None)


def _longest(message: Message, direction: Tensor, fit: Fit, residual: float) -> _Guess | None:
    """The length of a direction that explains the message best, within the bounds of the pixels."""
    knows = message.observation.knows
    most = _reach(knows, direction)
    if not most > 0:
        return None
    label = best_label(message.observation, as_images(knows, most / 2 * direction[None]))
    if label is None:
        return None

    def image(length: float) -> Tensor:
        return as_images(knows, length * direction[None])

    def misfit(length: float) -> float:
        return message.replay(image(length), label, fit).residual

    length = _lowest(misfit, SHORTEST * most, most)
    return _Guess(image(length), Replay(misfit(length), label), f"direction, length by replay ({fit} fitted)", residual)


def _lowest(misfit: Callable[[float], float], shortest: float, longest: float) -> float:
    """Where a function of a length is lowest: the best of some lengths, refined between its neighbours."""
    lengths = torch.logspace(math.log10(shortest), math.log10(longest), SCALES, dtype=torch.float64).tolist()
    best = min(range(SCALES), key=lambda i: misfit(lengths[i]))
    low, high = lengths[max(0, best - 1)], lengths[min(SCALES - 1, best + 1)]
    found = scipy.optimize.minimize_scalar(
        misfit, bounds=(low, high), method="bounded", options={"xatol": 1e-8 * longest}
    )
    return float(found.x)


def _reach(knows: Knowledge, direction: Tensor) -> float:
    """How long a direction may be for all pixels to stay within their bounds."""
    low, high = (bound.double().expand(knows.shape).flatten() for bound in knows.bounds())
    slack = SLACK * (high - low)
    steps = torch.where(direction > 0, (high + slack) / direction, (low - slack) / direction)
    return float(steps[direction != 0].min())


def _several(message: Message, layer: DenseUpdate) -> Solved | None:
    """The examples that have rows of their own: inputs on which rows agree, as many as there are examples."""
    knows = message.observation.knows
    if layer.bias is None or layer.bias_error is None:
        return None
    rows = row_ratios(layer.weight, layer.bias, (layer.weight_error, layer.bias_error))
    inputs = _proved(layer, rows, knows)
    inputs = inputs[within_bounds(knows, inputs)]
    if not len(inputs):
        return None
    images, found = message.replay_levels(as_images(knows, inputs))
    residual = found.residual if math.isfinite(found.residual) else rows.residual
    details: dict[str, float | int | str] = {"groups": len(rows.votes), "rows": int(rows.votes.sum())}
    return Solved(images, found.labels, residual, message.verified(found.residual), details)


def _proved(layer: DenseUpdate, rows: Rows, knows: Knowledge) -> Tensor:
    """The inputs that inactive units prove, or else those on which rows agree, as many as there are examples.

    # (m, d)
    """
    assert layer.bias is not None, "rows were divided by it"
    sent = stacked(layer.weight, layer.bias, layer.weight_error, layer.bias_error)
    clear = spectrum(sent, knows.examples)
    if layer.relu and layer.bias_before is not None and clear.rank == knows.examples:
        weights = Layer((layer.weight_before, layer.bias_before), layer.after, knows.local_steps)
        found = proved_inputs(sent, clear, weights, torch.cat([rows.inputs, rows.ratios]))
        if len(found):
            return found
    return rows.inputs[: knows.examples]


# SPEAR: a whole batch behind a dense layer with ReLU, from the zeros of its gradients.


SPEAR_PAPER = (
    "Dimitrov, Baader, Müller, Vechev: SPEAR: Exact Gradient Inversion of Batches in Federated Learning, NeurIPS 2024, "
    "https://arxiv.org/abs/2403.03945"
)


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

    def solve(self, observation: Observation, search: Search) -> Solved | None:
        layer, knows = first_dense(observation), observation.knows
        if isinstance(layer, str) or layer.bias is None or layer.bias_before is None or layer.bias_error is None:
            return None
        message = message_of(observation)

        def accept(inputs: Tensor) -> bool:
            return message.verified(message.replay(as_images(knows, inputs)).residual)

        found = dense_inputs(
            layer.weight,
            layer.bias,
            layer.weight_before,
            layer.bias_before,
            knows.examples,
            search,
            (layer.weight_error, layer.bias_error),
            layer.relu,
            layer.after,
            knows.local_steps,
            accept,
        )
        inputs = found.inputs[within_bounds(knows, found.inputs)]
        if found.guesses is not None:
            guesses = found.guesses[within_bounds(knows, found.guesses)]
            inputs = guesses if len(guesses) > len(inputs) else inputs
        if not len(inputs):
            return None
        images, again = message.replay_levels(as_images(knows, inputs))
        whole = found.complete and len(inputs) == knows.examples
        sure = message.verified(again.residual) or (whole and not message.contradicts(again.residual))
        residual = again.residual if math.isfinite(again.residual) else found.residual
        return Solved(images, again.labels, residual, sure, dict(found.details))
