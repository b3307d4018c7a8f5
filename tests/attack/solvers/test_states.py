"""A search that was stopped and continues from its state is the same as one that was never stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedglass.attack.parts import Problem, no_progress
from fedglass.attack.solvers.adam import Adam, AdamOptions, LookaheadAdam, QuantisedAdam, SignedAdam
from fedglass.attack.solvers.schedules import CosineDecay, Keep, Last, Lowest, LowestFrom, SearchStates, storing
from fedglass.core.errors import DataError, UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Unknown

N = 12
SOLVERS = [Adam(), SignedAdam(), LookaheadAdam(), QuantisedAdam()]


class Stopped(Exception):
    pass


def problem(stop_at: float = 2.0) -> Problem:
    """A bumpy valley; its evaluation is interrupted from that share of the iterations on."""
    x, y = (torch.randn(3, generator=stream(0, name), dtype=torch.float64) for name in "xy")

    def energy(tensors: Sequence[Tensor], share: float) -> Tensor:
        if share >= stop_at:
            raise Stopped
        first, second = tensors
        return (first - second.square()).square().sum() + torch.sin(5 * second).sum()

    return Problem((Unknown(x, low=torch.tensor(-2.0), high=torch.tensor(2.0)), Unknown(y, every=2)), energy)


@pytest.mark.parametrize("keep", [Last(), Lowest(), LowestFrom(0.5)], ids=repr)
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
@pytest.mark.parametrize("stop", [1, 7, N])
def test_a_stopped_search_ends_as_if_it_had_not_been_stopped(
    solver: AdamOptions, keep: Keep, stop: int, tmp_path: Path
) -> None:
    solver = replace(solver, rate=0.1, iterations=N, keep=keep, schedule=CosineDecay())
    whole = solver.minimise(problem(), no_progress)
    folder = tmp_path / "states"
    with pytest.raises(Stopped), storing(SearchStates(folder, "run", every=0.0)):
        solver.minimise(problem(stop_at=stop / N), no_progress)
    states = SearchStates(folder, "run", every=0.0)
    evaluated = list[float]()
    with storing(states):
        resumed = solver.minimise(_recorded(problem(), evaluated), no_progress)
    assert min(evaluated) >= stop / N, "no iteration is repeated"
    assert resumed.energy == whole.energy
    assert torch.equal(resumed.trace, whole.trace)
    assert all(map(torch.equal, resumed.tensors, whole.tensors))
    assert states.seconds() > states.seconds_before > 0
    assert not folder.exists(), "the states of a run that has ended are removed"


def test_each_search_of_a_run_continues_from_its_own_state(tmp_path: Path) -> None:
    first, second = Adam(iterations=N), SignedAdam(iterations=N)

    def run(stop_at: float = 2.0) -> list[float]:
        ends = first.minimise(problem(), no_progress), second.minimise(problem(stop_at), no_progress)
        return [end.energy for end in ends]

    with pytest.raises(Stopped), storing(SearchStates(tmp_path, "run", every=0.0)):
        run(stop_at=0.5)
    evaluated = list[float]()
    with storing(SearchStates(tmp_path, "run")):
        resumed = [solver.minimise(_recorded(problem(), evaluated), no_progress) for solver in (first, second)]
    assert evaluated[0] == 1.0, "the first search has ended, but for the energy of its end"
    assert [solution.energy for solution in resumed] == run()


def test_a_short_search_and_one_without_a_folder_write_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "states"
    with pytest.raises(Stopped), storing(SearchStates(folder, "run")):
        Adam(iterations=N).minimise(problem(stop_at=0.5), no_progress)
    Adam(iterations=N).minimise(problem(), no_progress)
    assert not folder.exists()


def test_the_state_of_another_run_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Stopped), storing(SearchStates(tmp_path, "run", every=0.0)):
        Adam(iterations=N).minimise(problem(stop_at=0.5), no_progress)
    with pytest.raises(UsageError), storing(SearchStates(tmp_path, "another run")):
        Adam(iterations=N).minimise(problem(), no_progress)
    (state,) = tmp_path.rglob("*.safetensors")
    state.write_bytes(state.read_bytes()[:-40])
    with pytest.raises(DataError), storing(SearchStates(tmp_path, "run")):
        Adam(iterations=N).minimise(problem(), no_progress)


def _recorded(of: Problem, shares: list[float]) -> Problem:
    """Return the same problem, which appends the share of the iterations at each evaluation."""

    def energy(tensors: Sequence[Tensor], share: float) -> Tensor:
        shares.append(share)
        return of.energy(tensors, share)

    return replace(of, energy=energy)
