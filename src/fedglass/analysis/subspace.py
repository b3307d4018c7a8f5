"""How much of the gradients of a local training lies in one plane [Zhu, Yao, Blaschko, 2023, Sec. 5.1]."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.types import Training
from fedglass.fl.local import Batch, MeanGradient, Step, path
from fedglass.models.network import Network


def local_path(
    network: Network,
    before: Sequence[Tensor],
    inputs: Tensor,
    labels: Tensor,
    batches: Iterable[Batch],
    training: Training,
) -> Iterator[list[Tensor]]:
    """The weights w_0 .. w_T of a local training on whitened inputs."""
    for at in path(network, before, inputs, labels, batches, training):
        yield [w.detach() for w in at.weights]


def true_gradient(network: Network, weights: Sequence[Tensor], inputs: Tensor, labels: Tensor) -> list[Tensor]:
    """The gradient of the mean loss over all of the client's examples."""
    leaves = [w.detach().requires_grad_() for w in weights]
    return list(MeanGradient().gradient(Step(network, leaves, inputs, labels)))


def shares_in_subspace(gradients: Sequence[Sequence[Tensor]], rank: int = 2) -> Tensor:
    """|P g_t| / |g_t| with P the projection onto the best `rank`-dimensional subspace.  # -> (T,)

    The subspace is that of the largest singular values, uncentred. It is read off the T x T matrix of inner
    products: with A = U S V', the part of row t within the subspace has the norm of (U S)_t cut to `rank` columns.

    >>> flat = [[torch.tensor([1.0, 0.0, 0.0])], [torch.tensor([0.0, 2.0, 0.0])], [torch.tensor([3.0, 1.0, 0.0])]]
    >>> shares_in_subspace(flat)
    tensor([1.0000, 1.0000, 1.0000], dtype=torch.float64)
    """
    if not gradients or rank < 1:
        raise UsageError(f"A subspace needs at least one gradient and rank >= 1, got {len(gradients)} and rank {rank}.")
    gram = _inner_products(gradients)
    values, vectors = torch.linalg.eigh(gram)  # ascending
    inside = (vectors[:, -rank:].square() * values[-rank:].clamp_min(0)).sum(1)
    whole = gram.diagonal()
    if not bool((whole > 0).all()):
        raise UsageError("A gradient of zero has no direction: the training stands still, leave its step out.")
    shares: Tensor = (inside / whole).clamp(0, 1).sqrt()
    return shares


def _inner_products(gradients: Sequence[Sequence[Tensor]]) -> Tensor:
    """In double precision, one layer at a time.  # (T, T)"""
    layers = zip(*gradients, strict=True)
    total = torch.zeros(len(gradients), len(gradients), dtype=torch.float64)
    for layer in layers:
        rows = torch.stack([g.detach().reshape(-1) for g in layer]).double().cpu()
        total += rows @ rows.T
    return total
