"""Theorem 1 and the budgets of the maliciously curious client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedglass.attack.parts import no_progress
from fedglass.core.errors import UsageError
from fedglass.core.types import Training
from fedglass.defend.accounting import Mechanism, clt_epsilon, clt_uniform_epsilon
from fedglass.reproduce.image_sources import populations
from fedglass.reproduce.messages import clients_of_message, simulated_message
from fedglass.reproduce.paper import paper_of
from fedglass.reproduce.papers.malicious import budgets
from fedglass.reproduce.probes.theory import Theorem1
from fedglass.reproduce.tables import Request, table

PRINTED = {3: 3.3, 5: 1.7, 7: 1.2}


def experiment(row: int) -> Any:
    of = table("malicious-theorem1")
    return paper_of(of).tables[of.name].experiment(of.rows[row - 1], "terms", Request(iterations=2))


def measured(row: int, audited: tuple[int, ...] = (0, 1, 3)) -> dict[str, Any]:
    made = experiment(row)
    population = populations(["mnist"], [], None, seed=0)["mnist"]
    target = simulated_message(made, clients_of_message(made.setup, population, 0), seed=0)
    found = replace(made.probe, audited=audited).measure(target, 0, no_progress)
    extra: dict[str, Any] = found.record["extra"]
    return extra


def test_without_noise_the_bound_begins_at_the_base_error_and_holds() -> None:
    """What is estimated from the rounds themselves can not be below them (triangle inequality, Eq. 35)."""
    found = measured(1)
    first, *later = found["rounds"]
    assert first["gap"] == first["noise"] == 0
    assert all(r["noise"] == 0 for r in later)
    (lines,) = found["lines"]
    errors, limits = (dict(lines["points"][name]) for name in ("measured", "Theorem 1"))
    assert all(errors[index] <= limits[index] * (1 + 1e-6) for index in errors)
    assert found["measures"]["undefined"] == 0


def test_noise_enters_and_poison_takes_the_gap_away() -> None:
    noisy = measured(2)["rounds"]
    assert noisy[0]["noise"] == 0 < noisy[1]["noise"] < noisy[2]["noise"]
    poisoned = measured(3)
    assert [r["gap"] for r in poisoned["rounds"]] == [0, None, None]
    assert (poisoned["measures"]["undefined"], poisoned["measures"]["capped"]) == (2, 2)


def test_more_than_one_local_step_is_refused() -> None:
    made = experiment(1)
    setup = replace(made.setup, training=Training(0.01, epochs=2))
    population = populations(["mnist"], [], None, seed=0)["mnist"]
    target = simulated_message(replace(made, setup=setup), clients_of_message(setup, population, 0), seed=0)
    with pytest.raises(UsageError, match="one step"):
        made.probe.measure(target, 0, no_progress)
    with pytest.raises(UsageError, match="ascend from 0"):
        Theorem1(made.probe.reader, 1, (1, 2))


def agree(accountant: Any, product: float) -> bool:
    """Whether an accountant gives all printed values where q sqrt(T) is `product`."""
    found = {z: accountant(Mechanism(float(z), product / 1000, 10**6), 1e-5) for z in PRINTED}
    return all(f"{found[z]:.1f}" == f"{PRINTED[z]:.1f}" for z in PRINTED)


def test_the_printed_budgets_are_those_of_uniform_batches() -> None:
    grid = [1.5 + i / 1000 for i in range(1500)]
    sizes = [product for product in grid if agree(clt_uniform_epsilon, product)]
    assert (sizes[0], sizes[-1]) == (pytest.approx(2.009, abs=2e-3), pytest.approx(2.046, abs=2e-3))
    assert not any(agree(clt_epsilon, product) for product in grid)


def test_the_table_marks_the_sizes_that_fit() -> None:
    lines = budgets(table("malicious-budgets")).lines
    assert [line[-2] == line[-1] for line in lines] == [True] * 6 + [False] * 3
