"""Arithmetic on named tensors: the weights of a model and the updates between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch
from safetensors import safe_open
from torch import Tensor, nn

from fedglass.core.errors import ModelError, UpdateError
from fedglass.core.files import check_file, follow_links
from fedglass.core.text import some

Params = Mapping[str, Tensor]
Update = Mapping[str, Tensor]
"""after - before. One sign everywhere, never divided by a learning rate."""


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Open a safetensors file that the user has named; a pipe or a device is refused."""
    with safe_open(str(check_file(follow_links(path))), framework="pt") as file:
        yield file


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A detached copy of the parameters, in the model's own order."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """A detached copy of the buffers (the running statistics of normalisation layers)."""
    return {name: b.detach().clone() for name, b in model.named_buffers()}


def subtract(after: Params, before: Params) -> dict[str, Tensor]:
    """after - before, name by name.

    >>> subtract({"w": torch.tensor([3.0])}, {"w": torch.tensor([1.0])})
    {'w': tensor([2.])}
    """
    return {name: after[name] - before[name] for name in before}


def add(before: Params, update: Update) -> dict[str, Tensor]:
    """before + update, name by name."""
    return {name: before[name] + update[name] for name in before}


def flatten(params: Params) -> Tensor:
    """All entries as one vector, in the mapping's order.  # (d,)"""
    return torch.cat([t.reshape(-1) for t in params.values()])


def unflatten(vector: Tensor, like: Params) -> dict[str, Tensor]:
    """The inverse of `flatten`.

    >>> like = {"a": torch.zeros(2, 2), "b": torch.zeros(1)}
    >>> unflatten(flatten(like), like)["a"].shape
    torch.Size([2, 2])
    """
    pieces = torch.split(vector, [t.numel() for t in like.values()])
    return {name: piece.view_as(t) for piece, (name, t) in zip(pieces, like.items(), strict=True)}


def check_weights(weights: Params, model: nn.Module) -> None:
    """Refuse weights that are not those of the model's architecture, or not finite."""
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    wrong = [n for n in (*shapes, *weights) if n not in weights or shapes.get(n) != tuple(weights[n].shape)]
    if wrong:
        raise ModelError(
            f"The weights before training do not fit the model at {_some(list(dict.fromkeys(wrong)))}: check that they "
            "were recorded from the same architecture."
        )
    broken = [name for name, tensor in weights.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise ModelError(
            f"The weights before training hold NaN or infinity at {_some(broken)}: record them again, or choose a "
            "round before the training diverged."
        )


def check_update(update: Update, like: Params) -> None:
    """Refuse an update that does not belong to the model or holds NaN or infinity."""
    missing = [name for name in like if name not in update]
    extra = [name for name in update if name not in like]
    if missing or extra:
        problems = [f"lacks {_some(missing)}"] * bool(missing) + [f"has the unknown {_some(extra)}"] * bool(extra)
        raise UpdateError(
            f"The update does not fit the model: it {' and '.join(problems)}. "
            f"Expected the {len(like)} parameter names of the model; record after - before for each of them."
        )
    for name, tensor in like.items():
        if update[name].shape != tensor.shape:
            raise UpdateError(
                f"The update's {name!r} has shape {tuple(update[name].shape)}, expected "
                f"{tuple(tensor.shape)} as in the model: check that both come from the same architecture."
            )
        if not torch.isfinite(update[name]).all():
            raise UpdateError(
                f"The update's {name!r} holds NaN or infinity: the client's training diverged or the file "
                "is damaged. Lower the client's learning rate or record the update again."
            )


def _some(names: Sequence[str]) -> str:
    return some([repr(name) for name in names])


# The running statistics of normalisation layers, which travel beside the weights and tell of the data too.


MEAN, VARIANCE, COUNTER = "running_mean", "running_var", "num_batches_tracked"
"""As torch names a layer's."""
RUNNING = (MEAN, VARIANCE, COUNTER)


def counted_batches(change: Params) -> set[float]:
    """Return by how much BatchNorm's counters of batches moved: each local step in train mode adds one.

    >>> counted_batches({"bn.num_batches_tracked": torch.tensor(3), "bn.weight": torch.ones(2)})
    {3.0}
    """
    return {float(tensor) for name, tensor in change.items() if name.endswith(COUNTER)}


def moved_statistics(before: Params, after: Params) -> list[str]:
    """The names of running means and variances that are not what they were.

    >>> moved_statistics({"norm.running_mean": torch.zeros(2)}, {"norm.running_mean": torch.ones(2)})
    ['norm.running_mean']
    """
    names = [name for name in before if name in after and name.rpartition(".")[2] in (MEAN, VARIANCE)]
    return [name for name in names if not _unmoved(before[name], after[name])]


def moved_others(before: Params, after: Params, *, averaged: bool = False) -> list[str]:
    """The names of buffers that are not what they were and no running statistics: a network's own, of any content.

    A counter is one number: what has the name of one and holds many counts nothing. Only a mean over clients may differ
    by rounding: in the last digits there is room for a picture.

    >>> moved_others({"norm.running_mean": torch.zeros(2), "seen": torch.zeros(2)}, {"seen": torch.ones(2)})
    ['seen']
    >>> moved_others({"num_batches_tracked": torch.zeros(2)}, {"num_batches_tracked": torch.ones(2)})
    ['num_batches_tracked']
    """
    kinds = {name: name.rpartition(".")[2] for name in before if name in after}
    further = [n for n, kind in kinds.items() if kind not in RUNNING or (kind == COUNTER and after[n].dim() > 0)]
    return [name for name in further if not _unmoved(before[name], after[name], averaged=averaged)]


def _unmoved(before: Tensor, after: Tensor, *, averaged: bool = True) -> bool:
    """Return whether they are equal up to storage in half precision or, if they are `averaged`, a mean over clients."""
    if torch.equal(before, after) or not before.is_floating_point():
        return torch.equal(before, after)
    rounded = (before.half().float(), before.bfloat16().float())
    alike = averaged and torch.allclose(after, before, rtol=1e-5, atol=0.0)
    return alike or any(torch.equal(after, copy) for copy in rounded)


# Order statistics of large tensors.


def kth_smallest(values: Tensor, k: int) -> Tensor:
    """The k-th smallest of a flat tensor, counted from 1, as a tensor without dimensions and without gradient.

    On a CPU by numpy, whose selection is vectorised: several times faster than torch's, which also tracks places.

    >>> kth_smallest(torch.tensor([5.0, 1.0, 3.0]), 2)
    tensor(3.)
    """
    values = values.detach()
    if values.device.type != "cpu":
        return torch.kthvalue(values, k).values
    return torch.as_tensor(np.partition(values.numpy(), k - 1)[k - 1], dtype=values.dtype)


# Optimal one-to-one pairing of two sets of images.


NEAR = 1e-6
"""Share of the two images' squares below which a distance is computed by itself: the product below is exact to about
1e-16 of these squares, so that every distance is exact to ten digits."""


MANY_ROWS = 500
"""From so many rows on, the time of a pairing matters."""


def squared_distances(first: Tensor, second: Tensor) -> Tensor:
    """Mean squared difference of every pair, on the CPU, in double precision.  # (n, ...) and (m, ...) -> (n, m)

    >>> squared_distances(torch.zeros(1, 4), torch.tensor([[1.0, 1, 1, 1], [0, 0, 0, 0]]))
    tensor([[1., 0.]], dtype=torch.float64)
    """
    a, b = first.cpu().double().flatten(1), second.cpu().double().flatten(1)
    squares_a, squares_b = a.square().sum(1), b.square().sum(1)
    if _repeats(squares_a) or _repeats(squares_b):
        (a, rows), (b, columns) = _distinct(a), _distinct(b)
        return torch.stack([_to_each(image, b) for image in a])[rows][:, columns]
    squares = squares_a[:, None] + squares_b
    table = (squares - 2 * a @ b.T) / a.shape[1]
    near = table * a.shape[1] < NEAR * squares
    for i in near.any(1).nonzero().flatten().tolist():
        table[i, near[i]] = _to_each(a[i], b[near[i]])
    return table


def assign(cost: Tensor) -> Tensor:
    """The partner of each row that minimises the total cost.  # (n, m >= n) -> (n,)

    >>> assign(torch.tensor([[1.0, 0.0], [0.0, 5.0]]))
    tensor([1, 0])
    """
    table = torch.nan_to_num(cost, nan=1e30, posinf=1e30).cpu()
    lowest = table.min(1)
    if int((table == lowest.values[:, None]).sum()) == len(table) == len(set(lowest.indices.tolist())):
        return lowest.indices  # each row has one cheapest partner, and no two rows the same
    if len(table) == table.shape[1] >= MANY_ROWS:  # repeated rows tie, which costs far less time as columns
        columns, rows = scipy.optimize.linear_sum_assignment(table.numpy().T)
    else:
        rows, columns = scipy.optimize.linear_sum_assignment(table.numpy())
    partner = torch.empty(cost.shape[0], dtype=torch.int64)
    partner[torch.as_tensor(rows)] = torch.as_tensor(columns)
    return partner


def _distinct(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the images without repetitions, and which of them each image is.  # (n, d) -> (k, d), (n,)"""
    place: dict[bytes, int] = {}
    which = torch.tensor([place.setdefault(image.numpy().tobytes(), len(place)) for image in images], dtype=torch.long)
    if len(place) == len(images):
        return images, which
    first = torch.full((len(place),), len(images)).scatter_reduce_(0, which, torch.arange(len(images)), "amin")
    return images[first], which


def _to_each(image: Tensor, candidates: Tensor) -> Tensor:
    """Return the mean squared difference from one image to each candidate.  # (d,) and (m, d) -> (m,)"""
    return (image - candidates).square().mean(1)


def _repeats(squares: Tensor) -> bool:
    """Return whether two images may be the same: their costs then tie, and the last bits decide the pairing."""
    return len(set(squares.tolist())) < len(squares)
