"""Unknown epochs and batch sizes are tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.best_of import AnyAttack, BestOf, GuessEpochs, possible_trainings
from fedglass.attack.forward.unroll import Unroll
from fedglass.attack.images.pixels import EpochPixels
from fedglass.attack.labels.given import OracleBatchLabels, OracleLabels
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.terms.distance import SquaredError
from fedglass.core.errors import UsageError
from fedglass.core.types import Knowledge, Observation, Training, Whitening
from fedglass.federation.federation import observe
from fedglass.federation.views import Knows, ServerView

BLIND = Knows(training=False, steps=True, labels=True)


def knowing(steps: int | None, examples: int, clients: int = 1, lr: float | None = 0.1) -> Observation:
    knows = Knowledge((1, 8, 8), 5, examples, Whitening((0.0,), (1.0,)), steps=steps, lr=lr, clients=clients)
    return Observation(None, {}, {}, {}, knows)  # type: ignore[arg-type]  # only the knowledge is looked at


def test_the_divisors_of_table_9_are_tried() -> None:
    """50 steps on 50 examples: E = 5, 10, 25 and 50 are among them [Dimitrov et al., 2022, App. C.4]."""
    found = {(t.epochs, t.batch_size) for t in possible_trainings(knowing(50, 50))}
    assert found == {(1, 1), (2, 2), (5, 5), (10, 10), (25, 25), (50, 50)}


@given(st.integers(1, 60), st.integers(1, 40))
def test_every_hypothesis_has_the_known_steps(steps: int, examples: int) -> None:
    found = possible_trainings(knowing(steps, examples))
    assert found
    assert all(training.local_steps(examples) == steps for training in found)
    assert len({t.epochs for t in found}) == len(found)


@given(st.integers(1, 30), st.integers(1, 6), st.integers(1, 30))
def test_the_true_number_of_epochs_is_among_them(examples: int, epochs: int, size: int) -> None:
    truth = Training(0.1, epochs, size)
    found = {t.epochs: t for t in possible_trainings(knowing(truth.local_steps(examples), examples))}
    assert epochs in found
    assert len(found[epochs].batches(examples)) == len(truth.batches(examples))


def test_each_client_of_an_aggregate_has_its_share() -> None:
    found = {(t.epochs, t.batch_size) for t in possible_trainings(knowing(6, 12, clients=3))}
    assert found == {(6, 4), (3, 2)}  # four examples each make one batch, or two, but never three


def test_a_known_training_is_the_only_hypothesis(toy: Any) -> None:
    training = Training(0.1, 2, 3)
    assert possible_trainings(toy.observation(training)) == [training]


@pytest.mark.parametrize(
    ("steps", "lr", "said"),
    [(None, 0.1, "number of local steps.*knows_steps"), (4, None, "rate.*knows_steps"), (0, 0.1, "steps must be at")],
)
def test_steps_and_rate_are_needed(steps: int | None, lr: float | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        possible_trainings(knowing(steps, 4, lr=lr))


@pytest.fixture
def attack() -> BestOf[AnyAttack]:
    stage = Stage(Unroll(), EpochPixels(), SquaredError(), Adam(0.1, 10))
    return BestOf(Attack(OracleLabels(), (stage,)), GuessEpochs())


def test_the_hypothesis_of_lowest_energy_wins(toy: Any, attack: BestOf[AnyAttack]) -> None:
    federation = toy.federation(Training(0.5, epochs=2, batch_size=2))
    seen = observe(federation, ServerView(), BLIND)[0]
    found = attack.run(seen, seed=3)
    each = {
        t.epochs: attack.attack.run(replace(seen, knows=replace(seen.knows, training=t)), seed=3)
        for t in possible_trainings(seen)
    }
    assert set(each) == {1, 2, 4}
    best = min(each, key=lambda e: each[e].energy)
    assert found.energy == each[best].energy
    assert found.supposed is not None
    assert found.supposed.epochs == best
    assert attack.energy_of(seen, found.images, found.labels, found) >= 0


def test_the_energy_at_the_truth_is_that_of_the_chosen_hypothesis(toy: Any, attack: BestOf[AnyAttack]) -> None:
    federation = toy.federation(Training(0.5, epochs=2))
    seen, truth = observe(federation, ServerView(), BLIND)
    found = replace(attack.run(seen), supposed=Training(0.5, epochs=2))
    assert attack.energy_of(seen, truth.images, truth.labels, found) == pytest.approx(0.0, abs=1e-6)
    other = replace(found, supposed=Training(0.5, epochs=1, batch_size=2))
    assert attack.energy_of(seen, truth.images, truth.labels, other) > 1e-4
    with pytest.raises(UsageError, match="supposes no training"):
        attack.energy_of(seen, truth.images, truth.labels, replace(found, supposed=None))


def test_true_batches_are_not_those_of_a_supposed_training(toy: Any, attack: BestOf[AnyAttack]) -> None:
    seen = toy.observation(Training(0.5, epochs=2, batch_size=2), Knows(training=False, steps=True, batch_labels=True))
    assert isinstance(attack.attack, Attack)
    told = BestOf(replace(attack.attack, labels=OracleBatchLabels()), GuessEpochs())
    for refused in (told.run, told.check):
        with pytest.raises(UsageError, match="OracleBatchLabels needs the true labels of each local batch"):
            refused(seen)
