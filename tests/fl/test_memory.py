"""The memory that is chosen stays within its budget, and a budget that is too small is refused in words."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.optimisers import SGD, Adam, Optimiser
from fedglass.core.types import BatchNorm, Training
from fedglass.fl.local import schedule
from fedglass.fl.trajectory import MIB, Trajectory, TrajectoryMemory, fit, graph_bytes
from fedglass.models.network import Network

STEPS = 30


@pytest.fixture
def trajectory(toy: Any) -> Trajectory:
    model = toy.dense()
    batches = list(schedule(Training(0.1, epochs=10, batch_size=2), 6, None))
    assert len(batches) == STEPS
    return Trajectory(Network(model, {}, BatchNorm.FROZEN), list(model.parameters()), batches, Training(0.1))


@pytest.fixture
def data(toy: Any) -> tuple[Tensor, Tensor]:
    return toy.images(6)[None], torch.zeros(6, dtype=torch.int64)


def sizes(trajectory: Trajectory, data: tuple[Tensor, Tensor]) -> tuple[float, float]:
    weights = sum(w.numel() * w.element_size() for w in trajectory.start) / MIB
    return weights, graph_bytes(trajectory.step(0, trajectory.start, *data, second=True)) / MIB


def needed(memory: TrajectoryMemory, weights: float, graph: float) -> float:
    """What is alive at once, counted anew."""
    if memory.graphs:
        return STEPS * (weights + graph)
    kept = len(range(0, STEPS, memory.every))
    again = memory.every if memory.every > 1 else 0
    return (kept + again) * weights + graph


def test_a_large_budget_keeps_every_graph(trajectory: Trajectory, data: tuple[Tensor, Tensor]) -> None:
    assert fit(trajectory, *data, budget_mib=1024.0) == TrajectoryMemory(every=1, graphs=True)


def test_whatever_is_chosen_fits_and_more_budget_recomputes_less(
    trajectory: Trajectory, data: tuple[Tensor, Tensor]
) -> None:
    weights, graph = sizes(trajectory, data)
    full = STEPS * (weights + graph)
    chosen = []
    for share in torch.linspace(1, 0, 60).tolist():
        try:
            memory = fit(trajectory, *data, budget_mib=share * full)
        except UsageError:
            break
        assert needed(memory, weights, graph) <= share * full + 1e-9
        chosen.append(memory)
    assert chosen[0].graphs
    assert [m.every for m in chosen] == sorted(m.every for m in chosen)
    assert len({m.every for m in chosen}) > 2
    assert len(chosen) < 60


def test_the_least_budget_of_the_message_is_enough(trajectory: Trajectory, data: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(UsageError, match=r"Simulating 30 local steps needs at least .* MiB, but budget_mib is 0:") as e:
        fit(trajectory, *data, budget_mib=0.0)
    least = re.search(r"at least (\d+) MiB", str(e.value))
    assert least is not None
    fit(trajectory, *data, budget_mib=float(least.group(1)))


@pytest.mark.parametrize(("optimiser", "copies"), [(SGD(momentum=0.9), 2), (Adam(), 3)], ids=repr)
def test_the_state_of_the_optimiser_counts(
    trajectory: Trajectory, data: tuple[Tensor, Tensor], optimiser: Optimiser, copies: int
) -> None:
    weights, graph = sizes(trajectory, data)
    heavy = replace(trajectory, training=replace(trajectory.training, optimiser=optimiser))
    for share in (1.0, 0.8, 0.6, 0.4):
        budget = share * STEPS * (copies * weights + graph)
        assert needed(fit(heavy, *data, budget), copies * weights, graph) <= budget + 1e-9
    assert fit(heavy, *data, STEPS * (copies * weights + graph)).graphs
    assert not fit(heavy, *data, STEPS * (copies * weights + graph) - 1e-6).graphs


def test_a_clipped_graph_is_larger(trajectory: Trajectory, data: tuple[Tensor, Tensor]) -> None:
    step = trajectory.step(0, trajectory.start, *data, second=True)
    assert graph_bytes(step, clip=1.0) > graph_bytes(step)


def test_a_graph_grows_with_its_batch(trajectory: Trajectory, data: tuple[Tensor, Tensor]) -> None:
    images, labels = data
    batches = list(schedule(Training(0.1), 6, None))
    wide = Trajectory(trajectory.network, trajectory.start, batches, Training(0.1))
    assert sizes(wide, (images, labels))[1] > sizes(trajectory, data)[1] > images[0, :2].nbytes / MIB
