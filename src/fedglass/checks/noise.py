"""The noise that a claim promises: how large it is, and whether the message holds it.

A claim without its noise can be run again. What that replay leaves of the message must be the promised noise, and
`checks.residual` tests it. Noise of several local steps has no such residual: its size is compared with that of
replays instead.

`distances` says how far each record moves a message, as the message with it minus the message without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import scipy  # its parts are imported when they are first used
import torch
from torch import Tensor

from fedglass.checks.claim import UNPROTECTED, Claim, ClientClaim
from fedglass.checks.replay import message_of, too_long
from fedglass.checks.residual import NoiseResidual
from fedglass.checks.rounding_cells import Law, grid_of
from fedglass.core.losses import is_class_labels
from fedglass.core.rng import stream
from fedglass.core.tensors import Params
from fedglass.core.thresholds import EQUAL_CANDIDATES, HALF_PRECISION_VALUES, NOISE_LEVEL, NOISE_SHARE
from fedglass.defend.noise_model import NoBound, NoiseModel, noise_model
from fedglass.federation.truth import Examples
from fedglass.fl.local import MeanGradient, Step
from fedglass.fl.loss.targets import fits_targets

PUBLIC = 500
"""Public gradients, at most: 100 of their principal directions are then known well."""
MOST_VALUES = 50_000_000
"""Entries of all directions: 200 MB in single precision."""
DRAWS = 6
"""Replays that the size of noise inside several local steps is taken from."""


def noise_models(clients: Sequence[ClientClaim]) -> list[NoiseModel | NoBound]:
    """Return the noise of each client, or why it has no bound."""
    return [noise_model(client.protection, client.training, _batch_of(client)) for client in clients]


def _batch_of(client: ClientClaim) -> int:
    """Return the number of examples; of a single recorded step, with as many as it took of each."""
    return len(client.order[0]) if client.order is not None and len(client.order) == 1 else len(client.labels)


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


def tensors_with_less_noise(claim: Claim, plain: Params) -> list[str]:
    """Return the tensors that hold less noise than replays of the claim do, by Fisher's test of two variances.

    `plain` is the replay without noise. Another order of the batches makes a message differ more from it, not less.
    """
    draws = [replayed(claim, draw=draw) for draw in range(DRAWS)]
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


MOST_REPLAYS = 4000
"""Local steps of all replays without one record; beyond these only the client's absence is a reference."""


def distances(claim: Claim, client: ClientClaim) -> list[Tensor]:
    """Return u minus the client's absence, then for each record u minus the nearer reference; empty if it diverges."""
    update = flat(message_of(replace(claim, clients=(client,)), 0))
    if not bool(torch.isfinite(update).all()):
        return []
    rows = [update]
    for reduced in _each_without(client):
        delta = update if reduced is None else update - flat(message_of(replace(claim, clients=(reduced,)), 0))
        nearer = bool(torch.isfinite(delta).all()) and float(delta.norm()) < float(update.norm())
        rows.append(delta if nearer else update)
    return rows


def tells_nothing(claim: Claim, pool: Examples | None) -> bool:
    """Return whether the message is bit for bit the same without each record, or with any candidate in its place.

    Candidates have the record's label. The message is compared in the precision in which it was sent.
    """
    if too_long(claim) or not claim.combined_by_mean:
        return False
    sent = [claim.update[name] for name in claim.before] if claim.update else message_of(claim, 0)
    for i, client in enumerate(claim.private):
        if len(client.labels) * max(1, client.steps) > MOST_REPLAYS:
            return False
        for row, reduced in enumerate(_each_without(client)):
            absent = reduced is not None and _same(sent, _with_client(claim, i, reduced))
            if not absent and not _same_for_all(sent, claim, i, row, pool):
                return False
    return True


def with_record(client: ClientClaim, row: int, image: Tensor, label: Tensor) -> ClientClaim:
    """Return the client with another example in the place of one record and its copies."""
    images, labels, copies = client.images.clone(), client.labels.clone(), client.copies(row)
    images[copies], labels[copies] = image.to(images), label.to(labels)
    return client.with_examples(images, labels)


def alike(client: ClientClaim, row: int, pool: Examples, generator: torch.Generator) -> tuple[Tensor, int]:
    """Return the rows of a pool in random order, those with the label of a record first, and how many these are.

    Copies of the record are left out. Where targets are not classes, candidates get that of the record.
    """
    rows = torch.randperm(len(pool.labels), generator=generator)
    classes = is_class_labels(client.labels)
    same = (pool.labels[rows] == client.labels[row].to(pool.labels)).cpu() if classes else torch.ones(len(rows)).bool()
    copies = (pool.images[rows[same]] == client.images[row].to(pool.images)).flatten(1).all(dim=1).cpu()
    first = rows[same][~copies]
    return torch.cat([first, rows[~same]]), len(first)


def candidate_label(client: ClientClaim, row: int, pool: Examples, place: int) -> Tensor:
    """Return the label of a candidate: its own class, or the target of the record where targets are not classes."""
    return pool.labels[place] if is_class_labels(client.labels) else client.labels[row]


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.cpu().double().flatten() for tensor in tensors])


def _same_for_all(sent: Sequence[Tensor], claim: Claim, place: int, row: int, pool: Examples | None) -> bool:
    client = claim.clients[place]
    if pool is None:
        return False
    rows, count = alike(client, row, pool, stream(0, "candidates", row))
    if count < EQUAL_CANDIDATES:
        return False
    chosen = rows[:EQUAL_CANDIDATES].tolist()
    clients = (with_record(client, row, pool.images[i], candidate_label(client, row, pool, i)) for i in chosen)
    return all(_same(sent, _with_client(claim, place, other)) for other in clients)


def _with_client(claim: Claim, place: int, client: ClientClaim) -> Claim:
    weighted = replace(client, weight=claim.clients[place].mean_weight)
    clients = [*claim.clients[:place], weighted, *claim.clients[place + 1 :]]
    return replace(claim, clients=tuple(clients))


def _same(sent: Sequence[Tensor], claim: Claim) -> bool:
    """Return whether a replay is the message, bit for bit in the precision of the message."""
    replayed = zip(sent, message_of(claim, 0), strict=True)
    values: Tensor = torch.unique(torch.cat([tensor.flatten() for tensor in sent]))
    grid = grid_of([values.cpu()]) if len(values) >= HALF_PRECISION_VALUES else None
    return all(torch.equal(_as_sent(mine, grid, mine), _as_sent(other, grid, mine)) for mine, other in replayed)


def _as_sent(tensor: Tensor, grid: torch.dtype | None, like: Tensor) -> Tensor:
    """Return a tensor in the type of the message, after the rounding to a coarser one where it was."""
    half = grid if grid in (torch.float16, torch.bfloat16) else like.dtype
    return tensor.cpu().to(like.dtype).to(half)


def _each_without(client: ClientClaim) -> Iterator[ClientClaim | None]:
    """Return the client without each of its records and all copies of it, in the same batches; None without a rest."""
    count = len(client.labels)
    if count == 1 or count * max(1, client.steps) > MOST_REPLAYS:
        yield from [None] * count
        return
    rows = torch.arange(count)
    # The rows of each local step: recorded, or drawn as the replay draws them.
    drawn = [rows[batch.rows].tolist() for batch in client.batches()] if client.order is None else client.order
    for row in range(count):
        kept = rows[~client.copies(row)].tolist()
        place = {row: i for i, row in enumerate(kept)}
        batches = tuple(tuple(place[i] for i in batch if i in place) for batch in drawn)
        reduced = client.with_examples(client.images[kept], client.labels[kept])
        yield replace(reduced, order=batches) if all(batches) else None
