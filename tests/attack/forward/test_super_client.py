"""One super-client, and each client for itself, beside naive loops over the same steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.attack.forward.unroll import EachClient, SuperClient
from fedglass.attack.parts import Forward
from fedglass.core.errors import UsageError
from fedglass.core.types import Candidate, Observation, Training
from fedglass.federation.federation import Federation, observe
from fedglass.federation.peer import PeerView
from fedglass.federation.views import AggregateView, Knows

TRAINING = Training(0.3, epochs=3)


def uneven(toy: Any, sizes: tuple[int, ...] = (3, 1, 2), training: Training = TRAINING) -> Federation:
    clients = [toy.client(i, n) for i, n in enumerate(sizes)]
    found: Federation = replace(toy.federation(training), clients=clients)
    return found


def truth_of(federation: Federation, order: tuple[int, ...]) -> Candidate:
    clients = [federation.clients[i] for i in order]
    images = torch.cat([federation.whitening.whiten(c.images) for c in clients])
    return Candidate(images[None], torch.cat([c.labels for c in clients]))


def residual(forward: Forward, seen: Observation, at: Candidate) -> float:
    bound = forward.bind(seen)
    pairs = zip(bound.predict(at, []), bound.target, strict=True)
    return max(float((g - y).detach().abs().max()) for g, y in pairs)


def naive(seen: Observation, images: Tensor, labels: Tensor, steps: int, lr: float) -> list[Tensor]:
    """(w_0 - w_tau) / lr by one graph over all steps of plain autograd."""
    model = seen.model
    start = {name: w.detach().clone().requires_grad_() for name, w in seen.before.items()}
    weights = start
    for _ in range(steps):
        loss = F.cross_entropy(torch.func.functional_call(model, weights, (images,)), labels)
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {name: w - lr * g for (name, w), g in zip(weights.items(), gradients, strict=True)}
    return [(start[name] - weights[name]) / lr for name in start]


def test_the_super_client_is_a_naive_loop_over_whole_batches(toy: Any) -> None:
    seen, _ = observe(uneven(toy), AggregateView(), Knows(labels=True))
    images = torch.randn(1, 6, 1, 8, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    found = SuperClient().bind(seen).predict(Candidate(images, labels), [])
    slow = naive(seen, images[0], labels, 3, 0.3)
    for a, b in zip(found, slow, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    weights = [torch.randn(g.shape, generator=torch.Generator().manual_seed(2)) for g in found]
    ours, theirs = (torch.autograd.grad(gs, images, weights)[0] for gs in (found, slow))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [(2, 2), (3, 1, 2)])
def test_one_step_of_the_super_client_is_exact_for_clients_of_any_size(toy: Any, sizes: tuple[int, ...]) -> None:
    federation = uneven(toy, sizes, Training(0.3))
    seen, _ = observe(federation, AggregateView(), Knows(labels=True))
    assert residual(SuperClient(), seen, truth_of(federation, tuple(range(len(sizes))))) < 1e-5


def test_each_client_is_exact_for_many_steps_and_the_super_client_is_not(toy: Any) -> None:
    federation = uneven(toy)
    seen, _ = observe(federation, AggregateView(), Knows(labels=True))
    at = truth_of(federation, (0, 1, 2))
    assert residual(EachClient(), seen, at) < 1e-4
    assert residual(SuperClient(), seen, at) > 1e-3
    mixed = truth_of(federation, (2, 0, 1))  # the grouping counts
    assert residual(EachClient(), seen, mixed) > 1e-3


def test_a_peer_has_its_own_examples_last(toy: Any) -> None:
    federation = uneven(toy)
    seen, _ = observe(federation, PeerView(0), Knows(labels=True))
    assert residual(EachClient(), seen, truth_of(federation, (1, 2, 0))) < 1e-4


def test_the_super_client_comes_nearer_with_a_smaller_rate(toy: Any) -> None:
    """Its distance falls with the rate, as Lemma 1 has it: (K - 1) eta^2 tau (tau - 1) / N in the update."""
    far, near = (
        residual(SuperClient(), observe(f, AggregateView(), Knows(labels=True))[0], truth_of(f, (0, 1, 2)))
        for f in (uneven(toy, training=Training(lr, epochs=3)) for lr in (0.3, 0.03))
    )
    assert near < far / 5


def test_steps_and_rate_are_enough(toy: Any) -> None:
    federation = uneven(toy)
    whole, _ = observe(federation, AggregateView(), Knows())
    seen, _ = observe(federation, AggregateView(), Knows(training=False, steps=True))
    at = truth_of(federation, (0, 1, 2))
    pairs = zip(*(SuperClient().bind(o).predict(at, []) for o in (whole, seen)), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_what_is_not_known_is_named(toy: Any) -> None:
    seen, _ = observe(uneven(toy), AggregateView(), Knows(training=False))
    with pytest.raises(UsageError, match="super-client needs the number of local steps"):
        SuperClient().bind(seen)
    seen, _ = observe(uneven(toy), AggregateView(), Knows(examples=False))
    with pytest.raises(UsageError, match="each client needs the true labels of each client"):
        EachClient().bind(seen)


def test_the_simulation_keeps_weights_not_graphs_where_memory_is_short(toy: Any) -> None:
    """The same figures from a budget that holds neither all graphs nor all weights; less than one step is refused."""
    seen, _ = observe(uneven(toy, training=Training(0.3, epochs=9)), AggregateView(), Knows(labels=True))
    images = torch.randn(1, 6, 1, 8, 8).requires_grad_()
    at = Candidate(images, torch.tensor([0, 1, 2, 3, 4, 0]))
    gradients = []
    for budget in (100.0, 0.09):
        found = SuperClient(budget).bind(seen).predict(at, [])
        gradients.append(torch.autograd.grad(found, images, [torch.ones_like(g) for g in found])[0])
    torch.testing.assert_close(*gradients)
    with pytest.raises(UsageError, match="9 local steps needs at least"):
        SuperClient(0.01).bind(seen)


def test_relu_and_pooling(toy: Any) -> None:
    layers = nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(48, 5, bias=False)
    model = toy.seeded(nn.Sequential(*layers))
    federation = replace(uneven(toy, training=Training(0.05)), model=model)
    seen, _ = observe(federation, AggregateView(), Knows(labels=True))
    assert residual(SuperClient(), seen, truth_of(federation, (0, 1, 2))) < 1e-5
