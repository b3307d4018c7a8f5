"""What is measured on a message."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.best_of import trainings_of_steps, with_training
from fedglass.attack.forward.gradients import OnSegment
from fedglass.attack.forward.unroll import Unroll
from fedglass.attack.images.pixels import EpochPixels, Pixels
from fedglass.attack.labels.counts import InterpolatedCounts
from fedglass.attack.labels.given import OracleBatchLabels, OracleLabels
from fedglass.attack.parts import no_progress
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.terms.distance import Cosine
from fedglass.audit.target import ProbeResult, Target
from fedglass.core.types import Training
from fedglass.federation.views import Knows
from fedglass.metrics.catalogue import label_errors
from fedglass.metrics.images import psnr
from fedglass.reproduce.image_sources import populations
from fedglass.reproduce.messages import clients_of_message, simulated_message
from fedglass.reproduce.paper import Experiment, Setup
from fedglass.reproduce.probes.geometry import Geometry
from fedglass.reproduce.probes.reconstruct import PAIRINGS, CountLabels, Reconstruct, TryTrainings
from fedglass.verdict.directory import Strips

SETUP = Setup("femnist", "lenet", Training(0.05, epochs=2, batch_size=2), examples=4)


@pytest.fixture(scope="module")
def message() -> Target:
    population = populations(["femnist"], [], None, seed=0)["femnist"]
    knows = Knows(labels=True, batch_labels=True)
    return simulated_message(Experiment(SETUP, Geometry(), knows), clients_of_message(SETUP, population, 0), seed=0)


def reconstruct(message: Target, attack: Attack, threshold: float = 20.0) -> ProbeResult:
    return Reconstruct(attack, threshold, "psnr").measure(message, 3, no_progress)


def measures(found: ProbeResult) -> dict[str, float]:
    known: dict[str, float] = found.record["extra"]["measures"]
    return known


def strips(found: ProbeResult) -> Strips:
    assert isinstance(found.evidence, Strips)
    return found.evidence


def segment() -> Attack:
    return Attack(OracleLabels(), (Stage(OnSegment(), Pixels(), Cosine(), Adam(1.0, 3)),))


def simulation(labels: OracleLabels | OracleBatchLabels) -> Attack:
    return Attack(labels, (Stage(Unroll(), EpochPixels(), Cosine(), Adam(0.1, 3)),))


@pytest.mark.parametrize("attack", [segment(), simulation(OracleLabels())])
def test_similarity_is_the_cosine_term_at_the_end(message: Target, attack: Attack) -> None:
    found = reconstruct(message, attack)
    assert measures(found)["lsim"] == pytest.approx(found.record["energy"], abs=1e-4)


def test_scores_are_those_of_the_images_shown(message: Target) -> None:
    found = reconstruct(message, segment(), threshold=5.0)
    values = psnr(torch.from_numpy(strips(found).shown), message.known_truth.images)
    assert measures(found)["psnr"] == pytest.approx(float(values.mean()))
    assert measures(found)["recovered"] == 100 * float((values > 5.0).double().mean())
    assert found.record["metrics"]["psnr"] == values.tolist()
    assert measures(found)["label_errors"] == 0


def test_epochs_are_kept_in_the_order_of_the_originals(message: Target) -> None:
    by_epoch = strips(reconstruct(message, simulation(OracleLabels()))).by_epoch
    assert by_epoch is not None
    assert by_epoch.shape == (2, 4, 1, 28, 28)
    assert strips(reconstruct(message, segment())).by_epoch is None


def test_labels_of_each_batch_leave_the_similarity_out(message: Target) -> None:
    assert "lsim" not in measures(reconstruct(message, simulation(OracleBatchLabels())))


def test_pairings_find_the_images_in_any_order() -> None:
    images = torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([3, 1, 4, 0, 2])
    for pairing in PAIRINGS.values():
        assert torch.equal(pairing(images[order], images).apply(images[order]), images)


def test_counted_labels_are_compared_with_the_true_ones(message: Target) -> None:
    found = CountLabels(InterpolatedCounts()).measure(message, 0, no_progress)
    recovered = torch.tensor(found.record["labels_recovered"])
    assert len(recovered) == 4
    assert measures(found)["label_errors"] == label_errors(recovered, message.known_truth.labels, 62)


def test_geometry_of_a_short_training(message: Target) -> None:
    found = Geometry(points=5).measure(message, 0, no_progress)
    shares, cosines = (curve["values"] for curve in found.record["extra"]["curves"])
    assert (len(shares), len(cosines)) == (4, 5)
    expected = {"min_share": min(shares), "cosine_before": cosines[0], "cosine_best": max(cosines)}
    assert measures(found) == expected
    assert 0 < measures(found)["min_share"] <= 1


def test_the_training_of_lowest_energy_is_kept(message: Target) -> None:
    """Of 4 steps on 4 examples: 1, 2 or 4 epochs; each as if it alone had been supposed."""
    seen = message.observation
    blind = replace(message, observation=replace(seen, knows=replace(seen.knows, training=None, steps=4, lr=0.05)))
    probe = Reconstruct(simulation(OracleLabels()), 20.0, "psnr")
    found = TryTrainings(probe).measure(blind, 3, no_progress)
    supposed = [replace(message, observation=with_training(seen, guess)) for guess in trainings_of_steps(0.05, 4, 4)]
    each = [probe.measure(target, 3, no_progress) for target in supposed]
    assert len(each) == 3
    best = min(each, key=lambda one: one.record["energy"])
    assert measures(found) == measures(best)
    assert found.record["energy"] == best.record["energy"]
    assert "was chosen by its energy: E=1 " in str(found.record["extra"]["notes"])
