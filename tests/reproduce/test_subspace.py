"""The share of gradients in a plane, against a plain singular value decomposition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.tensors import flatten
from fedglass.core.types import BatchNorm, Training
from fedglass.fl.local import schedule, train
from fedglass.models.catalogue import build
from fedglass.models.network import Network
from fedglass.reproduce.probes.geometry import cosine, cosine_on_segment, local_path, shares_in_subspace, true_gradient

SHAPES = ((3, 4), (5,), (2, 2))


def gradients(rows: Tensor) -> list[list[Tensor]]:
    """Rows of 21 numbers as lists of tensors of three layers."""
    sizes = [torch.Size(s).numel() for s in SHAPES]
    return [[p.view(s) for p, s in zip(row.split(sizes), SHAPES, strict=True)] for row in rows]


def random(*shape: int, name: str = "rows") -> Tensor:
    return torch.randn(*shape, generator=stream(0, name))


def test_gradients_of_rank_two_lie_in_a_plane() -> None:
    rows = random(7, 2) @ random(2, 21, name="basis")
    torch.testing.assert_close(shares_in_subspace(gradients(rows)), torch.ones(7, dtype=torch.float64))


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_shares_agree_with_the_projection_onto_singular_vectors(rank: int) -> None:
    rows = random(6, 21)
    basis = torch.linalg.svd(rows.double(), full_matrices=False).Vh[:rank]
    expected = (rows.double() @ basis.T).norm(dim=1) / rows.double().norm(dim=1)
    torch.testing.assert_close(shares_in_subspace(gradients(rows), rank), expected)


def test_shares_ignore_the_scale_of_all_gradients_together() -> None:
    rows = random(5, 21)
    torch.testing.assert_close(shares_in_subspace(gradients(rows)), shares_in_subspace(gradients(1e-3 * rows)))


def test_no_gradients_and_a_gradient_of_zero_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one gradient"):
        shares_in_subspace([])
    with pytest.raises(UsageError, match="zero has no direction"):
        shares_in_subspace(gradients(torch.zeros(3, 21)))


@pytest.fixture(scope="module")
def client() -> tuple[Network, list[Tensor], Tensor, Tensor]:
    model = build("lenet", shape=(1, 16, 16), classes=4)
    network = Network(model, {}, BatchNorm.FROZEN)
    labels = torch.randint(4, (6,), generator=stream(0, "labels"))
    return network, [p.detach() for p in model.parameters()], random(6, 1, 16, 16, name="images"), labels


def test_the_path_ends_where_training_ends(client: tuple[Network, list[Tensor], Tensor, Tensor]) -> None:
    network, before, inputs, labels = client
    batches = list(schedule(Training(0.1, epochs=2, batch_size=4), 6, stream(0, "shuffle")))
    path = list(local_path(network, before, inputs, labels, batches, Training(0.1)))
    assert len(path) == len(batches) + 1
    for found, expected in zip(path[-1], train(network, before, inputs, labels, batches, Training(0.1)), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_cosine_along_the_segment_matches_autograd(client: tuple[Network, list[Tensor], Tensor, Tensor]) -> None:
    network, before, inputs, labels = client
    after = train(network, before, inputs, labels, schedule(Training(0.5, epochs=5), 6, None), Training(0.5))
    found = cosine_on_segment(network, before, after, inputs, labels, [0.0, 0.3, 1.0])
    for alpha, value in zip((0.0, 0.3, 1.0), found, strict=True):
        weights = [((1 - alpha) * b + alpha * a).requires_grad_() for b, a in zip(before, after, strict=True)]
        loss = torch.nn.functional.cross_entropy(network(weights, inputs), labels)
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights)])
        moved = torch.cat([(b - a).flatten() for b, a in zip(before, after, strict=True)])
        expected = torch.nn.functional.cosine_similarity(gradient, moved, dim=0)
        assert float(value) == pytest.approx(float(expected), abs=1e-5)


def test_one_step_of_descent_goes_along_the_gradient(client: tuple[Network, list[Tensor], Tensor, Tensor]) -> None:
    network, before, inputs, labels = client
    after = train(network, before, inputs, labels, schedule(Training(0.1), 6, None), Training(0.1))
    assert float(cosine_on_segment(network, before, after, inputs, labels, [0.0])[0]) == pytest.approx(1.0, abs=1e-5)


def test_true_gradient_is_that_of_all_examples(client: tuple[Network, list[Tensor], Tensor, Tensor]) -> None:
    network, before, inputs, labels = client
    after = train(network, before, inputs, labels, schedule(Training(0.1), 6, None), Training(0.1))
    moved = flatten({str(i): (b - a) / 0.1 for i, (b, a) in enumerate(zip(before, after, strict=True))})
    found = flatten({str(i): g for i, g in enumerate(true_gradient(network, before, inputs, labels))})
    torch.testing.assert_close(found, moved, rtol=1e-3, atol=1e-5)


def test_cosine_with_zero_is_zero() -> None:
    assert cosine([torch.zeros(2)], [torch.ones(2)]) == 0.0
