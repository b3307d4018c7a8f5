"""How much of a trajectory fits into a memory budget."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.fl.local import MeanGradient, Step
from fedglass.fl.trajectory import Memory, Trajectory

MIB = 2**20


def fit(trajectory: Trajectory, images: Tensor, targets: Tensor, budget_mib: float) -> Memory:
    """The fastest memory that stays within the budget: all graphs, all weights, or every k-th weights.

    With every k-th of T weights kept, ceil(T / k) + k of them are alive at once on the way back, next to one
    step's graph.
    """
    steps = len(trajectory.batches)
    weights = sum(w.numel() * w.element_size() for w in trajectory.start) / MIB
    graph = graph_bytes(trajectory.step(0, trajectory.start, images, targets, second=True)) / MIB
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


def graph_bytes(step: Step) -> int:
    """The bytes that one step's twice differentiable gradient keeps alive, weights left out."""
    seen: dict[int, int] = {}
    own = {w.untyped_storage().data_ptr() for w in step.weights}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    weights = [w.detach().requires_grad_() for w in step.weights]
    inner = Step(step.network, weights, step.inputs, step.targets, differentiable=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor), torch.enable_grad():
        held = MeanGradient().gradient(inner)
    del held
    return sum(seen.values())
