"""The tables of coarse-to-fine: rows become experiments, averages are made of their parts, defences are in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from fedglass.attack.images.latent import GeneratorWeights
from fedglass.attack.parts import no_progress
from fedglass.attack.terms.term import Scaled, ScaleRule, Sum, Term
from fedglass.audit.cost import iterations_of_stages
from fedglass.cli.main import cli
from fedglass.core.errors import DataError, ModelError, UsageError
from fedglass.core.rng import stream
from fedglass.core.types import BatchNorm, Training
from fedglass.defend.accounting import Mechanism, gaussian_epsilon
from fedglass.defend.noise import Clip, GaussianNoise
from fedglass.defend.outpost import Outpost
from fedglass.defend.pruning import MagnitudePruning, Soteria
from fedglass.fl.release import AsIs, Chain
from fedglass.models.catalogue import build
from fedglass.models.init import FromFile, KaimingNormal, KaimingUniform, Orthogonal, Transfer
from fedglass.reproduce.cases import Cell, cells, choose_methods, data_kinds, method_titles
from fedglass.reproduce.charts import _x_of, charts_of
from fedglass.reproduce.compare import compare_cells, remarks
from fedglass.reproduce.image_sources import KINDS, populations
from fedglass.reproduce.messages import clients_of_message, simulated_message
from fedglass.reproduce.paper import Experiment, Method, Setup, paper_of
from fedglass.reproduce.papers.c2f import DELTA, NAMES, correlation, inverted
from fedglass.reproduce.probes.reconstruct import Invert
from fedglass.reproduce.tables import Printed, Request, table
from fedglass.verdict.records import Record


def setup(name: str, row: int, request: Request | None = None) -> Setup:
    of = table(name)
    return inverted(of.rows[row - 1].parts()[0], next(iter(of.methods)), request or Request()).setup


def planned(name: str, clients: int = 1, request: Request | None = None) -> list[Cell]:
    of, asked = table(name), request or Request(4)
    found = populations(data_kinds(of, of.rows, list(of.methods), asked), [], None, 0)
    return cells(of, of.rows, list(of.methods), clients, found, asked, 0)


def done(key: str, **measures: float) -> Record:
    fields = {"key": key, "attack": "a", "attack_repr": "a", "view": "v", "round": 1, "client": "0", "repeat": 0}
    extra = {"measures": measures}
    return Record.model_validate(fields | {"seed": 0, "versions": {}, "status": "done", "seconds": 1.0, "extra": extra})


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_an_experiment_on_data_of_the_right_shape(name: str) -> None:
    of = table(name)
    for row in of.rows:
        for part in row.parts():
            given = dict.fromkeys(("transfer", "25", "50", "75", "max"), __file__)
            for method in method_titles(of):
                made = inverted(part, method, Request(10, weights=given))
                assert isinstance(made.probe, Invert)
                assert sum(iterations_of_stages(made.probe.attack)) == 10
                assert not made.knows.labels
                assert made.setup.training.local_steps(made.setup.examples) == part.setting.get("steps", 1)
                assert made.setup.examples == part.setting.get("batch", 1)


def test_initialisations_and_networks() -> None:
    inits = [setup("c2f-table5", row).init for row in (2, 3, 4)]
    assert inits == [KaimingUniform(), KaimingNormal(), Orthogonal()]
    networks = [setup("c2f-figure15", row).network for row in (1, 2, 3, 4)]
    assert networks == ["mobilenet_v2", "resnet34", "resnet18", "densenet121"]


def test_pictures_are_of_the_size_asked_for() -> None:
    assert KINDS[setup("c2f-table1", 1).data].shape == (3, 96, 96)
    assert KINDS[setup("c2f-table1", 1, Request(side=224)).data].shape == (3, 224, 224)
    assert KINDS[setup("c2f-table1", 5, Request(side=224)).data].shape == (3, 32, 32)


def test_defences_are_those_of_the_row() -> None:
    assert setup("c2f-figure16", 1).release == AsIs()
    assert setup("c2f-figure16", 4).release == MagnitudePruning(0.7)
    assert setup("c2f-figure16", 8).gradient == Soteria(0.7)
    assert setup("c2f-figure16", 12).gradient == Outpost(pruned=0.7)
    assert setup("c2f-figure14", 1).release == Clip(1.0)
    private = setup("c2f-figure14", 9).release
    assert isinstance(private, Chain)
    clip, noise = private.releases
    assert clip == Clip(10.0)
    assert isinstance(noise, GaussianNoise)
    assert gaussian_epsilon(Mechanism(noise.std / 10, 1.0, 1), DELTA) == pytest.approx(1000, rel=1e-3)


def test_both_readings_of_the_total_variation_at_the_papers_size() -> None:
    row = table("c2f-table1").rows[2]
    by_equation, stated = (_priors(inverted(row, method, Request(10))) for method in ("ours", "ours-stated"))
    assert all(isinstance(prior, ScaleRule) and prior.weight(224, 224) < 0.0001 for prior in by_equation)
    assert [prior.weight for prior in stated if isinstance(prior, Scaled)] == [0.005, 0.005]


def _priors(experiment: Experiment) -> list[Term]:
    assert isinstance(experiment.probe, Invert)
    objectives = [stage.objective for stage in experiment.probe.attack.stages]
    return [objective.terms[-1] for objective in objectives if isinstance(objective, Sum)]


def test_fedleaks_own_setup_has_sigmoid_and_batch_statistics() -> None:
    own, main = setup("c2f-figure20", 5), setup("c2f-figure20", 6)
    assert (own.network, own.training.batch_norm) == ("resnet18_sigmoid", BatchNorm.BATCH)
    assert (main.network, main.training.batch_norm) == ("resnet18", BatchNorm.FROZEN)


def test_table_4_counts_the_retries_of_one_message() -> None:
    of = table("c2f-table4")
    makes = paper_of(of).tables["c2f-table4"].experiment
    probes = [makes(of.rows[2], method, Request(1)).probe for method in of.methods]
    images = [stage.images for probe in probes if isinstance(probe, Invert) for stage in probe.attack.stages]
    assert [part.crop for part in images if isinstance(part, GeneratorWeights)] == [False, True]
    small = Setup("cifar10", "lenet", Training(1.0), 1)
    attack = Method("fedleak", options={"width": 4}).attack(Request(2))
    experiment = Experiment(small, Invert(attack, 3))
    clients = clients_of_message(small, populations(["cifar10"], [], None, 0)["cifar10"], 0)
    target = simulated_message(experiment, clients, 0)
    measures = experiment.probe.measure(target, 0, no_progress).record["extra"]["measures"]
    assert measures["average"] < measures["best"] == measures["psnr"]
    assert measures["median"] <= measures["best"]


def test_less_budget_is_more_noise() -> None:
    releases = [setup("c2f-figure14", row).release for row in (2, 3, 4, 5)]
    noise = [
        part.std for r in releases if isinstance(r, Chain) for part in r.releases if isinstance(part, GaussianNoise)
    ]
    assert noise == sorted(noise)
    assert len(set(noise)) == 4


def test_an_average_is_made_of_the_runs_of_its_rows() -> None:
    found = {(c.row.number, c.method): c for c in planned("c2f-table5")}
    average = found[1, "ours"]
    assert [case.key for case in average.cases] == [found[row, "ours"].cases[0].key for row in (2, 3, 4)]
    assert "initialisation orthogonal" in average.cases[2].title
    assert (5, "ours") not in found
    said = " ".join(remarks(table("c2f-table5"), list(found.values()), {}))
    parts = "initialisation uniform; initialisation normal; initialisation orthogonal"
    assert f"Averages here are over: {parts}." in said


def test_trained_networks_are_asked_for_where_nothing_else_is_left() -> None:
    of = table("c2f-figure9")
    with pytest.raises(UsageError, match="--weights 25=FILE --weights 50=FILE"):
        data_kinds(of, of.rows[1:3], ["ours"])


def test_a_checkpoint_made_anew_is_another_experiment(tmp_path: Path) -> None:
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for i, file in enumerate(files):
        save_file({"x": torch.full((1,), float(i))}, file)
    inits = [setup("c2f-figure9", 2, Request(weights={"25": str(file)})).init for file in files]
    digests = [init.digest for init in inits if isinstance(init, FromFile)]
    assert len(set(digests)) == 2
    with pytest.raises(DataError, match="no such file"):
        setup("c2f-figure9", 2, Request(weights={"25": str(tmp_path / "none")}))


def test_the_correlation_is_taken_for_each_picture_over_the_initialisations() -> None:
    of, cells_ = table("c2f-figure3"), planned("c2f-figure3", clients=2)
    average = cells_[-1]
    assert len(average.cases) == 6
    # Picture 0 falls along a line, picture 1 rises along one.
    psnr = {0: [30.0, 20.0, 10.0], 1: [1.0, 2.0, 3.0]}
    records, seen = {}, {0: 0, 1: 0}
    for case in average.cases:
        i = seen[case.subject.client]
        seen[case.subject.client] += 1
        records[case.key] = done(case.key, sparsity=0.1 * i, psnr=psnr[case.subject.client][i])
    assert correlation(average, records) == pytest.approx(0.0, abs=1e-9)
    for case in average.cases:
        if case.subject.client == 1:
            del records[case.key]
    line = compare_cells(of, cells_, records)[-1]
    assert line.measured["pearson"] == "-1.000"
    assert line.published["pearson"] == "-0.478"
    assert correlation(cells_[-2], records) is None


def test_what_was_reduced_is_said() -> None:
    of = table("c2f-table3")
    said = " ".join(remarks(of, planned("c2f-table3", 2), {}))
    assert "4 iterations in all" in said
    assert "restarts: 1; trials: 2; 96 x 96 pixels instead of 224 x 224" in said
    assert "30,000 iterations (coarse-to-fine 30,000 + 30,000), the best of 5 restarts, 20 trials" in said


def test_figures_are_drawn_over_their_axis() -> None:
    of, cells_ = table("c2f-figure16"), planned("c2f-figure16")
    records = {c.cases[0].key: done(c.cases[0].key, psnr=20.0 - i, ssim=0.5) for i, c in enumerate(cells_)}
    charts = charts_of(of, cells_, records)
    assert [chart.title for chart in charts] == ["PSNR over pruning rate", "SSIM over pruning rate"]
    assert all(name in charts[0].svg for name in ("CelebA-HQ, Magnitude", "CelebA-HQ, OUTPOST", "CIFAR-10, Magnitude"))
    assert charts[0].svg.count("<polyline") == 4, "no line of the undefended rows' own"
    assert charts[0].svg.count("<circle") == 20, "each line has its four rates and starts without a defence"
    alone = charts_of(of, cells_[:1], records)[0].svg
    assert "<title>Ours</title>" in alone, "what all lines share is left out, but for the method"


@pytest.mark.parametrize(
    ("name", "words", "places"),
    [
        ("c2f-figure14", "∞ is drawn at 8", [8.0, 5.0, 4.0, 3.0, 2.0]),
        ("c2f-figure9", "max is drawn at 100", [0.0, 25.0, 50.0, 75.0, 100.0]),
    ],
)
def test_values_that_are_no_numbers_stand_at_the_edge(name: str, words: str, places: list[float]) -> None:
    of = table(name)
    assert words in of.drawn_over["title"]
    assert [_x_of(of, row) for row in of.rows[:5]] == pytest.approx(places)


def test_an_average_over_the_axis_has_no_place_on_it() -> None:
    of, cells_ = table("c2f-figure13"), planned("c2f-figure13")
    records = {case.key: done(case.key, psnr=20.0, ssim=0.5) for cell in cells_ for case in cell.cases}
    assert "<polyline" in charts_of(of, cells_, records)[0].svg


def test_clipping_alone_is_drawn_beside_the_budgets() -> None:
    of, cells_ = table("c2f-figure14"), planned("c2f-figure14")
    records = {c.cases[0].key: done(c.cases[0].key, psnr=20.0 - i, ssim=0.5) for i, c in enumerate(cells_)}
    chart = charts_of(of, cells_, records)[0]
    assert chart.svg.count("<circle") == len(of.rows)
    assert "∞ is drawn at 8" in chart.svg


def test_defended_figures_run_the_better_attack_too() -> None:
    for name, beside in (("c2f-figure14", ["fast"]), ("c2f-figure16", ["fast", "fast-pruned"])):
        of = table(name)
        assert choose_methods(of, []) == ["ours", *beside]
        assert choose_methods(of, ["ours"]) == ["ours"]
        assert any("`fast`" in note for note in of.notes)


def averaged(clients: int, failed: Sequence[int] = ()) -> tuple[list[Cell], dict[str, Record]]:
    """The first average of Table 2, PSNR 10 client + 1, 2 or 3 by initialisation, and SSIM likewise."""
    cell = planned("c2f-table2", clients)[0]
    parts = list(dict.fromkeys(case.subject.part for case in cell.cases))
    records = {}
    for case in cell.cases:
        part = parts.index(case.subject.part)
        found = done(case.key, psnr=10.0 * case.subject.client + part + 1)
        records[case.key] = found.model_copy(update={"status": "failed", "extra": {}}) if part in failed else found
    return [cell], records


def test_an_average_spreads_over_clients_and_not_over_initialisations() -> None:
    of = table("c2f-table2")
    assert compare_cells(of, *averaged(1))[0].measured["psnr"] == "2.0"
    # Clients of 2 and 12: the standard error of these two, however many initialisations each has.
    assert compare_cells(of, *averaged(2))[0].measured["psnr"] == "7.0 ± 5.0"
    line = compare_cells(of, *averaged(2, failed=[0]))[0]
    assert (line.measured["psnr"], line.done, line.failed) == ("7.5 ± 5.0", 4, 2)


def test_a_measure_that_some_clients_lack_says_so() -> None:
    of = table("c2f-table2")
    (cell,), records = averaged(2)
    case = cell.cases[0]
    records[case.key] = done(case.key, psnr=1.0, lpips=0.25)
    line = compare_cells(of, [cell], records)[0]
    assert (line.measured["lpips"], line.measured["ssim"]) == ("0.250 (1 of 2)", "-")


def test_only_what_is_in_an_average_is_named() -> None:
    of = table("c2f-table2")
    said = " ".join(remarks(of, *averaged(1, failed=[0])))
    assert "Averages here are over: initialisation normal; initialisation orthogonal." in said
    (whole,), records = averaged(1)
    (other,), broken = averaged(1, failed=[0])
    case = [replace(case, key=f"other {case.key}") for case in other.cases]
    both = [whole, replace(other, cases=case, method="invg", title="InvG")]
    said = " ".join(remarks(of, both, records | {f"other {key}": record for key, record in broken.items()}))
    assert "initialisation uniform; initialisation normal; initialisation orthogonal (row 1, Ours)." in said
    assert "Averages here are over: initialisation normal; initialisation orthogonal (row 1, InvG)." in said
    assert not any("Averages" in words for words in remarks(of, *averaged(1, failed=[0, 1, 2])))


def test_transfer_takes_all_but_the_last_layer(tmp_path: Path) -> None:
    source = build("resnet8", shape=(3, 32, 32), classes=7, seed=1)
    path = str(tmp_path / "seven.safetensors")
    save_file(source.state_dict(), path)
    model = build("resnet8", shape=(3, 32, 32), classes=4, init=Transfer(path), seed=2)
    own, other = model.state_dict(), source.state_dict()
    same = [name for name in own if own[name].shape == other[name].shape and torch.equal(own[name], other[name])]
    dense = [name for name, _ in model.named_modules() if isinstance(model.get_submodule(name), torch.nn.Linear)][-1]
    assert set(own) - set(same) == {f"{dense}.weight", f"{dense}.bias"}
    again = build("resnet8", shape=(3, 32, 32), classes=7, init=Transfer(path), seed=3)
    assert all(torch.equal(t, other[name]) for name, t in again.state_dict().items())
    with pytest.raises(ModelError, match="lacks"):
        Transfer(path).apply(build("lenet", shape=(3, 32, 32), classes=4), stream(0, "x"))
    with pytest.raises(DataError, match="does not exist"):
        Transfer(str(tmp_path / "none")).apply(model, stream(0, "x"))


def test_stand_ins_and_genuine_data(shared_data: Path) -> None:
    kinds = ["cifar10", "celeba@96", "lc25000@96", "imagenet@96"]
    found = populations(kinds, [], shared_data, 0)
    words = [found[kind].describe() for kind in kinds]
    assert [text.startswith("STAND-IN") for text in words] == [False, True, True, False]
    assert "ORL faces of 40 persons" in words[1]
    assert "H&E tiles" in words[2]
    assert words[3].endswith("at 96 x 96 pixels")
    for kind in kinds:
        data = found[kind].dataset()
        assert (data.shape, data.classes) == (KINDS[kind].shape, KINDS[kind].classes)
        assert len(data) >= 32
    assert found["cifar10"].dataset().labels.bincount().tolist() == [200] * 10
    tench = found["imagenet@96"].dataset().labels[:3].tolist()
    assert tench == [0, 12, 24]


def test_named_data_are_brought_to_size(tmp_path: Path) -> None:
    found = populations(["celeba@96"], ["celeba=photos"], None, 0)["celeba@96"]
    assert found.stand_in is False
    assert found.dataset().shape == (3, 96, 96)


def test_a_table_is_recreated_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDGLASS_SHARED", raising=False)
    request = ["c2f-table3", "--rows", "dataset=CIFAR-10", "--iterations", "2", "--methods", "ours", "--workers", "1"]
    found = CliRunner().invoke(cli, ["reproduce", *request, "-o", str(tmp_path)])
    assert found.exit_code == 0, found.output
    assert "STAND-IN for CIFAR-10" in found.output
    assert "Reduced here: 2 iterations in all" in found.output
    assert "Methods named `fast`" not in found.output
    page = (tmp_path / "c2f-table3.html").read_text()
    assert "Reduced here" in page
    assert "SSIM" in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["c2f-table1", "--weights", "transfer"], "--weights must be NAME=FILE with a file or folder that exists"),
        (["c2f-figure9", "--weights", f"30={__file__}"], "Unknown network for --weights '30'"),
        (["c2f-table1", "--weights", f"transfer={__file__}"], "No row of c2f-table1 takes a trained network"),
        (["c2f-figure9", "--weights", f"25={__file__}"], "cannot be read as safetensors"),
        (["c2f-figure13", "--data", "cifar10=photos"], "these are CIFAR-10's, but the rows chosen need CelebA-HQ's"),
        (["dlfa-table1", "--restarts", "2"], "the attacks of dlfa-table1 are not restarted"),
        (["c2f-figure9", "--rows", "2"], "need trained networks: give them as --weights 25=FILE"),
    ],
)
def test_bad_requests_are_refused_in_words(arguments: list[str], words: str) -> None:
    found = CliRunner().invoke(cli, ["reproduce", *arguments, "--dry-run"])
    assert found.exit_code == 2
    assert words in found.output


@pytest.mark.parametrize(("network", "classes"), [("lenet", 10), ("resnet18", 100)])
def test_a_dry_run_refuses_checkpoints_of_another_network(tmp_path: Path, network: str, classes: int) -> None:
    path = tmp_path / "other.safetensors"
    save_file(build(network, shape=(3, 32, 32), classes=classes).state_dict(), path)
    request = ["reproduce", "c2f-figure9", "--weights", f"25={path}", "--rows", "2", "--dry-run"]
    found = CliRunner().invoke(cli, request)
    assert found.exit_code == 2
    assert "belongs to another architecture" in found.output or "a classifier of 100 classes" in found.output


def test_a_dry_run_says_what_is_reduced_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDGLASS_SHARED", raising=False)
    request = ["reproduce", "c2f-table5", "--rows", "1,5", "--methods", "ours", "--dry-run", "-o", str(tmp_path)]
    found = CliRunner().invoke(cli, request)
    assert found.exit_code == 0, found.output
    assert "Left out without --weights transfer=FILE: part of row 1, row 5." in found.output
    assert "Reduced here: " in found.output
    assert "Averages here are over: initialisation uniform; " in found.output


def test_methods_of_this_package_are_explained_where_they_are_run(tmp_path: Path) -> None:
    request = ["c2f-table1", "--rows", "dataset=CIFAR-10", "--methods", "fast", "--dry-run", "-o", str(tmp_path)]
    found = CliRunner().invoke(cli, ["reproduce", *request])
    assert found.exit_code == 0, found.output
    assert "Methods named `fast` are this package's coarse_to_fine" in " ".join(found.output.split())


@pytest.mark.parametrize("name", ["c2f-table5", "c2f-table6"])
def test_printed_averages_are_those_of_the_columns(name: str) -> None:
    rows = table(name).rows
    # Table 6 prints the averages of LC25000 and CelebA-HQ in each other's place, but for FedLeak.
    swapped = {5: 10, 10: 5} if name == "c2f-table6" else {}
    for first in (0, 5, 10):
        for method in ("ours", "hfgradinv", "fedleak"):
            place = first if method == "fedleak" else swapped.get(first, first)
            printed = rows[place].values[method]["psnr"]
            parts = [row.values[method]["psnr"] for row in rows[first + 1 : first + 5]]
            means = [part.mean for part in parts if isinstance(part, Printed)]
            assert isinstance(printed, Printed)
            assert sum(means) / 4 == pytest.approx(printed.mean, abs=0.011), (first, method)
