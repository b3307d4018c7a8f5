"""How far each record moves a message: what is sent with it beside what is sent without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedglass.checks.replay import Declared, Part, batches_of, message_of, too_long
from fedglass.checks.rounding_cells import grid_of
from fedglass.core.rng import stream
from fedglass.federation.truth import Examples

MOST_REPLAYS = 4000
"""Local steps of all replays without one record; beyond these only the client's absence is a reference."""
ALL_ALIKE = 100
"""Candidates that must give the same message, bit for bit, where no absence does: half of the game's least number."""
ON_GRID = 32
"""Different values from which on a message that a half-precision type holds was rounded to it: by chance a value in
single precision lies on such a grid once in 2^13 times."""


def distances(declared: Declared, part: Part) -> list[Tensor]:
    """Return u minus the client's absence, then for each record u minus the nearer reference; empty if it diverges."""
    whole = flat(message_of(replace(declared, parts=(part,)), 0))
    if not bool(torch.isfinite(whole).all()):
        return []
    rows = [whole]
    for reduced in _each_without(part):
        delta = whole if reduced is None else whole - flat(message_of(replace(declared, parts=(reduced,)), 0))
        nearer = bool(torch.isfinite(delta).all()) and float(delta.norm()) < float(whole.norm())
        rows.append(delta if nearer else whole)
    return rows


def tells_nothing(declared: Declared, pool: Examples | None) -> bool:
    """Return whether the message is bit for bit the same without each record, or with any candidate in its place.

    Candidates have the record's label. The message is compared in the precision in which it was sent.
    """
    private = len(declared.parts) - declared.own
    if too_long(declared) or not declared.combined_by_mean:
        return False
    sent = [declared.update[name] for name in declared.before] if declared.update else message_of(declared, 0)
    for i, part in enumerate(declared.parts[:private]):
        if len(part.labels) * max(1, part.steps) > MOST_REPLAYS:
            return False
        for row, reduced in enumerate(_each_without(part)):
            absent = reduced is not None and _same(sent, _with_part(declared, i, reduced))
            if not absent and not _same_for_all(sent, declared, i, row, pool):
                return False
    return True


def with_record(part: Part, row: int, image: Tensor, label: Tensor) -> Part:
    """Return the part with another example in the place of one record."""
    images, labels = part.images.clone(), part.labels.clone()
    images[row], labels[row] = image.to(images), label.to(labels)
    return replace(part, images=images, labels=labels)


def alike(part: Part, row: int, pool: Examples, generator: torch.Generator) -> tuple[Tensor, int]:
    """Return the rows of a pool in random order, those with the label of a record first, and how many these are.

    Copies of the record are left out.
    """
    rows = torch.randperm(len(pool.labels), generator=generator)
    same = (pool.labels[rows] == part.labels[row].to(pool.labels)).cpu()
    copies = (pool.images[rows[same]] == part.images[row].to(pool.images)).flatten(1).all(dim=1).cpu()
    first = rows[same][~copies]
    return torch.cat([first, rows[~same]]), len(first)


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.double().cpu().flatten() for tensor in tensors])


def _same_for_all(sent: Sequence[Tensor], declared: Declared, place: int, row: int, pool: Examples | None) -> bool:
    part = declared.parts[place]
    if pool is None:
        return False
    rows, count = alike(part, row, pool, stream(0, "candidates", row))
    if count < ALL_ALIKE:
        return False
    parts = (with_record(part, row, pool.images[i], pool.labels[i]) for i in rows[:ALL_ALIKE].tolist())
    return all(_same(sent, _with_part(declared, place, other)) for other in parts)


def _with_part(declared: Declared, place: int, part: Part) -> Declared:
    weight = declared.parts[place].weight
    kept = len(declared.parts[place].labels) if weight is None else weight
    parts = [*declared.parts[:place], replace(part, weight=kept), *declared.parts[place + 1 :]]
    return replace(declared, parts=tuple(parts))


def _same(sent: Sequence[Tensor], declared: Declared) -> bool:
    """Return whether a replay is the message, bit for bit in the precision of the message."""
    replayed = zip(sent, message_of(declared, 0), strict=True)
    values: Tensor = torch.unique(torch.cat([tensor.flatten() for tensor in sent]))
    grid = grid_of([values.cpu()]) if len(values) >= ON_GRID else None
    return all(torch.equal(_as_sent(mine, grid, mine), _as_sent(other, grid, mine)) for mine, other in replayed)


def _as_sent(tensor: Tensor, grid: torch.dtype | None, like: Tensor) -> Tensor:
    """Return a tensor in the type of the message, after the rounding to a coarser one where it was."""
    half = grid if grid in (torch.float16, torch.bfloat16) else like.dtype
    return tensor.cpu().to(like.dtype).to(half)


def _each_without(part: Part) -> Iterator[Part | None]:
    """Return the part without each of its records; None where nothing can be left out."""
    count = len(part.labels)
    if count == 1 or count * max(1, part.steps) > MOST_REPLAYS:
        yield from [None] * count
        return
    order = _order(part)
    for row in range(count):
        yield _without(part, order, row)


def _order(part: Part) -> tuple[tuple[int, ...], ...]:
    """Return the rows of each local step: recorded, or drawn as the replay draws them."""
    if part.order is not None:
        return part.order
    rows = torch.arange(len(part.labels))
    return tuple(tuple(rows[batch.rows].tolist()) for batch in batches_of(part))


def _without(part: Part, order: Sequence[Sequence[int]], row: int) -> Part | None:
    """Return the part without one record, in the same batches; None where a batch would be empty."""
    kept = [tuple(i - (i > row) for i in batch if i != row) for batch in order]
    if not all(kept):
        return None
    others = [i for i in range(len(part.labels)) if i != row]
    return replace(part, images=part.images[others], labels=part.labels[others], order=tuple(kept))
