"""How much of a trajectory fits into a memory budget."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.optimisers import Tensors
from fedglass.fl.local import MeanGradient, Step, begin, local_gradient
from fedglass.fl.trajectory import Memory, Trajectory

MIB = 2**20


def fit(trajectory: Trajectory, images: Tensor, targets: Tensor, budget_mib: float) -> Memory:
    """The fastest memory that stays within the budget: all graphs, all weights, or every k-th weights.

    With every k-th of T weights kept, ceil(T / k) + k of them are alive at once on the way back, next to one
    step's graph. The optimiser's state is kept along with the weights.
    """
    steps = len(trajectory.batches)
    first = begin(trajectory.training, trajectory.start)
    weights = sum(map(_bytes, (first.weights, *first.state.slots))) / MIB
    step = trajectory.step(0, trajectory.start, images, targets, second=True)
    graph = graph_bytes(step, trajectory.training.clip) / MIB
    if steps * (graph + weights) <= budget_mib:
        return Memory(every=1, graphs=True)
    needs = {
        every: (math.ceil(steps / every) + every - (every == 1)) * weights + graph
        for every in range(1, math.isqrt(steps) + 2)
    }
    for every, need in needs.items():
        if need <= budget_mib:
            return Memory(every=every)
    least = min(needs.values())
    raise UsageError(
        f"Simulating {steps} local steps needs at least {math.ceil(least)} MiB, but budget_mib is "
        f"{budget_mib:g}: raise it, or attack with a method that does not simulate, such as sme."
    )


def graph_bytes(step: Step, clip: float | None = None) -> int:
    """The bytes that one step's twice differentiable gradient keeps alive, weights left out."""
    seen: dict[int, int] = {}
    own = {w.untyped_storage().data_ptr() for w in step.weights}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    weights = [w.detach().requires_grad_() for w in step.weights]
    inner = replace(step, weights=weights, differentiable=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), torch.enable_grad():
        held = local_gradient(MeanGradient(), inner, clip)
    del held
    return sum(seen.values())


def _bytes(tensors: Tensors) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
