"""How well the gradient at a point between the weights before and after explains the update.

[Zhu, Yao, Blaschko, 2023, Eq. 5 and Figure 4]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedglass.analysis.subspace import true_gradient
from fedglass.models.network import Network


def cosine_on_segment(
    network: Network,
    before: Sequence[Tensor],
    after: Sequence[Tensor],
    inputs: Tensor,
    labels: Tensor,
    alphas: Sequence[float],
) -> Tensor:
    """Cosine between w_0 - w_T and the gradient at w_0 + alpha (w_T - w_0), for each alpha.  # -> (len(alphas),)

    alpha is counted from the weights before, as in the release of SME; its Algorithm 1 counts from the other end.
    """
    moved = [b - a for b, a in zip(before, after, strict=True)]
    found = []
    for alpha in alphas:
        weights = [b - alpha * m for b, m in zip(before, moved, strict=True)]
        found.append(cosine(moved, true_gradient(network, weights, inputs, labels)))
    return torch.tensor(found, dtype=torch.float64)


def cosine(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """Of two lists of tensors, taken as one vector each; 0 where one of them is zero.

    >>> cosine([torch.tensor([1.0]), torch.tensor([1.0])], [torch.tensor([1.0]), torch.tensor([0.0])])
    0.7071067811865475
    """
    inner, a, b = (_dot(x, y) for x, y in ((left, right), (left, left), (right, right)))
    return inner / (a * b) ** 0.5 if a > 0 and b > 0 else 0.0


def _dot(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    pairs = zip(left, right, strict=True)
    return sum(float(torch.dot(x.detach().double().flatten(), y.detach().double().flatten())) for x, y in pairs)
