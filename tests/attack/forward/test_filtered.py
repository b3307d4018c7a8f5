"""Predictions that go through the declared filter of an update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedglass.attack.forward.gradients import ObservedResidual, OneGradient
from fedglass.attack.forward.messages import ThroughFilter
from fedglass.attack.forward.unroll import Unroll
from fedglass.audit.simulated import Simulated
from fedglass.audit.target import Target
from fedglass.core.registry import built_in
from fedglass.core.rng import stream
from fedglass.core.tensors import flatten
from fedglass.core.types import Candidate, Filter, Observation, Training
from fedglass.defend.dpsgd import DPSGD
from fedglass.defend.filters import PercentilePrivacy
from fedglass.defend.noise import Clip, GaussianNoise
from fedglass.defend.pruning import (
    LayerMagnitudePruning,
    LayerRandomPruning,
    MagnitudePruning,
    RandomDrop,
    RandomPruning,
)
from fedglass.federation.views import AggregateView, Knows, ServerView, View
from fedglass.fl.local import MeanGradient
from fedglass.fl.release import AsIs, Chain, Outgoing, Protection, Release
from fedglass.recipes import recipe

FILTERS: tuple[Release, ...] = (
    PercentilePrivacy(10, 0.01),
    PercentilePrivacy(90, 0.0001, steps=3),
    PercentilePrivacy(0, 1e-6),
    MagnitudePruning(0.7),
    LayerMagnitudePruning(0.3),
    RandomPruning(0.5),
    LayerRandomPruning(0.5),
    RandomDrop(0.5),
    Chain((MagnitudePruning(0.5), PercentilePrivacy(10, 0.005))),
    Chain((PercentilePrivacy(30, 0.005), RandomDrop(0.3), LayerMagnitudePruning(0.2))),
)
ONE, SERVER = Training(lr=0.1), ServerView()


def seen(toy: Any, release: Release, clients: int = 1, view: View = SERVER) -> Observation:
    federation = toy.federation(ONE, clients=clients, examples=2)
    members = [replace(client, release=release) for client in federation.clients]
    source = Simulated(replace(federation, clients=members), views=(view,), knows=Knows(labels=True))
    (target,) = source.targets(lambda done, total: None)
    assert isinstance(target, Target)
    return target.observation


@pytest.mark.parametrize("part", FILTERS, ids=repr)
def test_the_update_before_a_filter_is_within_its_limits(part: Any) -> None:
    generator = stream(0, "update")
    update = {name: 0.01 * torch.randn(30, 7, generator=generator) for name in ("a", "b")} | {"c": torch.tensor(0.5)}
    update["a"][:3] = 0.0
    sent = part.release(Outgoing(update, stream(1, "filter")))
    low, high = part.limits(sent, sent)
    for name, tensor in update.items():
        assert bool((low[name] <= tensor).all())
        assert bool((tensor <= high[name]).all())
        untouched = low[name] == high[name]
        assert torch.equal(sent[name][untouched], tensor[untouched])
    assert any(not torch.equal(low[name], high[name]) for name in update)


def test_every_defence_that_leaves_limits_is_tried_here() -> None:
    declared = {entry.value for entry in built_in("defences").values() if hasattr(entry.value, "limits")}
    assert declared == {type(part) for part in FILTERS} - {Chain}


@pytest.mark.parametrize("part", FILTERS, ids=repr)
@pytest.mark.parametrize("forward", [OneGradient(), ObservedResidual(), Unroll()], ids=repr)
def test_the_true_batch_has_no_residual(toy: Any, part: Release, forward: Any) -> None:
    observation = seen(toy, part)
    assert observation.knows.filter == part
    federation = toy.federation(ONE, examples=2)
    bound = ThroughFilter(forward).bind(observation)
    predicted = bound.predict(toy.trained_on(federation), ())
    torch.testing.assert_close([*predicted], [*bound.target], rtol=1e-4, atol=1e-6)


def test_without_a_filter_it_is_the_operator_itself(toy: Any) -> None:
    for release in (AsIs(), Clip(0.1), GaussianNoise(0.1), Chain((PercentilePrivacy(), GaussianNoise(0.1))), Chain(())):
        observation = seen(toy, release)
        assert observation.knows.filter is None
    observation = seen(toy, PercentilePrivacy(10, 0.001))
    unsized = replace(observation, knows=replace(observation.knows, training=None, lr=None, steps=None))
    other = Candidate(toy.images(2, "other")[None], torch.tensor([0, 1]))
    for known in (replace(observation, knows=replace(observation.knows, filter=None)), unsized):
        plain, through = (part.bind(known).predict(other, ()) for part in (OneGradient(), ThroughFilter(OneGradient())))
        assert all(map(torch.equal, plain, through))


def test_only_one_clients_own_update_is_seen_after_its_filter(toy: Any) -> None:
    part = PercentilePrivacy(10, 0.001)
    assert seen(toy, part, clients=2).knows.filter == part
    assert seen(toy, part, clients=2, view=AggregateView()).knows.filter is None
    assert Protection(DPSGD(1.0, 1.0), part).filter is None
    assert Protection(MeanGradient(), part).filter == part
    assert isinstance(part, Filter)


def test_a_search_finds_more_behind_a_filter_that_it_knows(toy: Any) -> None:
    """The largest twentieth of the entries is cut off."""
    federation = toy.federation(ONE, examples=1)
    update = seen(toy, AsIs()).update
    gamma = float(flatten(update).abs().quantile(0.95))
    (client,) = federation.clients
    source = Simulated(replace(federation, clients=[replace(client, release=PercentilePrivacy(0, gamma))]))
    (target,) = source.targets(lambda done, total: None)
    assert isinstance(target, Target)
    known = target.observation
    unknown = replace(known, knows=replace(known.knows, filter=None))

    def error(observation: Observation) -> float:
        images: Tensor = recipe("inverting_gradients", iterations=150, tv=0.001).run(observation).images
        return float((images - client.images).square().mean())

    assert error(known) < error(unknown) / 100
