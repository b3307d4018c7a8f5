"""Canaries in a real training, inserted before clipping and noise, so that `fedglass epsilon` can measure epsilon.

They change the training, and are off unless a recorder is given `canaries=N`. With Opacus a canary is an example that
has only a gradient: it is clipped as any other, and takes part in each step with the accountant's sampling rate. With a
mod of Flower that clips and adds noise, canaries are added to the update before the mod, and take its place almost.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.fl.canaries import LENGTH
from fedglass.models.names import unwrap
from fedglass.recorders.client import ClientRecorder, folder_name
from fedglass.recorders.defences import closure_variables
from fedglass.recorders.hooks import replaced
from fedglass.recordings.privacy import CanaryKey, keys_folder, store_key

log = logging.getLogger("fedglass")
ANNOUNCED = (
    "fedglass inserts %d canaries into the training of %r, which change the model: use such a run for an audit only."
)
NOT_INSERTED = (
    "No canary was inserted into the training of %r: no DPOptimizer of Opacus took a step on this model with an "
    "accountant and gradients per example."
)
NO_OPACUS = (
    "canaries need gradients per example, which a training loop has only with Opacus: import Opacus and make the "
    "optimiser private first, or leave canaries out."
)
NO_MOD = (
    "canaries need a mod inside of the recording mod that clips and adds noise on the client, such as LocalDpMod: "
    "add one, or leave canaries out."
)
NO_FILTER = (
    "canaries cannot be inserted in NVFlare, which has no filter that clips an update and adds noise to all of it: "
    "leave canaries out."
)
DP_MOD = "flower_local_dp"
"""fedglass's name of Flower's mod that clips and adds noise on the client."""
OPTIMIZERS = "opacus.optimizers.optimizer"


def key_for_steps(model: nn.Module, count: int) -> CanaryKey:
    """Return a new key for a training with Opacus; refuse one without gradients per example."""
    if OPTIMIZERS not in sys.modules:
        raise UsageError(NO_OPACUS)
    key = CanaryKey.drawn(count, "example")
    key.canaries.check(sum(weight.numel() for weight in model.parameters() if weight.requires_grad))
    return key


@contextmanager
def canaries_in_steps(model: nn.Module, key: CanaryKey | None) -> Iterator[list[str]]:
    """Insert canaries into the gradients per example of Opacus, in all steps of the block that train one model.

    Yield the names of the tensors that hold canaries: none until a step was taken, and none without a key.
    """
    if key is None:
        yield []
        return
    optimizer = sys.modules[OPTIMIZERS].DPOptimizer
    plain: Callable[[Any], None] = optimizer.clip_and_accumulate
    name_of = {id(weight): name for name, weight in unwrap(model).named_parameters()}
    included, draws = key.canaries.coins().nonzero()[:, 0], stream(int(key.seed, 16), "steps")
    names: list[str] = []

    def insert(private: Any) -> None:
        """Append a Poisson sample of the canaries to the gradients per example, once in each step."""
        rate = sampling_rate(private)
        weights = {name_of[id(weight)]: weight for weight in private.params if id(weight) in name_of}
        # Of a batch that is split for memory, all parts but the last skip the step.
        if rate is None or len(weights) < len(private.params) or private._check_skip_next_step(pop_next=False):
            return
        taken = torch.rand(len(included), generator=draws) < rate
        like: Mapping[str, Tensor] = {name: weight.detach() for name, weight in weights.items()}
        for chunk in key.canaries.chunks(like, included[taken].tolist(), LENGTH * float(private.max_grad_norm)):
            for name, weight in weights.items():
                rows = private._get_flat_grad_sample(weight)
                weight.grad_sample = torch.cat([rows, chunk[name].to(rows)])
        names[:] = weights

    def clip_and_accumulate(private: Any) -> None:
        insert(private)
        plain(private)

    with replaced(optimizer, {"clip_and_accumulate": clip_and_accumulate}):
        yield names


def sampling_rate(private: Any) -> float | None:
    """Return the rate that Opacus's accountant counts with, from the hook that it has in the optimiser."""
    rate = closure_variables(getattr(private, "step_hook", None)).get("sample_rate")
    return float(rate) * private.accumulated_iterations if isinstance(rate, int | float) else None


def insert_canaries(key: CanaryKey, reply: Any, defences: Sequence[Mapping[str, Any]]) -> CanaryKey:
    """Add the included canaries to the model of a Flower reply, in place, before the mod that clips it and adds noise.

    Return the key with the names of the tensors that hold canaries: none if there is no such mod.
    """
    norms = [part["options"]["clipping_norm"] for part in defences if part["name"] == DP_MOD]
    records = list(reply.content.array_records.values())
    if not norms or len(records) != 1:
        return key
    arrays = {name: torch.from_numpy(np.array(array.numpy())) for name, array in records[0].items()}
    names = [name for name, array in arrays.items() if array.is_floating_point()]
    coins = key.canaries.coins()
    each = LENGTH * min(norms) / max(1, int(coins.sum())) ** 0.5
    total = key.canaries.total({name: arrays[name] for name in names}, coins * each)
    for name in names:
        made = (arrays[name] + total[name]).numpy()
        records[0][name] = type(records[0][name]).from_numpy_ndarray(made)
    return key.model_copy(update={"names": names})


def store_canaries(recorder: ClientRecorder, folder: str | Path, index: int, key: CanaryKey) -> None:
    """Write the key next to the folder of the recording and its commitment, or log that there are no canaries."""
    client = recorder.client
    if key.names:
        path = keys_folder(folder) / f"{folder_name(client)}.json"
        store_key(recorder.writer, path, client, index, key)
    elif key.unit == "example":
        log.error(NOT_INSERTED, client)
    else:
        log.error("No canary was inserted into the update of %r: %s", client, NO_MOD)
