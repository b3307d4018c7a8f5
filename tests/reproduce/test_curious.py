"""The figures of the curious client as experiments, and what is measured in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.unroll import EachClient, SuperClient
from fedglass.attack.hypotheses import SearchByOwnImages
from fedglass.attack.images.pixels import LowResolution
from fedglass.attack.labels.counts import InterpolatedCounts
from fedglass.attack.labels.given import OracleLabels
from fedglass.attack.parts import no_progress
from fedglass.attack.refine.restoration import MedianFilter
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.terms.distance import SquaredError
from fedglass.audit.target import ProbeResult, Target
from fedglass.core.errors import DataError, UsageError
from fedglass.core.tensors import flatten
from fedglass.core.types import Observation, Reconstruction, Training
from fedglass.federation.peer import PeerView
from fedglass.federation.views import Knows
from fedglass.metrics.images import psnr
from fedglass.reproduce.cases import check_options, method_titles
from fedglass.reproduce.image_sources import Population, populations
from fedglass.reproduce.messages import clients_of_message, simulated_message
from fedglass.reproduce.paper import Experiment, Setup, paper_of, peer_setup
from fedglass.reproduce.papers import curious
from fedglass.reproduce.probes.divergence import Divergence, DivergenceSetting
from fedglass.reproduce.probes.peer import (
    GUESSES,
    GuessedImages,
    PeerImages,
    enlarged,
    own_in_turn,
    reduced,
    repeated,
)
from fedglass.reproduce.probes.probe import match_images
from fedglass.reproduce.probes.reconstruct import SearchUnknowns
from fedglass.reproduce.tables import Request, choose_rows, table
from fedglass.verdict.directory import Strips

KIND = "imagenet@32-plain"
SIZES = (3, 2, 1)
SMALL = Request(side=32, images=4)


def made(name: str, row: int, method: str = "ours", request: Request = SMALL) -> Experiment:
    of = table(name)
    return paper_of(of).tables[name].experiment(of.rows[row - 1], method, request)


def setup_of(experiment: Experiment) -> Setup:
    assert experiment.setup.sizes
    return experiment.setup


def probe_of(experiment: Experiment) -> PeerImages:
    assert isinstance(experiment.probe, PeerImages)
    return experiment.probe


def short() -> Attack:
    return Attack(OracleLabels(), (Stage(SuperClient(), LowResolution(4), SquaredError(), Adam(0.1, 3)),))


@pytest.fixture(scope="module")
def population() -> Population:
    return populations([KIND], [], None, seed=0)[KIND]


@pytest.fixture(scope="module")
def round_(population: Population) -> Target:
    setup = peer_setup(KIND, "lenet", Training(0.1, epochs=2), SIZES)
    return simulated_message(
        Experiment(setup, PeerImages(short()), Knows(labels=True)), clients_of_message(setup, population, 0), 0
    )


def measures(found: ProbeResult) -> dict[str, float]:
    known: dict[str, float] = found.record["extra"]["measures"]
    return known


@pytest.mark.parametrize("name", curious.FIGURES)
def test_every_cell_is_a_round_that_a_client_sees(name: str) -> None:
    of = table(name)
    for row in of.rows:
        for method in method_titles(of):
            setup = setup_of(made(name, row.number, method))
            assert setup.view() == PeerView(client=0)
            assert (len(setup.sizes), setup.clients) == (row.setting["clients"], row.setting["clients"])
            assert setup.training.local_steps(setup.examples) == row.setting.get("steps", 3)
            assert setup.training.lr == (0.03 if name == "curious-figure13" else 0.003)


def test_sizes_are_the_papers_or_reduced_in_proportion() -> None:
    whole = Request(side=128)
    assert setup_of(made("curious-figure5", 1, request=whole)).sizes == (16, 16)
    assert setup_of(made("curious-figure12", 4, request=whole)).sizes == (21, 11, 21, 11)
    assert setup_of(made("curious-figure12", 4)).sizes == (5, 3, 5, 3)
    assert setup_of(made("curious-figure6", 13)).sizes == (32, 32)
    assert setup_of(made("curious-release", 1, request=whole)).data == "imagenet@128-plain"
    assert setup_of(made("curious-figure5", 3, request=whole)).data == "imagenet-many@128-plain", "128 images"


def test_networks_rates_and_operators() -> None:
    networks = [made("curious-figure5", row).setup.network for row in (1, 6, 11)]
    assert networks == ["curious_lenet", "curious_resnet9", "curious_resnet18"]
    solver = probe_of(made("curious-figure13", 4)).attack.stages[0].solver
    assert isinstance(solver, Adam)
    assert solver.rate == 0.3
    assert made("curious-figure14", 2) == made("curious-figure5", 1), "the same round is run once"
    bound = probe_of(made("curious-figure14", 2, "bound")).attack
    assert bound.stages[0].forward == EachClient()
    counted = made("curious-figure5", 1, "counted")
    assert (probe_of(counted).attack.labels, counted.knows.labels) == (InterpolatedCounts(), False)
    assert [probe_of(made("curious-figure11", row)).guess for row in (2, 5)] == [0.3, 1.0]


def test_a_peer_sees_the_mean_by_sizes_of_clients_who_share_no_image(population: Population, round_: Target) -> None:
    truth, seen = round_.known_truth, round_.observation
    assert (len(truth.labels), truth.own, seen.knows.sizes) == (6, 3, (2, 1, 3))
    assert seen.own is not None
    assert torch.equal(seen.own.images, truth.images[3:])
    assert len({tuple(image.flatten().tolist()) for image in truth.images}) == 6
    setup = peer_setup(KIND, "lenet", Training(0.1, epochs=2), SIZES)
    clients = clients_of_message(setup, population, 0)
    alone = Setup(KIND, "lenet", setup.training, setup.examples)
    updates = []
    for client, size in zip(clients, SIZES, strict=True):
        assert len(client.labels) == size
        federation = simulated_message(Experiment(alone, PeerImages(short())), [client], 0)
        updates.append(flatten(federation.observation.update) * size / sum(SIZES))
    torch.testing.assert_close(flatten(seen.update), sum(updates), atol=1e-6, rtol=1e-4)


def test_too_many_images_are_refused_before_anything_runs(population: Population) -> None:
    setup = peer_setup(KIND, "lenet", Training(0.1), (30, 30))
    with pytest.raises(DataError, match="a client needs 60 images, but there are 48"):
        setup.check(population, 1)


def test_only_sizes_of_the_paper_are_taken() -> None:
    with pytest.raises(UsageError, match="--size 96: the pictures of curious-figure5 are 32 or 64 or 128 wide"):
        check_options(table("curious-figure5"), Request(side=96))
    with pytest.raises(UsageError, match="--size 64: the pictures of c2f-table1"):
        check_options(table("c2f-table1"), Request(side=64))
    assert choose_rows(table("curious-figure12"), ["spread=uneven"])[0].number == 2


@pytest.mark.parametrize("name", curious.PAPER.tables)
def test_every_table_can_be_run_without_options(name: str) -> None:
    of = table(name)
    check_options(of, Request(side=of.default["side"]))


def test_scores_are_those_of_the_peers_images_alone(round_: Target) -> None:
    found = PeerImages(short()).measure(round_, 0, no_progress)
    strips = found.evidence
    assert isinstance(strips, Strips)
    assert len(strips.shown) == 3
    values = psnr(torch.from_numpy(strips.shown), round_.known_truth.images[:3])
    assert measures(found)["psnr"] == pytest.approx(float(values.mean()))
    assert measures(found)["psnr_raw"] == measures(found)["psnr"], "nothing refines them"
    assert measures(found)["labels"] == 100
    assert measures(found)["objective_1"] == found.record["trace"][1]


def test_what_is_measured_on_the_true_images_themselves(round_: Target) -> None:
    truth = round_.known_truth
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    shuffled = truth.images[order]
    assert match_images(shuffled, truth).share_back() == 1.0
    grey = torch.full_like(truth.images, 0.5)
    assert match_images(grey, truth).share_back() == 0.0


def test_small_images_are_found_again_in_their_enlargement() -> None:
    small = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    large = enlarged(small, 4)
    torch.testing.assert_close(reduced(large, 4), small, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        repeated(large, 4), small.repeat_interleave(4, -1).repeat_interleave(4, -2), atol=1e-5, rtol=0
    )


def test_a_wrong_rate_scales_the_step_and_nothing_else(round_: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Observation] = []
    run = Attack.run

    def listen(attack: Attack, observation: Observation, *options: Any) -> Reconstruction:
        heard.append(observation)
        return run(attack, observation, *options)

    monkeypatch.setattr(Attack, "run", listen)
    PeerImages(short(), guess=4.0).measure(round_, 0, no_progress)
    seen, scaled = round_.observation, heard[0]
    torch.testing.assert_close(flatten(scaled.update), flatten(seen.update) / 4)
    assert scaled.knows is seen.knows


def test_a_search_is_scored_by_what_it_took_for_the_truth(population: Population) -> None:
    setup = peer_setup(KIND, "lenet", Training(0.1, epochs=2), SIZES)
    knows = Knows(labels=True, steps=True, lr=False, examples=False)
    search = SearchByOwnImages(short(), rates=(0.05, 0.2), counts=(6, 9), zooms=0)
    experiment = Experiment(setup, SearchUnknowns(short(), search, lr=0.1), knows)
    target = simulated_message(experiment, clients_of_message(setup, population, 0), 0)
    found = SearchUnknowns(short(), search, lr=0.1).measure(target, 0, no_progress)
    assert measures(found)["rate"] in (0.5, 2.0)
    assert measures(found)["images"] in (1.0, 1.5)
    assert measures(found)["found"] == 0
    again = SearchUnknowns(short(), replace(search, rates=(0.11,), counts=(6,)), lr=0.1).measure(target, 0, no_progress)
    assert measures(again)["found"] == 100
    assert [drawn["axis"] for drawn in found.record["extra"]["lines"]] == ["learning rate", "images"]


def test_searches_are_told_what_is_not_unknown() -> None:
    knows = [made("curious-search", row, "search").knows for row in (1, 2, 3)]
    assert [(known.lr, known.examples) for known in knows] == [(False, True), (True, False), (False, False)]
    probe = made("curious-search", 3, "search", Request(side=32, images=2)).probe
    assert isinstance(probe, SearchUnknowns)
    assert probe.search.counts == (3, 4, 6, 8)


def test_refined_images_are_beside_the_raw_ones(round_: Target) -> None:
    found = measures(PeerImages(replace(short(), refine=(MedianFilter(),))).measure(round_, 0, no_progress))
    assert found["psnr_raw"] == measures(PeerImages(short()).measure(round_, 0, no_progress))["psnr"]
    assert found["psnr"] != found["psnr_raw"]


def test_guesses_stand_in_their_order(round_: Target) -> None:
    scores = {guess: measures(GuessedImages(guess).measure(round_, 0, no_progress)) for guess in GUESSES}
    truth = round_.known_truth
    assert scores["grey"]["psnr"] == pytest.approx(
        float(psnr(torch.full_like(truth.images[:3], 0.5), truth.images[:3]).mean())
    )
    assert torch.equal(own_in_turn(round_.observation, truth.private.images), truth.images[3:])
    assert scores["reduced"]["psnr"] > max(scores["grey"]["psnr"], scores["own"]["psnr"])


def test_the_distance_of_the_updates_is_drawn_with_its_exponents(round_: Target) -> None:
    rates = (1e-5, 1e-4)
    points = tuple(DivergenceSetting(rate, 2, 2, 4) for rate in rates)
    found = Divergence("η", rates, points, draws=3).measure(round_, 0, no_progress)
    assert measures(found)["distance"] == pytest.approx(2.0, abs=0.05)
    assert measures(found)["expectation"] == pytest.approx(2.0, abs=0.05)
    (drawn,) = found.record["extra"]["lines"]
    assert set(drawn["points"]) == {"‖E[δ]‖", "E‖δ‖", "Lemma 1"}
    assert [x for x, _ in drawn["points"]["Lemma 1"]] == list(rates)
