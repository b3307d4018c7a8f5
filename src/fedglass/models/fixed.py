"""Networks of which a part is not trained, as in fine-tuning: that part is constant, as its buffers are."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from fedglass.core.errors import ModelError
from fedglass.core.text import some

FIXED = "untrained_parameters"
DOUBLE = 16 * torch.finfo(torch.float64).eps
"""The rounding of a mean that was taken in double precision, as a share."""


def with_fixed(model: nn.Module, names: Collection[str]) -> nn.Module:
    """A copy of the model whose parameters of these names are buffers: nobody differentiates by them or sends them.

    >>> model = with_fixed(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), ["0.weight", "0.bias"])
    >>> [name for name, _ in model.named_parameters()], [name for name, _ in model.named_buffers()]
    (['1.weight', '1.bias'], ['0.weight', '0.bias'])
    """
    wrong = [name for name in names if name not in can_be_fixed(model)]
    if wrong:
        raise ModelError(
            f"{wrong[0]!r} can not be held fixed: it is no parameter of the network, or one that several layers share."
        )
    made = copy.deepcopy(model)
    for name in names:
        path, _, last = name.rpartition(".")
        layer = made.get_submodule(path)
        tensor = layer._parameters.pop(last)
        assert tensor is not None, "it was found among the parameters"
        layer.register_buffer(last, tensor.detach().clone())
    # An attribute, by which the network is told from the same one with all layers trained.
    vars(made)[FIXED] = (*vars(made).get(FIXED, ()), *names)
    return made


def can_be_fixed(model: nn.Module) -> list[str]:
    """The parameters that one layer alone has."""
    places: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).append(name)
    return [names[0] for names in places.values() if len(names) == 1]


def matching(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """The parameters whose names match a pattern; one that matches none, or all of them together, is refused.

    >>> matching(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), ["0.*"])
    ['0.weight', '0.bias']
    """
    known = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in known):
            raise ModelError(
                f"federation.untrained has {pattern!r}, which is the name of no parameter, expected some of "
                f"{some(known)}: correct it; * stands for any characters."
            )
    found = [name for name in known if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    if len(found) == len(known):
        raise ModelError("federation.untrained has all parameters of the network: leave some to be trained.")
    return found


def lost(tensor: Tensor, kind: torch.dtype, start: Tensor | None) -> bool:
    """Whether weights hold more than the model's type can, and not because they came so: that moved, and is not read.

    >>> fine = torch.ones(2, dtype=torch.float64) + 1e-12
    >>> lost(fine, torch.float32, torch.ones(2)), lost(fine, torch.float32, fine), lost(fine, torch.float64, None)
    (True, False, False)
    """
    own = tensor.double()
    finer = not torch.equal(own.to(kind).double(), own)
    return finer and (start is None or not torch.equal(start.double(), own))


def unmoved(before: Tensor, update: Tensor) -> bool:
    """Whether an update is none, but for the rounding of a mean over clients or of a difference.

    Rounding ends at numbers that a weight can hold, or is that of double precision: whatever lies between is a
    difference that was sent as such, and tells of the data however small it is.
    """
    grain = 2 * torch.finfo(before.dtype).eps
    held = (before + update) - before == update
    rounded = torch.where(held, update.abs() <= grain * before.abs(), update.abs() <= DOUBLE * before.abs())
    return bool(rounded.all())
