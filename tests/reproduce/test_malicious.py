"""The tables and figures of the maliciously curious client as experiments, and what is measured in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedglass.attack.labels.given import OracleLabels
from fedglass.attack.parts import no_progress
from fedglass.audit.target import AuditProgress, Target
from fedglass.core.errors import UsageError
from fedglass.core.rng import derive
from fedglass.core.types import Training
from fedglass.defend.dpsgd import GhostDPSGD
from fedglass.execution.processes import executor_for
from fedglass.federation.behaviours import Honest, SignFlip
from fedglass.federation.views import Knows
from fedglass.fl.aggregate.rule import Aggregator, WeightedMean
from fedglass.fl.aggregate.selection import DnC, Krum
from fedglass.fl.local import MeanGradient
from fedglass.models.init import KaimingUniform, Orthogonal, PyTorchDefault
from fedglass.recipes.maliciously_curious_client import maliciously_curious_client
from fedglass.reproduce.cases import cells, check_options, method_titles
from fedglass.reproduce.charts import charts_of
from fedglass.reproduce.compare import NO_BETTER, compare_cells
from fedglass.reproduce.image_sources import Population, populations
from fedglass.reproduce.messages import federation_of_run, played_federation
from fedglass.reproduce.paper import ClientTraining, Experiment, FederationRun, Setup, paper_of, peer_setup
from fedglass.reproduce.papers import malicious
from fedglass.reproduce.probes.peer import Accuracy, PeerRmse, ValidatedRmse, accuracies, joint_rmse
from fedglass.reproduce.run import run
from fedglass.reproduce.tables import Request, table
from fedglass.verdict.directory import Strips

TESTED = [*(f"malicious-table{number}" for number in range(1, 5)), "malicious-clipping"]


def made(name: str, row: int, method: str, request: Request | None = None) -> Experiment:
    of = table(name)
    return paper_of(of).tables[name].experiment(of.rows[row - 1], method, request or Request())


def course_of(experiment: Experiment) -> FederationRun:
    assert experiment.setup.federation_run is not None
    return experiment.setup.federation_run


@pytest.fixture(scope="module")
def population() -> Population:
    return populations(["mnist"], [], None, seed=0)["mnist"].with_own_labels()


def small(course: FederationRun, sizes: tuple[int, ...] = ()) -> Setup:
    setup = peer_setup("mnist", "lenet5", Training(0.05, epochs=2), sizes or (6, 6, 6, 6, 6))
    return replace(setup, sizes=sizes, federation_run=course)


def played(setup: Setup, population: Population, index: int = 0) -> Target:
    return played_federation(Experiment(setup, Accuracy(), Knows(labels=True)), population, index, 0)


@pytest.mark.parametrize("name", TESTED)
def test_accuracies_are_of_the_papers_federation(name: str) -> None:
    of = table(name)
    for row in of.rows:
        for method in method_titles(of):
            setup, course = (found := made(name, row.number, method)).setup, course_of(found)
            assert (setup.clients, setup.training.local_steps(1000), setup.training.batch_size) == (10, 5, 100)
            assert (setup.training.lr, course.alpha, setup.sizes) == (0.01, 0.1, ())
            noisy = "dp" in method and method != "dp0"
            assert isinstance(setup.gradient, GhostDPSGD if noisy else MeanGradient)


def test_a_method_is_a_poison_a_noise_or_a_rule() -> None:
    assert isinstance(course_of(made("malicious-table1", 1, "flip")).behaviour, SignFlip)
    assert made("malicious-table2", 3, "dp7").setup.gradient == GhostDPSGD(4.0, 7.0)
    krum = made("malicious-table4", 5, "krum-dp")
    assert (course_of(krum).rule, krum.setup.gradient) == (Krum(), GhostDPSGD(4.0, 3.0))
    assert course_of(made("malicious-table3", 2, "dnc", Request(rounds=7))) == FederationRun(7, DnC(), Honest(), 0.1)


def test_clipping_is_tried_with_other_initial_weights_pixels_and_networks() -> None:
    assert made("malicious-clipping", 1, "dp3") == made("malicious-table2", 1, "dp3")
    setups = [made("malicious-clipping", row, "dp0").setup for row in (2, 3, 4)]
    assert [(s.data, s.network, s.init) for s in setups] == [
        ("mnist-plain", "lenet5", KaimingUniform()),
        ("mnist", "lenet_tanh", KaimingUniform()),
        ("mnist", "lenet5", PyTorchDefault()),
    ]


def test_the_same_federation_in_four_tables_is_run_once() -> None:
    same = [("malicious-table2", 1, "dp0"), ("malicious-table3", 1, "mean"), ("malicious-table4", 1, "mean")]
    assert all(made(*each) == made("malicious-table1", 1, "passive") for each in same)
    assert made("malicious-table2", 2, "dp3") != made("malicious-table2", 2, "dp0")


@pytest.mark.parametrize("name", [*malicious.READ_TRAINED, *malicious.READ])
def test_figures_are_rounds_that_the_adversary_sees(name: str) -> None:
    of, small = table(name), Request(images=2, iterations=3)
    for row in of.rows:
        for method in method_titles(of):
            found = made(name, row.number, method, small)
            clients = row.setting.get("clients", 10)
            assert found.setup.sizes == (2,) * clients
            assert course_of(found).rounds == row.setting["round"]
            assert (course_of(found).before is None) == (name in malicious.READ)
            assert found.knows.labels
            assert isinstance(found.probe, PeerRmse | ValidatedRmse)
            assert found.probe.iterations == 3
            assert isinstance(found.setup.gradient, GhostDPSGD) == bool(row.setting.get("noise"))
    assert made(name, 1, "ours").setup.sizes == ((2,) * 4 if name == "malicious-rounds" else (100,) * 10)


def test_initial_weights_and_rules_of_the_figures() -> None:
    assert made("malicious-table5", 3, "ours").setup.init == Orthogonal()
    row = next(row for row in table("malicious-figure4").rows if row.setting["rule"] == "krum")
    assert course_of(made("malicious-figure4", row.number, "ours")).rule == Krum()
    assert course_of(made("malicious-figure2", 1, "ours")).rule == WeightedMean()


@pytest.mark.parametrize("name", malicious.PAPER.tables)
def test_every_table_can_be_asked_for_with_its_own_options(name: str) -> None:
    of = table(name)
    check_options(of, Request(iterations=of.default.get("iterations"), images=of.default.get("images")))
    if "round" not in of.rows[0].setting:
        with pytest.raises(UsageError, match="takes a trained network"):
            check_options(of, Request(weights={"autoencoder": "folder"}))


def test_classes_are_dealt_in_shares_of_each_clients_own(population: Population) -> None:
    drawn = population.dealt(0, (40, 40, 40), 0.1)
    again = population.dealt(0, (40, 40, 40), 0.1)
    assert [len(labels) for _, _, labels in drawn] == [40, 40, 40]
    assert all(torch.equal(one[1], other[1]) for one, other in zip(drawn, again, strict=True))
    even = population.dealt(0, (40, 40, 40), 1e6)
    most = [[int(labels.bincount().max()) for _, _, labels in each] for each in (drawn, even)]
    assert min(most[0]) > max(most[1]), "with a small alpha few classes make up a client"
    assert not torch.equal(drawn[0][1], population.dealt(1, (40, 40, 40), 0.1)[0][1])


def test_no_image_is_dealt_twice_before_all_of_its_class_are_out(population: Population) -> None:
    parts = population.dealt(0, (30, 30, 30, 30), 1e6)
    images = torch.cat([images for _, images, _ in parts]).flatten(1)
    assert len({tuple(image.tolist()) for image in images}) > 110  # glyphs repeat now and then by themselves


def test_the_adversary_alone_is_poisonous_and_undefended(population: Population) -> None:
    setup = replace(small(FederationRun(1, behaviour=SignFlip(), alpha=0.5)), gradient=GhostDPSGD(4.0, 3.0))
    federation = federation_of_run(setup, population, 0, 0)
    first, *others = federation.clients
    assert (first.behaviour, first.gradient) == (SignFlip(), MeanGradient())
    assert all((c.behaviour, c.gradient) == (Honest(), setup.gradient) for c in others)
    assert len(others) == 4


def test_accuracy_is_taken_on_the_way_and_at_the_end(population: Population) -> None:
    target = played(small(FederationRun(12)), population)
    assert sorted(accuracies(target.utility)) == [10, 12]
    finding = Accuracy().measure(target, 0, no_progress)
    measures = finding.record["extra"]["measures"]
    assert measures["accuracy"] == measures["accuracy_12"] == 100 * target.utility["test accuracy after 12"]


def test_runs_differ_in_network_and_data_and_repeat(population: Population) -> None:
    first, again, second = (played(small(FederationRun(1)), population, i).observation for i in (0, 0, 1))
    name = next(iter(first.before))
    assert torch.equal(first.before[name], again.before[name])
    assert torch.equal(first.update[name], again.update[name])
    assert not torch.equal(first.before[name], second.before[name])


def test_the_adversary_sees_the_round_after_those_before_it(population: Population) -> None:
    setup = small(FederationRun(3), (4, 4, 4))
    seen = played(setup, population).observation
    federation = federation_of_run(setup, population, 0, derive(0, "run", 0))
    *_, second, third = federation.play(3)
    name = next(iter(seen.before))
    assert torch.equal(seen.before[name], second.after[name])
    assert torch.equal(seen.update[name], third.step[name])
    assert seen.own is not None


def test_only_the_attacked_batch_of_a_client_with_more_data_is_fixed(population: Population) -> None:
    before = ClientTraining(30, Training(0.05, batch_size=10, steps=2))
    setup = small(FederationRun(3, alpha=0.5, before=before), (4, 4, 4))
    target = played(setup, population)
    federation = federation_of_run(setup, population, 0, derive(0, "run", 0))
    *_, second, _ = federation.play(3)
    name = next(iter(second.after))
    assert torch.equal(target.observation.before[name], second.after[name]), "the rounds before take all examples"
    attacked = torch.cat([client.images[:4] for client in federation.clients[1:]])
    assert torch.equal(target.known_truth.private.images, attacked)
    knows = target.observation.knows
    assert (knows.training, knows.sizes) == (setup.training, (4, 4, 4))


def test_where_the_rule_lets_nobody_else_through_a_later_round_is_seen(population: Population) -> None:
    """Krum takes one update, now and then the adversary's own."""
    setup = small(FederationRun(1, Krum()), (4, 4, 4, 4, 4))
    for index in range(8):
        target = played(setup, population, index)
        assert target.contributors != (federation_of_run(setup, population, index, 0).clients[0].name,)
        assert len(target.known_truth.private.labels) == 4


def test_an_attack_is_held_against_the_best_guess(population: Population) -> None:
    target = played(small(FederationRun(2), (2, 2, 2)), population)
    reader = maliciously_curious_client(OracleLabels(), rule="mean", iterations=2)
    finding = PeerRmse(reader, 2).measure(target, 0, no_progress)
    measures = finding.record["extra"]["measures"]
    blind = [measures[name] for name in ("grey", "black", "flat", "own", "mean", "class_mean")]
    assert measures["guess"] == min(blind)
    assert measures["rmse"] == pytest.approx(joint_rmse(finding.record["metrics"]["rmse"]))
    assert isinstance(finding.evidence, Strips)
    assert len(finding.evidence.shown) == 4, "those of the two others"


@pytest.mark.parametrize("rule", [WeightedMean(), Krum()])
def test_a_rate_is_chosen_on_images_that_the_adversary_knows(population: Population, rule: Aggregator) -> None:
    target = played(small(FederationRun(1, rule), (2, 2, 2, 2, 2)), population)
    named = "mean" if rule == WeightedMean() else "one_client"
    tried = [maliciously_curious_client(OracleLabels(), rule=named, iterations=n) for n in (1, 3)]
    validated = ValidatedRmse(((1e-3, tried[0]), (1e-2, tried[1])), 2, rule).measure(target, 0, no_progress)
    measures = validated.record["extra"]["measures"]
    best = tried[0] if measures["rate"] == 1e-3 else tried[1]
    assert measures["rmse"] == PeerRmse(best, 2).measure(target, 0, no_progress).record["extra"]["measures"]["rmse"]
    assert measures["rmse_rehearsed"] != measures["rmse"], "the round of the validation is another"


def test_rmse_is_that_of_equation_14() -> None:
    images, truth = torch.rand(3, 1, 4, 4), torch.rand(3, 1, 4, 4)
    each = [float((a - b).square().mean().sqrt()) for a, b in zip(images, truth, strict=True)]
    assert joint_rmse(each) == pytest.approx(float((images - truth).square().mean().sqrt()), rel=1e-5)


def test_a_figure_is_run_compared_and_drawn(tmp_path: Path) -> None:
    of, request = table("malicious-rounds"), Request(iterations=2)
    found = populations(["mnist"], [], None, 0)
    planned = cells(of, of.rows[:2], ["ours"], 2, found, request, 0)
    records = run(planned[:1], tmp_path, executor_for(1), AuditProgress())
    assert [record.status for record in records.values()] == ["done", "done"]
    (line,) = compare_cells(of, planned[:1], records)
    assert f"({NO_BETTER}" in line.measured["rmse"], "two iterations read nothing"
    assert NO_BETTER not in line.measured["accuracy"]
    (chart,) = charts_of(of, planned[:1], records)
    assert "best blind guess" in chart.svg


def test_what_came_back_is_told_where_rmse_is_high(tmp_path: Path) -> None:
    """A picture in another contrast is no better than a guess by RMSE, and shows the image."""
    of = table("malicious-rounds")
    planned = cells(of, of.rows[:1], ["ours"], 1, populations(["mnist"], [], None, 0), Request(iterations=1), 0)
    (record,) = run(planned, tmp_path, executor_for(1), AuditProgress()).values()

    def told(**measures: float) -> str:
        changed = record.model_copy(update={"extra": {**record.extra, "measures": measures}})
        (line,) = compare_cells(of, planned, {record.key: changed})
        return line.measured["rmse"]

    assert told(rmse=0.3, guess=0.2, back=100.0).endswith("(no better than guessing by RMSE, but 100 % came back)")
    assert told(rmse=0.3, guess=0.2, back=0.0).endswith("(no better than guessing)")
    assert told(rmse=0.1, guess=0.2, back=100.0) == "0.100"


def test_accuracies_are_drawn_along_the_rounds(tmp_path: Path) -> None:
    of, request = table("malicious-table1"), Request(rounds=11, images=10)
    planned = cells(of, of.rows[:1], ["passive", "flip"], 1, populations(["mnist"], [], None, 0), request, 0)
    records = run(planned, tmp_path, executor_for(1), AuditProgress())
    (chart,) = charts_of(of, planned, records)
    assert (chart.note, chart.svg.count("<polyline")) == ("MNIST", 2)
    assert chart.svg.count("<circle") >= 4, "after 10 and after 11 rounds"
    assert run(planned, tmp_path, executor_for(1), AuditProgress()).keys() == records.keys()


def test_the_papers_own_data_are_split(shared_data: Path) -> None:
    found = populations(["mnist", "fashion"], [], shared_data, 0)
    for population in found.values():
        test = population.test()
        assert not population.stand_in
        assert (len(population.dataset()), len(test.labels)) == (10_000, 2_000)
