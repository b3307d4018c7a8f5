"""The distance between several clients' mean update and one super-client's, against the terms of its expansion."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import BatchNorm
from fedglass.models.catalogue import build
from fedglass.models.network import Network
from fedglass.reproduce.probes.divergence import (
    ClientExamples,
    DeltaDraws,
    covariance,
    divergences,
    exponent,
    lemma_factor,
)

POOL = 6


@pytest.fixture(scope="module")
def start() -> tuple[Network, list[Tensor]]:
    model = build("lenet", shape=(1, 8, 8), classes=3).double()
    return Network(model, {}, BatchNorm.FROZEN), [p.detach() for p in model.parameters()]


@pytest.fixture(scope="module")
def pool() -> ClientExamples:
    images = torch.randn(POOL, 1, 8, 8, generator=stream(0, "images"), dtype=torch.float64)
    return images, torch.tensor([0, 1, 2, 0, 1, 1])


def hessian_product(network: Network, before: list[Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
    """H g of the mean loss by a difference of gradients."""

    def gradient(weights: list[Tensor]) -> Tensor:
        leaves = [w.clone().requires_grad_() for w in weights]
        loss = torch.nn.functional.cross_entropy(network(leaves, inputs), labels)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, leaves)])

    g, width = gradient(before), 1e-6
    sizes = [w.numel() for w in before]
    moves = [p.view_as(w) for p, w in zip(torch.split(g, sizes), before, strict=True)]
    sides = [gradient([w + s * width * m for w, m in zip(before, moves, strict=True)]) for s in (1, -1)]
    return (sides[0] - sides[1]) / (2 * width)


def test_one_step_and_one_client_leave_no_distance(start: tuple[Network, list[Tensor]], pool: ClientExamples) -> None:
    inputs, labels = pool
    uneven = [(inputs[:2], labels[:2]), (inputs[2:], labels[2:])]
    found = divergences(*start, uneven, lr=0.5, steps=3)
    assert found.shape[0] == 4
    assert found[:2].norm() < 1e-14
    assert found[2].norm() > 1e-6
    assert divergences(*start, [pool], lr=0.5, steps=3).norm() == 0


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_the_distance_is_that_of_the_expansion(
    start: tuple[Network, list[Tensor]], pool: ClientExamples, steps: int
) -> None:
    """lr^2 tau (tau - 1)/2 (sum_k N_k/N H_k g_k - H g), for clients of unequal size too."""
    inputs, labels = pool
    clients = [(inputs[:2], labels[:2]), (inputs[2:], labels[2:])]
    between = sum(len(y) / POOL * hessian_product(*start, x, y) for x, y in clients) - hessian_product(*start, *pool)
    lr = 1e-5
    found = divergences(*start, clients, lr, steps)[steps] / (lr**2 * steps * (steps - 1) / 2)
    assert (found - between).norm() < 1e-3 * between.norm()


def test_covariance_is_that_of_hessians_and_gradients(
    start: tuple[Network, list[Tensor]], pool: ClientExamples
) -> None:
    inputs, labels = pool
    each = [hessian_product(*start, inputs[i : i + 1], labels[i : i + 1]) for i in range(POOL)]
    expected = torch.stack(each).mean(0) - hessian_product(*start, *pool)
    assert (covariance(*start, inputs, labels) - expected).norm() < 1e-5 * expected.norm()


def test_the_mean_over_all_draws_is_the_lemmas(start: tuple[Network, list[Tensor]], pool: ClientExamples) -> None:
    """Two clients of one example each: all 36 draws with replacement, so that chance has no part in it."""
    inputs, labels = pool
    lr, steps, draws = 1e-5, 2, DeltaDraws(covariance(*start, inputs, labels))
    for i in range(POOL):
        for k in range(POOL):
            clients = [(inputs[j : j + 1], labels[j : j + 1]) for j in (i, k)]
            draws.add(divergences(*start, clients, lr, steps)[steps])
    assert draws.along == pytest.approx(lemma_factor(lr, steps, clients=2, examples=2), rel=1e-3)


def test_the_norm_of_a_mean_is_freed_of_the_variance_of_the_mean() -> None:
    noise = torch.randn(50, 400, generator=stream(0, "noise"), dtype=torch.float64)
    mean = torch.zeros(400, dtype=torch.float64)
    mean[0] = 2.0
    draws = DeltaDraws(mean)
    for row in noise:
        draws.add(mean + row)
    assert draws.norm_of_mean() == pytest.approx(2.0, abs=0.5)  # the plain norm is near sqrt(4 + 400/50) = 3.5
    assert draws.mean_of_norms == pytest.approx(20.0, rel=0.05)
    assert abs(draws.along - 1) < 4 * draws.along_error


def test_a_mean_that_chance_hides_is_none() -> None:
    draws = DeltaDraws(torch.tensor([1.0, 0.0]))
    for value in (1.0, -1.0):
        draws.add(torch.tensor([value, 0.0]))
    assert draws.norm_of_mean() is None


def test_refusals(start: tuple[Network, list[Tensor]], pool: ClientExamples) -> None:
    with pytest.raises(UsageError, match="needs clients and steps"):
        divergences(*start, [pool], 0.1, 0)
    with pytest.raises(UsageError, match="at least 2"):
        DeltaDraws(torch.ones(2)).norm_of_mean()
    with pytest.raises(UsageError, match="positive numbers"):
        exponent([1.0, 2.0], [0.0, 1.0])
