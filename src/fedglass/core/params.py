"""Arithmetic on named tensors: the weights of a model and the updates between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedglass.core.errors import ModelError, UpdateError
from fedglass.core.words import some

Params = Mapping[str, Tensor]
Update = Mapping[str, Tensor]
"""after - before. One sign everywhere, never divided by a learning rate."""


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
        said = [f"lacks {_some(missing)}"] * bool(missing) + [f"has the unknown {_some(extra)}"] * bool(extra)
        raise UpdateError(
            f"The update does not fit the model: it {' and '.join(said)}. "
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
