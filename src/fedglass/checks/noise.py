"""The noise that a claim promises: how large it is, and whether the message holds it.

A claim without its noise can be run again. What that replay leaves of the message must be the promised noise, and
`checks.residual` tests it. Noise of several local steps has no such residual: its size is compared with that of
replays instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

import scipy  # its parts are imported when they are first used
import torch
from torch import Tensor

from fedglass.checks.claim import UNPROTECTED, Claim, ClientClaim
from fedglass.checks.distances import distances, flat
from fedglass.checks.replay import message_of
from fedglass.checks.residual import NoiseResidual
from fedglass.checks.rounding_cells import Law, grid_of
from fedglass.core.losses import is_class_labels
from fedglass.core.rng import stream
from fedglass.core.tensors import Params
from fedglass.core.thresholds import NOISE_LEVEL, NOISE_SHARE
from fedglass.defend.noise_model import NoBound, NoiseModel, noise_model
from fedglass.federation.truth import Examples
from fedglass.fl.local import MeanGradient, Step
from fedglass.fl.loss.targets import fits_targets
from fedglass.fl.release import Protection

PUBLIC = 500
"""Public gradients, at most: 100 of their principal directions are then known well."""
MOST_VALUES = 50_000_000
"""Entries of all directions: 200 MB in single precision."""
DRAWS = 6
"""Replays that the size of noise inside several local steps is taken from."""


def noise_models(clients: Sequence[ClientClaim]) -> list[NoiseModel | NoBound]:
    """Return the noise of each client, or why it has no bound."""
    return [noise_model(client.protection, client.training, len(client.labels)) for client in clients]


def without_noise(claim: Claim) -> Claim:
    """Return the same claim with only the deterministic part of each protection."""
    clients = [
        replace(client, protection=model.plain) if isinstance(model, NoiseModel) else client
        for client, model in zip(claim.clients, noise_models(claim.clients), strict=True)
    ]
    return replace(claim, clients=tuple(clients))


def total_std(claim: Claim, *, hidden: bool = True) -> float | None:
    """Return the standard deviation of the noise in the message; None where it is not one Gaussian.

    With `hidden` the adversary's own noise is left out, which it can subtract.
    """
    models = noise_models(claim.private if hidden else claim.clients)
    noisy = [model for model in models if isinstance(model, NoiseModel)]
    if any(model.law != "gaussian" or not model.additive for model in noisy):
        return None
    weighted = zip(claim.shares, models, strict=False)
    return math.hypot(*(share * model.std for share, model in weighted if isinstance(model, NoiseModel)), 0.0)


def replayed(claim: Claim, order: int = 0, draw: int | None = None) -> dict[str, Tensor]:
    """Return the message of a replay by name, in double precision."""
    return dict(zip(claim.before, (t.cpu().double() for t in message_of(claim, order, draw)), strict=True))


def residual_of(
    claim: Claim,
    plain: Params,
    std: float,
    law: Law = "gaussian",
    *,
    public: Tensor | None = None,
    signal: Tensor | None = None,
    others: Mapping[str, Params] | None = None,
    sent_as_weights: bool | None = None,
) -> NoiseResidual:
    """Return the message minus a replay without noise, with what its tests need.

    `public` and `signal` are directions in which noise must not be missing, `others` messages in which the same noise
    must not be. A message was rounded as weights unless its entries lie on a half-precision grid; `sent_as_weights`
    says so where it is known.
    """
    update = {name: claim.update[name].cpu() for name in plain}
    before = {name: claim.before[name].cpu() for name in plain}
    if sent_as_weights is None:
        sent_as_weights = grid_of(update.values()) not in (torch.float16, torch.bfloat16)
    return NoiseResidual(
        {name: tensor.double() - plain[name] for name, tensor in update.items()},
        std,
        law,
        message={name: before[name] + update[name] for name in update} if sent_as_weights else update,
        before=before,
        weights_sent=sent_as_weights,
        public=public,
        signal=signal,
        others={name: other for name, other in (others or {}).items() if all(key in other for key in plain)},
    )


def tensors_with_less_noise(claim: Claim, noisy: Protection, plain: Params) -> list[str]:
    """Return the tensors that hold less noise than replays do, by Fisher's test of two variances.

    `noisy` is the claimed protection, `plain` the replay without its noise.
    """
    draws = [replayed(claim.protected_by(noisy), draw=draw) for draw in range(DRAWS)]
    unprotected = replayed(claim.protected_by(UNPROTECTED), draw=0)
    lacking = []
    for name, tensor in plain.items():
        usual = sum(_mean_square(drawn[name] - tensor) for drawn in draws) / DRAWS
        measured = min(_mean_square(claim.update[name].double() - base[name]) for base in (plain, unprotected))
        ratio = measured / (NOISE_SHARE**2 * usual) if usual > 0 else 0.0
        if not scipy.stats.f.cdf(ratio, tensor.numel(), DRAWS * tensor.numel()) > NOISE_LEVEL / (2 * len(plain)):
            lacking.append(name)
    return lacking


def _mean_square(tensor: Tensor) -> float:
    return float(tensor.square().mean()) if tensor.numel() else 0.0


def usable_pool(claim: Claim, pool: Examples | None) -> Examples | None:
    """Return the examples of a pool that the network has a class for; None where there are none."""
    if pool is None or not len(pool.labels):
        return None
    with torch.no_grad():
        outputs = claim.network()(claim.weights, claim.inputs(pool.images[:1]))
    loss, classes = claim.clients[0].training.loss, outputs.shape[-1]
    if loss is not None or not is_class_labels(pool.labels):
        return pool if fits_targets(loss, pool.labels, tuple(outputs.shape[1:])) else None
    rows = pool.labels < classes
    return Examples(pool.images[rows], pool.labels[rows]) if bool(rows.any()) else None


def public_directions(claim: Claim, pool: Examples | None) -> Tensor | None:
    """Return gradients of public examples at the weights before the message.  # (m, d)

    Noise that leaves out the directions of the signal passes every test of its entries, and hides nothing.
    """
    if pool is None:
        return None
    network, weights = claim.network(), [w.detach().requires_grad_() for w in claim.weights]
    count = min(PUBLIC, MOST_VALUES // sum(w.numel() for w in weights), len(pool.labels))
    rows = torch.randperm(len(pool.labels), generator=stream(0, "public directions"))[:count].tolist()
    training = claim.clients[0].training
    smoothing, loss = training.label_smoothing, training.loss
    gradients = []
    for i in rows:
        inputs, labels = claim.inputs(pool.images[i : i + 1]), pool.labels[i : i + 1].to(claim.device)
        step = Step(network, weights, inputs, labels, smoothing=smoothing, objective=loss)
        gradients.append(flat(MeanGradient().gradient(step)).float())
    return _finite_rows(gradients)


def signal_directions(plain: Claim) -> Tensor | None:
    """Return by what each private record moves a message without its noise.  # (k, d)"""
    most = MOST_VALUES // sum(tensor.numel() for tensor in plain.before.values())
    moved = (row.float() for client in plain.private for row in distances(plain, client)[1:])
    return _finite_rows(list(islice(moved, most)))


def _finite_rows(rows: list[Tensor]) -> Tensor | None:
    finite = [row for row in rows if bool(torch.isfinite(row).all())]
    return torch.stack(finite) if finite else None
