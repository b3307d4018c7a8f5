"""The input of one example from a single step of Adam, which does not hide the sizes of small gradients.

The first step moves a weight by lr g / (|g| + eps) [Kingma and Ba, 2015, Algorithm 1]: nearly by lr, and less by the
share eps / |g|. Where that share is larger than the rounding of the weights, the step gives the gradient g itself. One
example makes the gradient of the first dense layer a matrix of rank one, for which few such entries suffice.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedglass.attack.exact.dense import dense_update_at_pixels
from fedglass.attack.exact.exact import FOUND_NOTHING, NEARLY_EXPLAINED, ExactSolution, SearchBudget, costs
from fedglass.attack.exact.update_matrix import entry_error
from fedglass.attack.exact.verify import as_images, message_of
from fedglass.core.optimisers import Adam, AdamW
from fedglass.core.registry import register
from fedglass.core.types import Observation

ADAM = "Kingma, Ba: Adam: A Method for Stochastic Optimization, ICLR 2015, https://arxiv.org/abs/1412.6980"
SATURATED = 3.0
"""Deviations of rounding within which a step is as long as the learning rate: its gradient has any size."""
LEAST_PRECISION = 3.0
"""Standard deviations by which a pixel must be known to count as read, in units of all pixels' size."""
TINY = 1e-30
"""What is added to a denominator that may be zero."""


@register(
    "exact", "adam_step", summary="the sizes that one step of Adam leaves in the first dense layer's update", paper=ADAM
)
@costs(0.1)
def adam_step(observation: Observation, search: SearchBudget) -> ExactSolution | str:
    """Read one example from the gradient of the first dense layer, as far as a step of Adam shows it."""
    training, knows = observation.knows.training, observation.knows
    if training is None or not isinstance(training.optimiser, Adam | AdamW):
        return "the declared optimiser is not Adam"
    if knows.local_steps != 1 or knows.examples != 1:
        return "it needs one example and one local step"
    layer = dense_update_at_pixels(observation)
    if isinstance(layer, str):
        return layer
    if not layer.sent.biased or not {f"{layer.name}.weight", f"{layer.name}.bias"} <= set(observation.update):
        return "the first dense layer trains no bias of its own"
    matrix, error = (torch.cat(parts, 1) for parts in zip(*_gradients(observation, layer.name), strict=True))
    vector, precision = _fit(matrix, error)
    inputs = vector[None, :-1] / vector[-1]
    if not bool(torch.isfinite(inputs).all()):
        return FOUND_NOTHING
    message = message_of(observation)
    images, residual, labels = message.replay_levels(as_images(knows, inputs))
    # Steps of equal size explain the signs alone: a picture of its signs is not the picture.
    sure = residual <= NEARLY_EXPLAINED and bool((precision >= LEAST_PRECISION).all())
    return ExactSolution(images, labels, residual, sure, {"precision": float(precision.median())})


def _gradients(observation: Observation, layer: str) -> list[tuple[Tensor, Tensor]]:
    """Return the gradients of weight and bias as columns, each with its standard deviation.  # (h, d) and (h, 1)

    The deviation is infinite where the step is as long as the learning rate.
    """
    training = observation.knows.training
    assert training is not None, "asked before"
    optimiser, found = training.optimiser, []
    assert isinstance(optimiser, Adam | AdamW), "asked before"
    for name in (f"{layer}.weight", f"{layer}.bias"):
        before, sent = observation.before[name].cpu().double(), observation.update[name].cpu().double()
        decay = optimiser.weight_decay
        moved = (sent + training.lr * decay * before if isinstance(optimiser, AdamW) else sent) / training.lr
        rounding = entry_error(observation.update[name], observation.before[name]) / training.lr + TINY
        gap = torch.maximum(1 - moved.abs(), rounding)  # eps / (|g| + eps)
        gradient = -optimiser.eps * moved / gap - (0.0 if isinstance(optimiser, AdamW) else decay) * before
        error = optimiser.eps * rounding / gap.square()
        error[gap <= SATURATED * rounding] = math.inf
        found.append((gradient.reshape(len(before), -1), error.reshape(len(before), -1)))
    return found


def _fit(matrix: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Return the input whose products with a factor for each row fit best; it ends with the 1 of the bias.

    The logarithms of the entries' sizes are sums, which are fitted by least squares, each by its own precision. Their
    signs are those of the entries. The second result is the precision of the input's entries, in standard deviations of
    an entry of their usual size.  # (h, d + 1) both -> (d + 1,) both
    """
    weight = torch.where(matrix != 0, (matrix / error).square(), 0.0)
    logs = torch.where(matrix != 0, matrix.abs().clamp(min=TINY).log(), 0.0)
    column = weight.sum(0)
    share = weight / (column + TINY)
    share[:, -1] = 0.0  # the logarithm of 1 is known
    normal = torch.diag(weight.sum(1)) - share @ weight.T
    factors = torch.linalg.pinv(normal, hermitian=True) @ ((weight * logs).sum(1) - share @ (weight * logs).sum(0))
    sizes = (share * (logs - factors[:, None])).sum(0).exp()
    vector = sizes * (matrix[:, -1:].sign() * matrix.sign()).sum(0).sign()
    known = column.sqrt() / vector.abs().clamp(min=TINY) * vector[:-1].square().mean().sqrt()
    return vector, torch.where((matrix == 0).all(0), math.inf, known)  # exactly zero: nothing was rounded
