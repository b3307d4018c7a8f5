"""The bounds of SME's theorems, and what is measured on the segment."""

from __future__ import annotations

import math

import pytest

from fedglass.attack.parts import no_progress
from fedglass.core.types import Training
from fedglass.reproduce.image_sources import populations
from fedglass.reproduce.messages import clients_of_message, simulated_message
from fedglass.reproduce.paper import Experiment, Setup, paper_of
from fedglass.reproduce.probes.geometry import PathConstants, SegmentBounds
from fedglass.reproduce.tables import Request, table

PATH = PathConstants(rate=0.01, steps=10, least_share=0.99, steepness=1.0, smoothness=5.0, drop=0.5)


def test_the_bounds_are_those_of_the_paper() -> None:
    g2, scaling = 0.1, math.sqrt(10 * (0.01 * 0.01 / (1 - 0.025)) * 1.0 / 0.5)
    assert PATH.outside == pytest.approx(g2)
    assert PATH.scaling == pytest.approx(scaling)
    assert PATH.gradient_descent_bound() == pytest.approx((g2 + scaling) ** 2)
    growth = 1.05**9
    bound, probability = PATH.stochastic_bound(0.001, 0.5)
    drift = 10 * 0.001 * 0.01 * growth / 0.5
    assert bound == pytest.approx(0.02 + 1.1 / 0.9 / (1 - scaling) * (scaling + drift) + g2**2)
    c = 1 / (0.1 * growth)
    assert probability == pytest.approx(1 - 30 * math.exp(-min(c * 0.25 / (40 * 1e-6), c * 0.5 / 0.004)))


def test_there_is_no_bound_where_a_theorem_does_not_apply() -> None:
    rising = PathConstants(0.01, 10, 0.99, 1.0, 5.0, -0.5)
    steep = PathConstants(0.3, 10, 0.99, 1.0, 5.0, 0.5)
    assert rising.gradient_descent_bound() == steep.gradient_descent_bound() == math.inf
    assert PATH.stochastic_bound(0.0, 0.5) == rising.stochastic_bound(1.0, 0.5) == (math.inf, 0.0)


@pytest.mark.parametrize(("batch", "noisy"), [(None, False), (2, True)])
def test_a_training_is_measured_next_to_its_bounds(batch: int | None, noisy: bool) -> None:
    setup = Setup("femnist", "lenet_tanh", Training(0.01, epochs=6, batch_size=batch), 6)
    population = populations(["femnist"], [], None, 0)["femnist"]
    clients = clients_of_message(setup, population, 0)
    target = simulated_message(Experiment(setup, SegmentBounds(5)), clients, 0)
    measures = SegmentBounds(5).measure(target, 0, no_progress).record["extra"]["measures"]
    assert (measures["noise"] > 1e-4) == noisy, "whole batches have no noise"
    assert 0 <= measures["lsim_best"] < 1
    assert ("bound_sgd" in measures) == (measures["scaling"] < 1)
    assert all(math.isfinite(value) for value in measures.values())


@pytest.mark.parametrize("name", ["sme-theorem43", "sme-theorem45"])
def test_the_theorems_are_tables(name: str) -> None:
    of = table(name)
    for row in of.rows:
        made = paper_of(of).tables[name].experiment(row, "geometry", Request())
        assert isinstance(made.probe, SegmentBounds)
        assert (made.setup.training.batch_size == 50) == (name == "sme-theorem43")
