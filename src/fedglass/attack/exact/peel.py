"""The inputs of a ReLU layer, one example after another, each told from mixtures by the head behind the layer.

A unit that one example alone activates has that example's input as the ratio U_i / v_i of its row; other ratios are
mixtures. The head tells them apart: from an input z and a label y it gives the gradient d(z, y) at the layer's outputs,
and U = s D Z has the true ones, and no others, in its column space. What was found is taken off the update, which
leaves more rows to single examples, until all are found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.exact.cut import Cut, cut_at
from fedglass.attack.exact.dense import DenseUpdate, first_dense
from fedglass.attack.exact.head import SAME, Features, checked, gradients_at, head_gradients, polished, sent_by
from fedglass.attack.exact.method import Search, Solved
from fedglass.attack.exact.verify import explains, verified
from fedglass.core.registry import register
from fedglass.core.types import Observation

ACCEPTED = 1e-2
"""Relative distance of a gradient from the update's column space up to which it may be a true one.

Measured on CIFAR with a ReLU CNN: true ones below 1e-6 at a learning rate of 0.1 and below 1e-3 at 0.001, mixtures
above 0.05."""
BESIDE_BEST = 30.0
"""How many times the best distance of a round another candidate may have: a faint mixture comes later, or cleaner."""
SURE = 1e-5
"""A distance that is accepted, whatever the best one is."""
FAINT = 1e-6
"""Gradients below this share of the largest have lost their direction to rounding."""


def peeled_inputs(observation: Observation, layer: DenseUpdate) -> Features | None:
    """Return the inputs of a ReLU layer, of as many examples as can be told; None where there are none."""
    cut, count = cut_at(observation, layer.name), observation.knows.examples
    if layer.bias is None or not layer.relu or not cut.headed():
        return None
    sent = sent_by(layer)  # (h, d + 1)
    inputs, labels = sent.new_zeros(0, sent.shape[1] - 1), torch.zeros(0, dtype=torch.int64)
    factors, left = sent.new_zeros(0), sent
    while len(inputs) < count:
        more = _round(observation, layer, cut, left, count - len(inputs), inputs)
        if more is None:
            break
        inputs, labels, factors = (torch.cat(parts) for parts in zip((inputs, labels, factors), more, strict=True))
        gradients = gradients_at(observation, layer, cut, inputs, labels)  # (n, h)
        beside = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
        left = sent - factors.median() * gradients.T @ beside
    if len(inputs) == 0:
        return None
    if len(inputs) == count:
        inputs = polished(observation, layer, cut, inputs, labels)
    return checked(observation, layer, cut, inputs, labels)


def _round(
    observation: Observation, layer: DenseUpdate, cut: Cut, left: Tensor, missing: int, known: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """What the rows of a remainder tell: new inputs, their labels, and the factors from gradient to update."""
    assert layer.bias_error is not None, "a layer with a bias has its rounding"
    bias = left[:, -1]
    rows = torch.nonzero(bias.abs() > torch.maximum(3 * layer.bias_error, 1e-6 * bias.abs().max()))[:, 0]
    if len(rows) == 0:
        return None
    ratios = left[rows, :-1] / bias[rows, None]
    gradients = head_gradients(observation, layer, cut, ratios)  # (m, k, h)
    basis = torch.linalg.eigh(left @ left.T).eigenvectors[:, -missing:]  # (h, missing)
    sizes = gradients.norm(dim=2)  # (m, k)
    factors = bias[rows, None] / gradients[torch.arange(len(rows)), :, rows]
    # A huge mixture saturates the softmax, which leaves no gradient; and every step goes against its gradient.
    possible = (sizes > FAINT * sizes.max()) & (factors < 0)
    distances = (gradients - gradients @ basis @ basis.T).norm(dim=2) / sizes
    best, labels = torch.where(possible, distances, torch.inf).min(1)
    chosen = _chosen(ratios, best, missing, known)
    return (ratios[chosen], labels[chosen], factors[chosen, labels[chosen]]) if chosen else None


def _chosen(ratios: Tensor, distances: Tensor, missing: int, known: Tensor) -> list[int]:
    """The rows of the best candidates, one for each example that is not known yet."""
    most = min(ACCEPTED, max(SURE, BESIDE_BEST * float(distances.min())))
    chosen: list[int] = []
    for row in distances.argsort().tolist():
        if len(chosen) == missing or float(distances[row]) > most:
            break
        candidate = ratios[row]
        if not bool(((known - candidate).norm(dim=1) <= SAME * candidate.norm()).any()):
            chosen.append(row)
            known = torch.cat([known, candidate[None]])
    return chosen


@register(
    "exact",
    "peeling",
    summary="the examples of a batch one after another where a ReLU layer sees the pixels, each checked by the head",
)
@dataclass(frozen=True)
class Peeling:
    """Read a batch whose pixels feed a dense ReLU layer, example after example."""

    name: str = "peeling"
    paper: str = ""
    cost: ClassVar[float] = 1.0
    """Seconds that it takes about."""

    def applies(self, observation: Observation) -> str:
        """Return why the method does not apply; empty where it does."""
        layer = first_dense(observation)
        if isinstance(layer, str):
            return layer
        if observation.knows.examples == 1:
            return "division reads a single example"
        return "" if layer.relu and layer.bias is not None else "no ReLU follows a first dense layer with a bias"

    def solve(self, observation: Observation, search: Search) -> Solved | None:
        """Return the images of the examples that could be told."""
        layer = first_dense(observation)
        found = None if isinstance(layer, str) else peeled_inputs(observation, layer)
        return None if found is None else pixels_solved(observation, found)


def pixels_solved(observation: Observation, found: Features) -> Solved:
    """Return the images whose whitened pixels these inputs are."""
    knows = observation.knows
    images = knows.whitening.unwhiten(found.inputs.view(-1, *knows.shape)).float()
    residual = explains(observation, images, found.labels)
    details: dict[str, float | int | str] = {"found": len(images), "head_residual": found.residual}
    return Solved(images, found.labels, residual, verified(observation, residual), details)
