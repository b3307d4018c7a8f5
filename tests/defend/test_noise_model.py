"""Which protections have a bound, and which noise a message then holds."""

from __future__ import annotations

import math

import pytest

from fedglass.core.optimisers import SGD, Adam
from fedglass.core.types import Training
from fedglass.defend.dpsgd import DPSGD
from fedglass.defend.noise import (
    Clip,
    GaussianNoise,
    LaplacianNoise,
)
from fedglass.defend.noise_model import NoBound, NoiseModel, noise_model
from fedglass.defend.per_example import PerExample, SameEachEpoch
from fedglass.defend.pruning import MagnitudePruning, RandomPruning
from fedglass.fl.release import AsIs, Chain, Outgoing, Protection

ONE = Training(lr=0.1)


class Own:
    """A defence of a user's own."""

    def release(self, leaving: Outgoing) -> dict[str, object]:
        return dict(leaving.update)


class Quieter(GaussianNoise):
    """It is called like the built-in one, and may do anything."""


def released(*parts: object, training: Training = ONE) -> NoiseModel | NoBound:
    return noise_model(Protection(release=Chain(tuple(parts))), training, 8)  # type: ignore[arg-type]


def test_clip_and_noise_are_bounded_whatever_the_data() -> None:
    found = released(Clip(2.0), GaussianNoise(0.5))
    assert found == NoiseModel("gaussian", 0.5, Protection(release=Chain((Clip(2.0),))), per_round=4.0)


def test_noise_without_a_clip_is_bounded_by_the_data_alone() -> None:
    found = released(GaussianNoise(0.5))
    assert found == NoiseModel("gaussian", 0.5, Protection(release=AsIs()))


def test_noises_in_a_row_add_up() -> None:
    found = released(GaussianNoise(0.3), GaussianNoise(0.4))
    assert isinstance(found, NoiseModel)
    assert found.std == pytest.approx(0.5)


def test_what_follows_the_noise_keeps_the_bound_and_hides_the_residual() -> None:
    found = released(Clip(1.0), GaussianNoise(0.5), MagnitudePruning(share=0.1))
    assert isinstance(found, NoiseModel)
    assert (found.per_round, found.testable) == (2.0, False)


def test_laplacian_noise_has_its_own_law() -> None:
    found = released(LaplacianNoise(1.0))
    assert isinstance(found, NoiseModel)
    assert (found.law, found.per_round) == ("laplacian", None)
    assert found.std == pytest.approx(math.sqrt(2))


def test_one_step_of_dp_sgd_is_additive() -> None:
    found = noise_model(Protection(gradient=DPSGD(clip=2.0, noise_multiplier=3.0)), ONE, 8)
    assert isinstance(found, NoiseModel)
    assert found.std == pytest.approx(0.1 * 3.0 * 2.0 / 8)
    assert found.per_round == pytest.approx(1 / 3)
    assert found.plain == Protection(gradient=DPSGD(clip=2.0, noise_multiplier=0.0))


@pytest.mark.parametrize(
    "training",
    [
        Training(lr=0.1, epochs=4, batch_size=2),
        Training(lr=0.1, epochs=4, optimiser=SGD(momentum=0.9)),
    ],
)
def test_several_steps_of_dp_sgd_are_left_to_the_accountant(training: Training) -> None:
    """A record is in one batch of each epoch: four epochs are four releases."""
    found = noise_model(Protection(gradient=DPSGD(clip=2.0, noise_multiplier=3.0)), training, 8)
    assert isinstance(found, NoiseModel)
    assert (found.additive, found.testable) == (False, False)
    assert found.per_round == pytest.approx(2 / 3)


def test_adam_makes_something_else_of_a_noisy_step() -> None:
    found = noise_model(Protection(gradient=DPSGD(1.0, 1.0)), Training(lr=0.1, optimiser=Adam()), 8)
    assert isinstance(found, NoiseModel)
    assert not found.additive


def test_noise_of_each_example_in_one_step() -> None:
    found = noise_model(Protection(gradient=PerExample(GaussianNoise(0.5))), ONE, 4)
    assert isinstance(found, NoiseModel)
    assert found.std == pytest.approx(0.1 * 0.5 / 2)
    several = noise_model(Protection(gradient=PerExample(GaussianNoise(0.5))), Training(lr=0.1, epochs=2), 4)
    assert isinstance(several, NoBound)
    assert several.why == "steps"


@pytest.mark.parametrize(
    "protection",
    [
        Protection(),
        Protection(release=Clip(1.0)),
        Protection(release=GaussianNoise(0.0)),
        Protection(release=MagnitudePruning(share=0.9)),
        Protection(gradient=DPSGD(1.0, 0.0)),
    ],
)
def test_without_noise_there_is_no_bound(protection: Protection) -> None:
    assert noise_model(protection, ONE, 8) == NoBound("")


@pytest.mark.parametrize(
    "protection",
    [
        Protection(release=Own()),  # type: ignore[arg-type]
        Protection(release=Quieter(1.0)),
        Protection(release=Chain((GaussianNoise(1.0), Own()))),  # type: ignore[arg-type]
        Protection(gradient=SameEachEpoch(PerExample(GaussianNoise(1.0)))),
        Protection(gradient=DPSGD(1.0, 1.0), release=Own()),  # type: ignore[arg-type]
        Protection(release=Chain((RandomPruning(share=0.5), GaussianNoise(1.0)))),
    ],
)
def test_what_is_not_known_is_not_bounded(protection: Protection) -> None:
    found = noise_model(protection, ONE, 8)
    assert isinstance(found, NoBound)
    assert found.defence
