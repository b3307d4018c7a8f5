"""The tensors of a framework's message under the names that the model has for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

from torch import nn

Value = TypeVar("Value")
WRAPPERS = ("_orig_mod.", "_module.", "module.")
"""What compiling, Opacus and parallel training put in front of names."""


def under_own_names(
    arrays: Mapping[str, Value], model: nn.Module, untrained: Collection[str] = ()
) -> dict[str, Value] | None:
    """The same values under the model's names, in the model's order; None where they are not the model's.

    Lists of arrays travel under the keys '0', '1', ..., in the order of the model's state. Parameters that are not
    trained may be left out.

    >>> under_own_names({"0": "w", "1": "b"}, nn.Linear(1, 1)), under_own_names({"_orig_mod.bias": 1}, nn.Linear(1, 1))
    ({'weight': 'w', 'bias': 'b'}, None)
    """
    own = [_bare(name) for name in model.state_dict()]
    parameters = [_bare(name) for name, _ in model.named_parameters()]
    still = {_bare(name) for name in untrained}
    parts = [[name for name in names if name not in still] for names in (own, parameters)]
    keys = [_bare(name) for name in arrays]
    if len(set(keys)) < len(keys):
        return None
    for names in (own, parameters, *parts):
        if keys == [str(i) for i in range(len(names))]:
            return dict(zip(names, arrays.values(), strict=True))
        if set(keys) == set(names):
            given = dict(zip(keys, arrays.values(), strict=True))
            return {name: given[name] for name in names}
    return None


def unwrapped(model: nn.Module) -> nn.Module:
    """The network itself, out of what wraps it."""
    while True:
        inner = next((child for name, child in model.named_children() if f"{name}." in WRAPPERS), None)
        if inner is None or len(list(model.children())) > 1:
            return model
        model = inner


def _bare(name: str) -> str:
    for prefix in WRAPPERS:
        name = name.removeprefix(prefix)
    return name
