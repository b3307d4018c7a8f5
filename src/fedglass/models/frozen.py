"""Networks with parameters that are not trained, as in fine-tuning: these are constant, as buffers are."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from fedglass.core.errors import ModelError
from fedglass.core.text import some

FIXED = "untrained_parameters"
DOUBLE_ROUNDING = 16 * torch.finfo(torch.float64).eps
"""The relative rounding of a mean that was taken in double precision."""


def with_fixed(model: nn.Module, names: Collection[str]) -> nn.Module:
    """Return a copy of the model with these parameters as buffers, which are neither differentiated nor sent.

    >>> model = with_fixed(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), ["0.weight", "0.bias"])
    >>> [name for name, _ in model.named_parameters()], [name for name, _ in model.named_buffers()]
    (['1.weight', '1.bias'], ['0.weight', '0.bias'])
    """
    wrong = [name for name in names if name not in can_be_fixed(model)]
    if wrong:
        raise ModelError(
            f"{wrong[0]!r} cannot be held fixed: it is not a parameter of the network, or several layers share it."
        )
    partly_fixed = copy.deepcopy(model)
    for name in names:
        path, _, last = name.rpartition(".")
        layer = partly_fixed.get_submodule(path)
        tensor = layer._parameters.pop(last)
        assert tensor is not None, "it was found among the parameters"
        layer.register_buffer(last, tensor.detach().clone())
    # This attribute gives the network another identity than the same one with all layers trained.
    vars(partly_fixed)[FIXED] = (*vars(partly_fixed).get(FIXED, ()), *names)
    return partly_fixed


def can_be_fixed(model: nn.Module) -> list[str]:
    """Return the parameters that no two layers share."""
    places: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).append(name)
    return [names[0] for names in places.values() if len(names) == 1]


def matching_parameters(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Return the parameters with names that match a pattern.

    Refuse a pattern that matches no parameter, and patterns that together match all of them.

    >>> matching_parameters(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), ["0.*"])
    ['0.weight', '0.bias']
    """
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            raise ModelError(
                f"federation.untrained has {pattern!r}, which matches no parameter, expected some of "
                f"{some(names)}: correct it; * stands for any characters."
            )
    matches = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    if len(matches) == len(names):
        raise ModelError("federation.untrained has all parameters of the network: leave some to be trained.")
    return matches


def exceeds_precision(tensor: Tensor, kind: torch.dtype, start: Tensor | None) -> bool:
    """Return True if weights need more precision than the model's type has and did not start that way.

    Such weights have moved, and the model's type cannot represent the move.

    >>> fine = torch.ones(2, dtype=torch.float64) + 1e-12
    >>> exceeds_precision(fine, torch.float32, start=torch.ones(2)), exceeds_precision(fine, torch.float32, start=fine)
    (True, False)
    >>> exceeds_precision(fine, torch.float64, start=None)
    False
    """
    weights = tensor.double()
    finer = not torch.equal(weights.to(kind).double(), weights)
    return finer and (start is None or not torch.equal(start.double(), weights))


def unmoved(before: Tensor, update: Tensor) -> bool:
    """Return True if an update is zero up to the rounding of a mean over clients or of a difference.

    Rounding ends at numbers that a weight can represent, or is that of double precision. Any value between is a
    difference that was sent as such, and depends on the data however small it is.
    """
    grain = 2 * torch.finfo(before.dtype).eps
    held = (before + update) - before == update
    rounded = torch.where(held, update.abs() <= grain * before.abs(), update.abs() <= DOUBLE_ROUNDING * before.abs())
    return bool(rounded.all())
