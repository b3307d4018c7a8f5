"""Knowledge that remembers whether an oracle fact was looked at, and its move to a device."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from fedglass.core.params import Params
from fedglass.core.types import Knowledge, Observation

ORACLE = ("labels", "batch_labels")
"""The facts that no real adversary has."""


class Watched(Knowledge):
    """The same facts; `oracle_used` tells which of the oracle's an attack has read.

    An attack is marked as an oracle's by what it does, not by what it is called.
    """

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name in ORACLE and value is not None:
            super().__getattribute__("__dict__").setdefault("_read", set()).add(name)
        return value

    @property
    def oracle_used(self) -> frozenset[str]:
        return frozenset(vars(self).get("_read", ()))


def moved(observation: Observation, device: torch.device) -> tuple[Observation, Watched]:
    """A copy on the device, sharing no tensor with the original, and its watched knowledge.

    Copied also where it is on the device already: fresh tensors are aligned alike in every process, on which
    the last bits of a matrix product may depend, and an attack can not change what the next one sees.
    """
    facts = {f.name: _copied(getattr(observation.knows, f.name), device) for f in fields(Knowledge)}
    knows = Watched(**facts)
    tensors = (observation.before, observation.buffers, observation.update)
    before, buffers, update = (_copied_all(params, device) for params in tensors)
    # `to` moves a module in place: the observation's own must stay where it is.
    model = observation.model if device.type == "cpu" else copy.deepcopy(observation.model).to(device)
    return Observation(model, before, buffers, update, knows), knows


def _copied(value: Any, device: torch.device) -> Any:
    return value.detach().to(device, copy=True) if isinstance(value, Tensor) else value


def _copied_all(params: Params, device: torch.device) -> dict[str, Tensor]:
    return {name: _copied(tensor, device) for name, tensor in params.items()}
