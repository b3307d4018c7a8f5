"""Which iterate is kept where the objective changes on the way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fedglass.attack.parts import Problem, Solution, no_progress
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.solvers.schedules import Keep, Lowest, LowestFrom
from fedglass.core.errors import UsageError
from fedglass.core.types import Unknown

SWITCH = 0.6


def run(keep: Keep, iterations: int = 50) -> tuple[Solution, list[tuple[float, float]]]:
    """A problem that gains a constant at the switch; (share, energy) of all iterates."""
    seen: list[tuple[float, float]] = []

    def energy(tensors: Sequence[Tensor], share: float) -> Tensor:
        value = (tensors[0] - 1).abs().sum() + (5.0 if share >= SWITCH else 0.0)
        seen.append((share, float(value.detach())))
        return value

    solver = Adam(rate=0.3, iterations=iterations, keep=keep)  # a constant rate dances around the minimum
    return solver.minimise(Problem((Unknown(torch.zeros(2)),), energy), no_progress), seen


def test_the_lowest_is_one_that_lacked_a_term() -> None:
    found, seen = run(Lowest())
    assert found.energy == min(e for _, e in seen) < 5


@pytest.mark.parametrize("iterations", [1, 2, 5, 50])
def test_from_the_switch_on_only_whole_energies_compete(iterations: int) -> None:
    found, seen = run(LowestFrom(SWITCH), iterations)
    assert found.energy == min(e for share, e in seen if share >= SWITCH) >= 5
    assert float((found.tensors[0] - 1).abs().sum() + 5) == pytest.approx(found.energy)


def test_from_the_start_it_is_the_lowest_and_from_the_end_the_last() -> None:
    assert run(LowestFrom(0.0))[0].energy == run(Lowest())[0].energy
    found, seen = run(LowestFrom(1.0))
    assert found.energy == seen[-1][1]


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_lies_between_none_and_all(share: float) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        LowestFrom(share)
