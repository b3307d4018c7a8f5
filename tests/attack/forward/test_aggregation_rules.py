"""Reading through aggregation rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedglass.attack.best_of import AttacksByRule, BestOf, GuessRule
from fedglass.attack.forward.messages import (
    Combination,
    OneClient,
    SoftMedian,
    SupposedMean,
    SupposedMedian,
    SupposedTrimmedMean,
    Through,
)
from fedglass.attack.labels.given import OracleLabels
from fedglass.attack.peer_knowledge import KeepOwnUpdate
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Candidate, Observation, Training
from fedglass.federation.behaviours import Behaviour, Honest, SignFlip
from fedglass.federation.federation import observe
from fedglass.federation.peer import PeerView
from fedglass.federation.truth import Truth
from fedglass.federation.views import AggregateView, Knows, View
from fedglass.fl.aggregate.coordinates import Median, TrimmedMean
from fedglass.fl.aggregate.rule import Aggregator, WeightedMean
from fedglass.metrics.catalogue import match
from fedglass.recipes.maliciously_curious_client import maliciously_curious_client

TWO_STEPS = Training(0.3, epochs=2)
TOLD = Knows(labels=True)
EXACT: list[tuple[Combination, Aggregator]] = [
    (SupposedMean(), WeightedMean()),
    (SupposedMedian(), Median()),
    (SupposedTrimmedMean(1), TrimmedMean(1)),
]


def seen_by(
    toy: Any, rule: Aggregator, view: View, clients: int = 4, behaviour: Behaviour | None = None
) -> tuple[Observation, Truth]:
    federation = toy.federation(TWO_STEPS, clients=clients, examples=2, aggregator=rule)
    first, *others = federation.clients
    acting = [replace(first, behaviour=behaviour or Honest()), *others]
    return observe(replace(federation, clients=acting), view, TOLD)


def left_over(forward: Through, seen: Observation, images: Tensor, labels: Tensor) -> float:
    """How much of the message these examples leave unexplained, as a share of it."""
    bound = forward.bind(seen)
    predicted = bound.predict(Candidate(seen.knows.whitening.whiten(images)[None], labels), ())
    gap = sum(float((p - t).square().sum()) for p, t in zip(predicted, bound.target, strict=True))
    return (gap / sum(float(t.square().sum()) for t in bound.target)) ** 0.5


@pytest.mark.parametrize("clients", [4, 5])
@pytest.mark.parametrize(("combination", "rule"), EXACT)
def test_the_true_examples_explain_what_the_rule_made_of_them(
    toy: Any, combination: Combination, rule: Aggregator, clients: int
) -> None:
    seen, truth = seen_by(toy, rule, AggregateView(), clients)
    assert left_over(Through(combination), seen, truth.images, truth.labels) < 1e-5
    assert left_over(Through(combination), seen, truth.images.flip(-1), truth.labels) > 1e-3


@pytest.mark.parametrize(("combination", "rule"), EXACT)
def test_the_own_update_goes_into_the_rule_as_it_was_sent(toy: Any, combination: Combination, rule: Aggregator) -> None:
    """Poison too: simulated from the own images it would not be found."""
    seen, truth = seen_by(toy, rule, PeerView(0), behaviour=SignFlip(2.0))
    others = KeepOwnUpdate().others(seen)
    n = len(truth.private.labels)
    assert others.knows.examples == n == 6
    images, labels = truth.images, truth.labels
    assert left_over(Through(combination, own=True), others, images[:n], labels[:n]) < 1e-5
    assert left_over(Through(combination), seen, images, labels) > 1e-2


def _attack() -> Any:
    made = maliciously_curious_client(rule="mean", iterations=1)
    assert isinstance(made, BestOf)
    return made.attack[0][1].attack  # type: ignore[attr-defined]  # an `BestOf`


@pytest.mark.parametrize("combination", [*(c for c, _ in EXACT), SoftMedian(), OneClient(1)], ids=repr)
def test_gradients_are_those_of_finite_differences(combination: Combination) -> None:
    rows = torch.randn(5, 3, generator=stream(0, "rows"), dtype=torch.float64, requires_grad=True)
    shares = torch.full((5,), 0.2, dtype=torch.float64)
    if isinstance(combination, SoftMedian):  # its spread is taken for a constant
        combination.combine(rows, shares).sum().backward()
        assert rows.grad is not None
        assert bool(rows.grad.isfinite().all())
        return
    assert torch.autograd.gradcheck(lambda given: combination.combine(given, shares), (rows,))


def test_a_soft_median_lies_between_mean_and_median() -> None:
    rows = torch.tensor([[0.0], [1.0], [1.1], [1.2], [100.0]])
    shares = torch.full((5,), 0.2)
    soft = float(SoftMedian(0.1).combine(rows, shares))
    assert 0.5 < soft < 1.2 < float(rows.mean())
    warm = float(SoftMedian(1e6).combine(rows, shares))
    assert warm == pytest.approx(float(rows.mean()), rel=1e-4)
    same = torch.ones(4, 2)
    torch.testing.assert_close(SoftMedian().combine(same, torch.full((4,), 0.25)), same[0])


def test_one_client_is_that_clients_update(toy: Any) -> None:
    rows = torch.arange(6.0).view(3, 2)
    assert OneClient(2).combine(rows, torch.ones(3)).tolist() == [4.0, 5.0]


def between_mean_and_median(iterations: int) -> BestOf[AttacksByRule]:
    attack = maliciously_curious_client(OracleLabels(), tv=0.0, iterations=iterations)
    assert isinstance(attack, BestOf)
    return BestOf(tuple(pair for pair in attack.attack if pair[0] in ("mean", "median")), GuessRule())


@pytest.mark.parametrize(("name", "rule"), [("mean", WeightedMean()), ("median", Median())])
def test_the_lowest_energy_picks_the_rule(toy: Any, name: str, rule: Aggregator) -> None:
    seen, truth = seen_by(toy, rule, PeerView(0), clients=3, behaviour=SignFlip())
    attack = between_mean_and_median(200)
    found = attack.run(seen, 0)
    assert found.rule == name
    at_truth = attack.energy_of(seen, truth.images, truth.labels, found)
    assert at_truth < 1e-5 < attack.energy_of(seen, truth.images.flip(-1), truth.labels, found)


def test_a_poisoner_reads_its_peers(toy: Any) -> None:
    seen, truth = seen_by(toy, WeightedMean(), PeerView(0), clients=3, behaviour=SignFlip())
    found = between_mean_and_median(400).run(seen, 0)
    n = len(truth.private.labels)
    matched = match(found.images[:n], truth.images[:n]).apply(found.images[:n])
    error = float((matched - truth.images[:n]).square().mean().sqrt())
    guess = float((truth.images[:n] - truth.images[:n].mean(0)).square().mean().sqrt())
    assert error < 0.5 * guess
    assert torch.equal(found.images[n:], truth.images[n:])


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (lambda: SoftMedian(0.0), "temperature must be positive"),
        (lambda: OneClient(-1), "client must be at least 0"),
        (lambda: SupposedTrimmedMean(-1), "byzantine must be at least 0"),
        (lambda: SupposedTrimmedMean(2).combine(torch.zeros(4, 1), torch.ones(4)), "at least 5 clients"),
        (lambda: BestOf((), GuessRule()), "different names"),
        (lambda: maliciously_curious_client(rule="medan"), "did you mean 'median'"),
    ],
)
def test_bad_input_is_refused(wrong: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        wrong()
