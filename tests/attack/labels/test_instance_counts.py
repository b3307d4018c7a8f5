"""Labels counted from weights and bias together, and from weights with images of the adversary's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from fedglass.attack.labels.counts import (
    InstanceCounts,
    InterpolatedCounts,
    LastLayerCounts,
    OwnCounts,
    predictions_by_class,
    round_to_sum,
    solve_counts,
)
from fedglass.attack.parts import Labels
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Observation, Training
from fedglass.federation.client import Client
from fedglass.federation.federation import observe
from fedglass.federation.peer import PeerView
from fedglass.federation.views import Knows, ServerView
from fedglass.metrics.catalogue import label_errors

LABELS = [0, 0, 0, 2, 2, 4]


def seen_of(toy: Any, training: Training, model: nn.Module | None = None, labels: list[int] = LABELS) -> Observation:
    client = Client("client 0", toy.images(len(labels), "counts"), torch.tensor(labels))
    federation = replace(toy.federation(training, model=model or toy.dense(nn.ReLU)), clients=[client])
    return observe(federation, ServerView(), Knows())[0]


def found(part: Labels, seen: Observation) -> Tensor:
    return part.bind(seen, stream(0, "labels")).decode([])


@pytest.mark.parametrize("training", [Training(0.01), Training(0.003, epochs=4), Training(0.003, 2, batch_size=2)])
def test_counts_come_back_also_through_several_steps(toy: Any, training: Training) -> None:
    labels = found(InstanceCounts(), seen_of(toy, training))
    assert label_errors(labels, torch.tensor(LABELS), 5) <= (training.local_steps(6) > 1)


def test_the_solution_is_that_of_a_slow_search(toy: Any) -> None:
    """Least squares over all counts at once, by a general minimiser."""
    seen = seen_of(toy, Training(0.01))
    gradient = (-seen.update["3.bias"] / 0.01).double()
    answers = predictions_by_class(seen, gradient)

    def misfit(n: Any) -> float:
        counts = torch.tensor(n)
        rows = answers.T @ counts - counts - 6 * gradient
        return float((counts.sum() - 6) ** 2 + rows.square().sum())

    slow = minimize(misfit, [1.2] * 5, method="BFGS", options={"gtol": 1e-10}).x
    fast = solve_counts(answers, gradient, 6)
    torch.testing.assert_close(fast, torch.tensor(slow).clamp(min=0), rtol=1e-3, atol=1e-3)


def test_the_sum_is_repaired_both_ways() -> None:
    assert round_to_sum(torch.tensor([0.4, 0.4, 0.4]), 3).tolist() == [1, 1, 1]
    assert int(round_to_sum(torch.tensor([1.6, 1.6, 0.0]), 2).sum()) == 2


def test_a_class_without_gradient_does_not_spoil_the_rest(toy: Any) -> None:
    seen = seen_of(toy, Training(0.01))
    update = {name: u.clone() for name, u in seen.update.items()}
    update["3.bias"][1] = 0
    update["3.weight"][1] = 0
    labels = found(InstanceCounts(), replace(seen, update=update))
    assert len(labels) == 6


def test_a_last_layer_without_bias_is_refused_and_counted_otherwise(toy: Any) -> None:
    layers = nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5, bias=False)
    seen = seen_of(toy, Training(0.01), toy.seeded(nn.Sequential(*layers)))
    with pytest.raises(UsageError, match="need a last layer with a bias"):
        found(InstanceCounts(), seen)
    with pytest.raises(UsageError, match="need a last layer with a bias"):
        InstanceCounts().check(seen)
    assert torch.equal(found(LastLayerCounts(), seen), found(InterpolatedCounts(), seen))  # no images of its own
    with_bias = seen_of(toy, Training(0.01))
    assert torch.equal(found(LastLayerCounts(), with_bias), found(InstanceCounts(), with_bias))


def test_own_images_count_better_than_noise(toy: Any) -> None:
    """Of a network without bias, whose hidden units pictures excite otherwise than noise does."""
    layers = nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5, bias=False)
    model = toy.seeded(nn.Sequential(*layers))
    own = Client("client 0", toy.images(6, "own"), torch.tensor([1, 3, 0, 1, 2, 4]))
    other = Client("client 1", toy.images(6, "counts"), torch.tensor(LABELS))
    federation = replace(toy.federation(Training(0.01), model=model), clients=[own, other])
    seen, truth = observe(federation, PeerView(0), Knows())
    by_own, by_noise = (label_errors(found(p, seen), truth.labels, 5) for p in (OwnCounts(), InterpolatedCounts()))
    assert by_own <= by_noise
    assert by_own <= 2
