"""Directions in which noise must not be missing: those of public gradients, and those by which records move a message.

Noise that leaves out the directions of the signal passes every test of its entries, and hides nothing.
"""

from __future__ import annotations

from itertools import islice

import torch
from torch import Tensor

from fedglass.audit.distances import distances, flat
from fedglass.audit.replay import Declared
from fedglass.core.rng import stream
from fedglass.core.types import BatchNorm
from fedglass.fl.local import MeanGradient, Step
from fedglass.models.network import Network
from fedglass.rounds.truth import Examples

PUBLIC = 500
"""Public gradients, at most: 100 of their principal directions are then known well."""
MOST_VALUES = 50_000_000
"""Entries of all directions: 200 MB in single precision."""


def known_to(declared: Declared, pool: Examples | None) -> Examples | None:
    """Return the examples of a pool that the network has a class for; None where there are none."""
    if pool is None or not len(pool.labels):
        return None
    network = Network(declared.model, declared.buffers, BatchNorm.FROZEN)
    with torch.no_grad():
        inputs = declared.whitening.whiten(pool.images[:1])
        classes = network([declared.before[name] for name in network.names], inputs).shape[-1]
    rows = pool.labels < classes
    return Examples(pool.images[rows], pool.labels[rows]) if bool(rows.any()) else None


def public_directions(declared: Declared, pool: Examples | None) -> Tensor | None:
    """Return gradients of public examples at the weights before the message.  # (m, d)"""
    if pool is None:
        return None
    network = Network(declared.model, declared.buffers, BatchNorm.FROZEN)
    weights = [declared.before[name].detach().requires_grad_() for name in network.names]
    count = min(PUBLIC, MOST_VALUES // sum(w.numel() for w in weights), len(pool.labels))
    rows = torch.randperm(len(pool.labels), generator=stream(0, "public directions"))[:count].tolist()
    smoothing = declared.parts[0].training.label_smoothing
    found = []
    for i in rows:
        inputs = declared.whitening.whiten(pool.images[i : i + 1])
        step = Step(network, weights, inputs, pool.labels[i : i + 1], smoothing=smoothing)
        found.append(flat(MeanGradient().gradient(step)).float())
    return _rows(found)


def signal_directions(plain: Declared) -> Tensor | None:
    """Return by what each private record moves a message without its noise.  # (k, d)"""
    private = plain.parts[: len(plain.parts) - plain.own]
    most = MOST_VALUES // sum(tensor.numel() for tensor in plain.before.values())
    moved = (row.float() for part in private for row in distances(plain, part)[1:])
    return _rows(list(islice(moved, most)))


def _rows(found: list[Tensor]) -> Tensor | None:
    kept = [row for row in found if bool(torch.isfinite(row).all())]
    return torch.stack(kept) if kept else None
