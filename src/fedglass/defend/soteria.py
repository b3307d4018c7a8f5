"""Soteria: pruning of the representation that enters the last dense layer, where it tells most about the input.

The layer's weight gradient is a sum of outer products of the error with that representation r = f(X). Soteria
replaces r by an r' that differs in few entries and yet leads a reconstruction far from X: with the first-order
change r_i (dr_i/dX)^-1 of the input, it zeroes the entries of largest ||r_i (dr_i/dX)^-1|| [Sun et al., 2021,
Section 4]. dr_i/dX is a row vector, whose pseudo-inverse has norm 1 / ||dr_i/dX||, so the score is
|r_i| / ||dr_i/dX||.

The definition was read from the abstract and from the authors' release, jeremy313/Soteria; the wording of the
paper's algorithm, and what it does with a batch of several examples, could not be confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.core.errors import ModelError
from fedglass.core.registry import register
from fedglass.defend import checks
from fedglass.defend.per_example import example_gradients, refuse_batch_statistics
from fedglass.defend.pruning import count_of, lowest
from fedglass.fl.local import MeanGradient, Step

PAPER = (
    "Sun, Li, Wang, Yang, Li, Chen: Soteria: Provable Defense against Privacy Leakage in Federated Learning from "
    "Representation Perspective, CVPR 2021, https://arxiv.org/abs/2012.06043"
)


ROWS = 16
"""How many rows of the Jacobian are computed at once."""


@register("defences", "soteria", summary="each example's representation pruned where it tells most", paper=PAPER)
@dataclass(frozen=True)
class Soteria:
    """Zero the share of each example's representation with the largest |r_i| / ||dr_i/dX|| [Sun et al., 2021].

    Only the weight gradient of the last dense layer changes: mean_b delta_b r'_b^T. Entries of r that do not depend
    on the input have nothing to hide and are pruned last.
    """

    share: float

    def __post_init__(self) -> None:
        checks.share(self, "share")

    def gradient(self, step: Step) -> Sequence[Tensor]:
        gradient = list(MeanGradient().gradient(step))
        features, slopes = representation(step)
        count = count_of(self.share, features.shape[1])
        if count == 0:
            return gradient
        scores = torch.where(slopes > 0, features.abs() / slopes, 0.0)
        mask = torch.stack([~lowest(-row, count) for row in scores])  # (b, features)
        head = _head(step)
        gradient[head] = _masked_mean(step, head, mask)
        return gradient


@register("defences", "soteria_released", summary="the same with one mask for the batch, as released", paper=PAPER)
@dataclass(frozen=True)
class SoteriaReleased:
    """Soteria with one mask for the batch, as the authors' release has it.

    It zeroes the columns with the smallest sum_b ||dr_bi/dX_b|| / (r_bi + 0.1), the inverse of the score, with a
    shift against division by zero. The release takes a percentile as threshold, here the share is exact; plato,
    the framework of OUTPOST, leaves the shift out.
    """

    share: float
    shift: float = 0.1

    def __post_init__(self) -> None:
        checks.share(self, "share")
        checks.positive(self, "shift")

    def gradient(self, step: Step) -> Sequence[Tensor]:
        gradient = list(MeanGradient().gradient(step))
        features, slopes = representation(step)
        count = count_of(self.share, features.shape[1])
        ratios = (slopes / (features + self.shift)).sum(0).abs()  # (features,)
        head = _head(step)
        gradient[head] = gradient[head] * ~lowest(ratios, count)
        return gradient


def representation(step: Step) -> tuple[Tensor, Tensor]:
    """Return the input r of the last dense layer, and ||dr_i/dX|| for each of its entries.  # (b, features) both"""
    refuse_batch_statistics(step)
    with torch.enable_grad():
        inputs = step.inputs.detach().requires_grad_()
        _, features = step.network.features([w.detach() for w in step.weights], inputs)
        if features.ndim != 2 or not features.requires_grad:
            raise ModelError(
                "Soteria prunes the representation that enters the last dense layer, expected of shape (examples, "
                f"features) and computed from the images, got {tuple(features.shape)}: choose another network."
            )
        basis = torch.eye(features.shape[1], dtype=features.dtype, device=features.device)
        norms = [_slopes(features, inputs, rows) for rows in torch.split(basis, ROWS)]
    return features.detach(), torch.cat(norms).T


def _slopes(features: Tensor, inputs: Tensor, rows: Tensor) -> Tensor:
    """Return the norms of some rows of the Jacobian, for every example.  # (rows, features) -> (rows, b)"""
    # Examples do not mix, so one backward pass of r_i summed over the batch holds each example's own row.
    directions = rows[:, None, :].expand(-1, len(inputs), -1)
    (jacobian,) = torch.autograd.grad(features, inputs, directions, is_grads_batched=True, retain_graph=True)
    norms: Tensor = torch.linalg.vector_norm(jacobian.flatten(2), dim=2)
    return norms


def _head(step: Step) -> int:
    return step.network.names.index(step.network.head[0])


def _masked_mean(step: Step, head: int, mask: Tensor) -> Tensor:
    """Return mean_b of the head's weight gradient of example b, times that example's mask.  # (classes, features)"""
    total, done = torch.zeros_like(step.weights[head]), 0
    for (chunk,) in example_gradients(step, only=[head]):  # (chunk, classes, features)
        total = total + (chunk * mask[done : done + len(chunk), None, :]).sum(0)
        done += len(chunk)
    return total / done
