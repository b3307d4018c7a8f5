"""The baselines of the curious client's Figures 8, 9 and 15: ROG's GAN and FedInverse, and the networks they need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedglass.attack.attack import Attack
from fedglass.attack.forward.messages import GlobalModel
from fedglass.attack.images.latent import GanCodes
from fedglass.attack.parts import no_progress
from fedglass.attack.refine.gan import GanEnhancement, gan
from fedglass.attack.terms.priors import BatchDependence
from fedglass.attack.terms.term import Scaled, Sum
from fedglass.core.errors import UsageError
from fedglass.data.catalogue import load, photos
from fedglass.diffusion.training import TrainingOptions
from fedglass.reproduce.campaign import Entry, plan_campaign
from fedglass.reproduce.cases import data_kinds, missing_weights, skipped_rows, weights_names
from fedglass.reproduce.image_sources import populations
from fedglass.reproduce.messages import played_federation
from fedglass.reproduce.paper import Experiment, paper_of
from fedglass.reproduce.papers import curious
from fedglass.reproduce.probes.peer import PeerImages
from fedglass.reproduce.tables import Request, figure, table
from fedglass.train.image_models import train_gan


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A GAN of each kind that has hardly begun to learn."""
    place, course = tmp_path_factory.mktemp("gans"), TrainingOptions(steps=1, batch_size=2)
    train_gan(load("glyphs").subset(range(4)), "codes", 4, course, place / "codes")
    train_gan(photos().resized(32), "enhancer", 4, course, place / "enhancer")
    return {name: str(place / name) for name in ("codes", "enhancer")}


def made(name: str, row: int, method: str, request: Request) -> Experiment:
    of = table(name)
    return paper_of(of).tables[name].experiment(of.rows[row - 1], method, request)


def attack_of(experiment: Experiment) -> Attack:
    assert isinstance(experiment.probe, PeerImages)
    return experiment.probe.attack


def test_each_method_waits_for_its_own_network() -> None:
    of = table("curious-figure15")
    assert weights_names(of) == ["ddpm", "enhancer"]
    assert weights_names(table("curious-figure9")) == ["mdt", "codes"]
    given = Request(side=32, weights={"enhancer": "folder"})
    missing = [missing_weights(of, of.rows[0].setting, given, method) for method in ("ddrm", "rog", "own")]
    assert missing == ["ddpm", None, None]
    assert skipped_rows(of, of.rows, given, ["ddrm", "rog"]) == ["Left out without --weights ddpm=FILE: method ddrm."]
    with pytest.raises(UsageError, match="need trained networks: give them as --weights ddpm=FILE"):
        data_kinds(of, of.rows, ["ddrm"], given)


def test_the_gan_refines_the_same_reconstruction_as_the_diffusion_model(trained: dict[str, str]) -> None:
    request = Request(side=32, images=4, weights={**trained, "ddpm": "glyphs"})
    sharpened, restored = (attack_of(made("curious-figure15", 2, method, request)) for method in ("rog", "ddrm"))
    assert sharpened.refine == (gan(trained["enhancer"]),)
    assert isinstance(sharpened.refine[0], GanEnhancement)
    assert replace(sharpened, refine=()) == replace(restored, refine=())
    assert figure("curious-figure8").table == "curious-figure15"


def test_model_inversion_is_of_a_late_round_of_the_same_clients(trained: dict[str, str]) -> None:
    request = Request(images=2, weights=trained)
    early, plain, independent = (made("curious-figure9", 1, m, request) for m in ("raw", "mi", "mi_hsic"))
    rounds = [e.setup.federation_run.rounds for e in (early, plain) if e.setup.federation_run is not None]
    assert rounds == [1, curious.ROUNDS]
    assert early.setup.sizes == plain.setup.sizes == (2, 2, 2, 2)
    (stage,) = attack_of(plain).stages
    assert isinstance(stage.forward, GlobalModel)
    assert isinstance(stage.images, GanCodes)
    later = attack_of(independent).stages[0].objective
    assert isinstance(later, Sum)
    assert isinstance(stage.objective, Sum)
    assert later.terms == (*stage.objective.terms, Scaled(0.05, BatchDependence()))


def test_it_is_scored_next_to_blind_guesses(trained: dict[str, str]) -> None:
    request = Request(iterations=2, images=1, rounds=2, weights=trained)
    experiment = made("curious-figure9", 1, "mi_hsic", request)
    assert isinstance(experiment.probe, PeerImages)
    glyphs = populations(["mnist"], [], None, 0)["mnist"].with_own_labels()
    target = played_federation(experiment, glyphs, 0, 0)
    measures = experiment.probe.measure(target, 0, no_progress).record["extra"]["measures"]
    assert {"psnr", "ssim", "guess_psnr", "guess_ssim", "accuracy", "back"} <= set(measures)
    assert 0 <= measures["accuracy"] <= 100


def test_a_campaign_passes_over_methods_without_their_network(trained: dict[str, str], tmp_path: Path) -> None:
    digits = {"images": np.zeros((20, 28, 28), np.uint8), "labels": np.arange(20) % 10}
    np.savez(tmp_path / "digits.npz", **digits)
    entry = Entry("curious-figure9", "", ("mi", "raw"), clients=1, options={"images": 1})
    for given, methods in (({}, {"raw"}), (trained, {"mi", "raw"})):
        ((_, runs),) = plan_campaign([entry], None, [f"mnist=npz:{tmp_path / 'digits.npz'}"], 0, given)
        assert {run.cell.method for run in runs} == methods
    ((_, none),) = plan_campaign([replace(entry, methods=("mi",))], Path("nowhere"), [], 0)
    assert none == []
