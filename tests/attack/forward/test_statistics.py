"""Running statistics that come with an update, as an operator and a term read them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedglass.attack.forward.gradients import BesideStatistics, OneGradient, batch_statistics
from fedglass.attack.parts import Evaluation, binding_of, uses_of
from fedglass.attack.terms.distance import Cosine
from fedglass.attack.terms.term import WithStatistics
from fedglass.core.facts import Fact
from fedglass.core.types import BatchNorm, Candidate, Observation, Training
from fedglass.federation.federation import observe
from fedglass.federation.views import AggregateView, Knows, ServerView
from fedglass.recipes import recipe

BATCH = Training(0.1, batch_norm=BatchNorm.BATCH)
BESIDE, OBJECTIVE = BesideStatistics(OneGradient()), WithStatistics(Cosine())


def energy(seen: Observation, images: Any, labels: Any) -> float:
    bound = BESIDE.bind(seen)
    at = Candidate(seen.knows.whitening.whiten(images)[None], labels)
    value = OBJECTIVE.bind(binding_of(bound, seen.knows))(Evaluation(bound.predict(at, ()), at))
    return float(value.detach())


@pytest.mark.parametrize("steps", [1, 2])
def test_the_true_examples_give_the_statistics_that_were_sent(toy: Any, steps: int) -> None:
    """To the last digits after one step, and nearly after several small ones."""
    training = replace(BATCH, epochs=steps, lr=0.1 if steps == 1 else 0.001)
    seen, truth = observe(toy.federation(training, model=toy.normalised()), ServerView(), Knows())
    assert Fact.STATISTICS in seen.facts
    bound = BESIDE.bind(seen)
    told = batch_statistics(seen)
    assert bound.names[-2:] == tuple(told) == ("1.running_mean", "1.running_var")
    at = Candidate(seen.knows.whitening.whiten(truth.images)[None], truth.labels)
    predicted = bound.predict(at, ())
    tight = 1e-5 if steps == 1 else 1e-3
    for one, other in zip(predicted[-2:], told.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=tight, atol=tight)
    other_images = truth.images.flip(-1) * 0.5
    assert energy(seen, truth.images, truth.labels) < 0.01 * energy(seen, other_images, truth.labels)


def test_the_weights_part_of_the_objective_does_not_see_them(toy: Any) -> None:
    seen, truth = observe(toy.federation(BATCH, model=toy.normalised()), ServerView(), Knows())
    bare = OneGradient().bind(seen)
    at = Candidate(seen.knows.whitening.whiten(truth.images.flip(-1))[None], truth.labels)
    alone = Cosine().bind(binding_of(bare, seen.knows))(Evaluation(bare.predict(at, ()), at))
    bound = BESIDE.bind(seen)
    free = WithStatistics(Cosine(), 0.0).bind(binding_of(bound, seen.knows))
    assert float(free(Evaluation(bound.predict(at, ()), at)).detach()) == pytest.approx(float(alone.detach()))


def test_of_an_aggregate_the_means_alone_are_read(toy: Any) -> None:
    federation = toy.federation(BATCH, clients=2, model=toy.normalised())
    seen, _ = observe(federation, AggregateView(), Knows())
    assert list(batch_statistics(seen)) == ["1.running_mean"]


def test_without_moved_statistics_it_is_the_operator_alone(toy: Any) -> None:
    seen = toy.observation(Training(0.1), model=toy.normalised())
    assert Fact.STATISTICS not in seen.facts
    assert BESIDE.bind(seen).names == OneGradient().bind(seen).names


def test_they_are_read_where_noise_hides_the_update(toy: Any) -> None:
    """A defence of the update leaves the statistics as they are: the colour of a picture comes through."""
    federation = toy.federation(BATCH, examples=1, model=toy.normalised())
    dark = [replace(client, images=0.3 * client.images) for client in federation.clients]
    seen, truth = observe(replace(federation, clients=dark), ServerView(), Knows())
    noise = {name: torch.randn(t.shape, generator=torch.Generator().manual_seed(1)) for name, t in seen.update.items()}
    hidden = replace(seen, update=noise)
    with_them, without = (
        recipe(name, iterations=60).run(hidden) for name in ("coarse_to_fine_statistics", "coarse_to_fine_batchnorm")
    )
    assert uses_of(recipe("coarse_to_fine_statistics")) >= {Fact.STATISTICS}
    level = float(truth.images.mean())
    assert abs(float(with_them.images.mean()) - level) < 0.5 * abs(float(without.images.mean()) - level)
