"""A training on disk: where it stands, so that it continues, and the model it has come to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedglass.core.errors import DataError, UsageError
from fedglass.core.files import write_atomic
from fedglass.diffusion.training import State

STATE = "training.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def write_state(folder: Path, state: State, identity: str) -> None:
    """All that the next step depends on, in one file that is whole or not there."""
    tensors = {f"weights {name}": tensor for name, tensor in state.network.state_dict().items()}
    tensors |= {f"average {name}": tensor for name, tensor in state.averaged.items()}
    for name, parameter in state.network.named_parameters():
        for moment in _MOMENTS if parameter in state.optimiser.state else ():
            tensors[f"{moment} {name}"] = state.optimiser.state[parameter][moment]
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    way = json.dumps({"step": state.step, "seconds": state.seconds})
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / STATE, save(whole, {"identity": identity, "way": way}))


def resume(folder: Path, state: State, identity: str) -> State:
    """The state that the folder holds; the one that is given where it holds none. Another training's is refused."""
    path = folder / STATE
    if not path.is_file():
        return state
    try:
        with safe_open(str(path), framework="pt") as file:
            facts = file.metadata() or {}
            if facts.get("identity") != identity:
                raise UsageError(
                    f"{folder} holds another training (other data, size or options): choose another folder with -o, "
                    "or repeat the options it was begun with."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        _restore(state, tensors, json.loads(facts["way"]))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise DataError(f"{path} can not be read ({error}): it is damaged, delete it to begin anew.") from error
    return state


def _restore(state: State, tensors: Mapping[str, Tensor], way: Mapping[str, float]) -> None:
    state.network.load_state_dict({name: tensors[f"weights {name}"] for name in state.network.state_dict()})
    state.averaged = {name: tensors[f"average {name}"] for name in state.averaged}
    state.step, state.seconds = int(way["step"]), float(way["seconds"])
    for name, parameter in state.network.named_parameters():
        if f"{_MOMENTS[0]} {name}" in tensors:
            moments = {moment: tensors[f"{moment} {name}"] for moment in _MOMENTS}
            state.optimiser.state[parameter] = {"step": torch.tensor(float(state.step)), **moments}
