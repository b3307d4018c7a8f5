"""The maliciously curious client as published: codes through three surrogates, and the baseline beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedglass.attack.forward.messages import OneClient, SoftMedian, SupposedMean, Through
from fedglass.attack.images.latent import Latent, OwnDecoder
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.labels.given import OracleLabels
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.terms.distance import SquaredError
from fedglass.core.errors import UsageError
from fedglass.core.tensors import assign, squared_distances
from fedglass.core.types import Observation, Training
from fedglass.federation.client import Client
from fedglass.federation.federation import observe
from fedglass.federation.peer import PeerView
from fedglass.federation.truth import Truth
from fedglass.federation.views import Knows
from fedglass.recipes import recipe

NAME = "maliciously_curious_client_published"


@pytest.fixture
def round_of_three(toy: Any) -> tuple[Observation, Truth]:
    clients = [Client(f"client {i}", toy.images(2, "mine", i), torch.tensor([i, i + 1])) for i in range(3)]
    return observe(replace(toy.federation(Training(0.1)), clients=clients), PeerView(0), Knows(labels=True))


def test_three_surrogates_are_tried_on_codes_by_squared_error_and_adam() -> None:
    attack: Any = recipe(NAME, iterations=7)
    stages = {name: one.stages for name, one in attack.attack}
    expected = {"mean": SupposedMean(), "soft_median": SoftMedian(), "one_client": OneClient()}
    assert {name: stage.forward for name, (stage,) in stages.items()} == {
        name: Through(each, own=False) for name, each in expected.items()
    }
    for (stage,) in stages.values():
        assert stage.images == Latent(OwnDecoder())
        assert (stage.objective, stage.solver) == (SquaredError(), Adam(rate=0.01, iterations=7))


def test_the_ablation_differs_in_the_images_alone() -> None:
    codes, pixels = recipe(NAME), recipe(NAME, decoder="none")
    assert repr(codes).replace(repr(Latent(OwnDecoder())), repr(Pixels())) == repr(pixels)
    with pytest.raises(UsageError, match="The autoencoder 'nowhere' is not a folder"):
        recipe(NAME, decoder="nowhere")


def test_its_own_examples_are_looked_for_like_all_others(round_of_three: tuple[Observation, Truth]) -> None:
    """Neither subtracted nor held fixed: the adversary is one of the clients that it simulates."""
    seen, truth = round_of_three
    found = recipe(NAME, iterations=2).run(seen)
    assert found.images.shape == truth.images.shape == (6, 1, 8, 8)
    assert not torch.allclose(found.images[4:], truth.images[4:], atol=0.05)


def test_the_rule_that_explains_the_message_wins_and_its_images_are_read(
    round_of_three: tuple[Observation, Truth],
) -> None:
    seen, truth = round_of_three
    attack = recipe(NAME, labels=OracleLabels(), decoder="none", rate=0.1, iterations=150)
    found = attack.run(seen)
    assert found.rule == "mean"
    distances = squared_distances(truth.images, found.images)
    read = distances[torch.arange(6), assign(distances)].mean()
    flat = (truth.images - truth.images.mean((-2, -1), keepdim=True)).square().mean()
    assert read < 0.5 * flat


def test_the_papers_baseline_inverts_the_same_step(round_of_three: tuple[Observation, Truth]) -> None:
    """InvertGrad, adapted: pixels of all examples behind the step."""
    seen, truth = round_of_three
    attack: Any = recipe("inverting_gradients_published", labels=OracleLabels(), iterations=150)
    assert isinstance(attack.stages[0].images, Pixels)
    found = attack.run(seen)
    assert found.images.shape == truth.images.shape
    assert found.energy < attack.energy_of(seen, torch.full_like(truth.images, 0.5), truth.labels, found)
