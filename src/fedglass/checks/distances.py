"""Distances: how far each record moves a message, as the message with it minus the message without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedglass.checks.claim import Claim, ClientClaim
from fedglass.checks.replay import message_of, too_long
from fedglass.checks.rounding_cells import grid_of
from fedglass.core.losses import is_class_labels
from fedglass.core.rng import stream
from fedglass.core.thresholds import EQUAL_CANDIDATES, HALF_PRECISION_VALUES
from fedglass.federation.truth import Examples

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
    """Return the client with another example in the place of one record."""
    images, labels = client.images.clone(), client.labels.clone()
    images[row], labels[row] = image.to(images), label.to(labels)
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
    """Return the client without each of its records, in the same batches; None where nothing can be left out."""
    count = len(client.labels)
    if count == 1 or count * max(1, client.steps) > MOST_REPLAYS:
        yield from [None] * count
        return
    rows = torch.arange(count)
    # The rows of each local step: recorded, or drawn as the replay draws them.
    drawn = [rows[batch.rows].tolist() for batch in client.batches()] if client.order is None else client.order
    for row in range(count):
        batches = tuple(tuple(i - (i > row) for i in batch if i != row) for batch in drawn)
        reduced = client.with_examples(client.images[rows != row], client.labels[rows != row])
        yield replace(reduced, order=batches) if all(batches) else None
