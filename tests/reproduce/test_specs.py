"""From a row of a table to the experiment that re-creates it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedglass.attack.labels.counts import InterpolatedCounts
from fedglass.attack.labels.given import OracleBatchLabels, OracleLabels
from fedglass.attack.solvers.schedules import Constant
from fedglass.core.errors import UsageError
from fedglass.fl.local import MeanGradient
from fedglass.models.init import LeCunTruncatedNormal, PyTorchDefault
from fedglass.reproduce.cases import cells, choose_methods, method_titles
from fedglass.reproduce.image_sources import populations
from fedglass.reproduce.paper import Experiment, paper_of
from fedglass.reproduce.papers import dlfa, sme
from fedglass.reproduce.probes.geometry import Geometry
from fedglass.reproduce.probes.reconstruct import Reconstruct, TryTrainings
from fedglass.reproduce.tables import Request, figure, names, table


def made(name: str, row: int, method: str, request: Request | None = None) -> Experiment:
    of = table(name)
    return paper_of(of).tables[name].experiment(of.rows[row - 1], method, request or Request())


def test_every_table_is_run_or_compared_by_its_paper() -> None:
    for name in names():
        of = table(figure(name).table)
        assert (of.name in paper_of(of).tables) != (of.name in paper_of(of).compared)


def attack_of(experiment: Experiment) -> Any:
    assert isinstance(experiment.probe, Reconstruct)
    return experiment.probe.attack


@pytest.mark.parametrize("name", [*dlfa.PAPER.tables, *sme.PAPER.tables])
def test_every_cell_is_an_experiment_of_the_printed_number_of_steps(name: str) -> None:
    of = table(name)
    for row in of.rows:
        for method in method_titles(of):
            setup = made(name, row.number, method).setup
            assert setup.init == (LeCunTruncatedNormal() if name.startswith("dlfa") else PyTorchDefault())
            misprinted = name == "sme-table3" and row.number == 3
            if "steps" in row.setting and not misprinted:
                assert setup.training.local_steps(setup.examples) == row.setting["steps"]


def test_the_same_experiment_in_six_tables_is_run_once() -> None:
    base = made("dlfa-table1", 4, "prior")
    same = [("dlfa-table6", 1), ("dlfa-table7", 1), ("dlfa-table8", 3), ("dlfa-table10", 1), ("dlfa-table11", 4)]
    assert all(repr(made(name, row, "prior")) == repr(base) for name, row in same)
    assert repr(made("dlfa-table4", 5, "femnist")) == repr(base)
    assert repr(made("dlfa-table4", 8, "cifar100")) == repr(made("dlfa-table1", 9, "prior"))


def test_label_knowledge() -> None:
    assert attack_of(made("dlfa-table1", 4, "shared")).labels == OracleLabels()
    assert attack_of(made("dlfa-table3", 4, "shared")).labels == InterpolatedCounts()
    assert not made("dlfa-table3", 4, "shared").knows.labels
    assert attack_of(made("dlfa-table8", 1, "shared")).labels == OracleBatchLabels()
    assert attack_of(made("dlfa-table8", 1, "fedsgd")).labels == OracleLabels()
    assert attack_of(made("sme-table2", 1, "sme")).labels == OracleLabels()


def test_scoring_is_each_papers_own() -> None:
    dlfa, sme = made("dlfa-table1", 9, "prior").probe, made("sme-table2", 1, "dlfa").probe
    assert isinstance(dlfa, Reconstruct)
    assert isinstance(sme, Reconstruct)
    assert (dlfa.pairing, dlfa.threshold) == ("psnr", 19.0)
    assert (sme.pairing, sme.threshold) == ("error", 20.0)


def test_variations_of_the_setup() -> None:
    assert not made("dlfa-table8", 2, "prior").setup.training.shuffle
    assert made("dlfa-table10", 3, "prior").setup.clients == 4
    supposed = made("dlfa-table9", 3, "prior").supposed
    assert supposed is not None
    assert (supposed.epochs, supposed.batch_size, supposed.local_steps(50)) == (25, 25, 50)
    assert made("dlfa-table9", 1, "prior").supposed is None
    gradients = [made("dlfa-table6", row, "prior").setup.gradient for row in range(1, 8)]
    assert gradients[0] == MeanGradient()
    assert len(set(map(repr, gradients))) == 7


def test_later_rounds_are_warmed_up() -> None:
    rounds = [made("dlfa-table7", row, "prior").setup.warm_up for row in (1, 2, 3)]
    assert [None if w is None else (w.rounds, w.examples) for w in rounds] == [None, (5, 50), (10, 50)]
    trained = made("sme-table6", 13, "sme").setup.warm_up
    assert trained is not None
    assert (trained.rounds, trained.training.batch_size, trained.share) == (20, 50, 0.1)
    assert isinstance(made("sme-table5", 1, "geometry").probe, Geometry)


def test_networks_of_smes_table_7() -> None:
    setups = [made("sme-table7", row, "sme").setup for row in (1, 7, 13, 19)]
    assert [s.network for s in setups] == ["mlp_sme", "lenet_tanh_sme", "resnet8", "vit_sme"]
    assert [s.training.lr for s in setups] == [0.004, 0.4, 0.004, 0.004]
    solver = attack_of(made("sme-table7", 19, "sme")).stages[0].solver
    assert (solver.rate, solver.schedule) == (0.1, Constant())
    assert attack_of(made("sme-table7", 19, "dlfa")) == attack_of(made("sme-table2", 1, "dlfa"))


def test_iterations_can_be_changed() -> None:
    for method in ("dlfa", "ig", "sme"):
        assert attack_of(made("sme-table2", 1, method, Request(7))).stages[0].solver.iterations == 7


def test_methods_are_chosen_in_the_papers_order() -> None:
    of = table("sme-table2")
    assert choose_methods(of, []) == ["dlfa", "ig", "sme"]
    assert choose_methods(of, ["sme", "ig"]) == ["ig", "sme"]
    assert "fast" in method_titles(of)
    with pytest.raises(UsageError, match="Unknown method 'smee': did you mean 'sme'"):
        choose_methods(of, ["smee"])


def test_keys_depend_on_what_decides_a_run_and_on_nothing_else() -> None:
    of = table("dlfa-table2")
    rows, methods = of.rows[:2], ["before", "after"]
    found = populations(["femnist"], [], None, 0)
    torch.manual_seed(1)
    first = cells(of, rows, methods, 2, found, Request(), 0)
    again = cells(of, rows, methods, 2, populations(["femnist"], [], None, 0), Request(), 0)
    other = cells(of, rows, methods, 2, found, Request(), 1)
    keys = [case.key for cell in first for case in cell.cases]
    assert len(set(keys)) == 8
    assert keys == [case.key for cell in again for case in cell.cases]
    assert not set(keys) & {case.key for cell in other for case in cell.cases}


def test_no_clients_are_refused() -> None:
    with pytest.raises(UsageError, match="clients must be at least 1, got 0"):
        cells(table("dlfa-table2"), table("dlfa-table2").rows, [], 0, {}, Request(), 0)


def test_who_does_not_know_the_training_tries_all() -> None:
    """In every row of the table alike, whatever the paper supposes there."""
    rows = [made("dlfa-table9", row, "unknown") for row in (1, 3)]
    assert rows[0] == rows[1]
    assert isinstance(rows[0].probe, TryTrainings)
    assert rows[0].probe.probe == made("dlfa-table9", 1, "prior").probe
    assert (rows[0].knows.training, rows[0].knows.steps, rows[0].supposed) == (False, True, None)
    assert not made("dlfa-table8", 1, "unknown").knows.batch_labels
