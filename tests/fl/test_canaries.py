"""Canaries: orthonormal directions, inserted as examples that DP-SGD clips like any other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import BatchNorm
from fedglass.defend.dpsgd import DPSGD, GhostDPSGD, PoissonDPSGD
from fedglass.fl.canaries import Canaries, CanaryExamples, WithCanaries
from fedglass.fl.local import MeanGradient, Step
from fedglass.models.network import Network

CANARIES = Canaries(seed=3, count=10)
LIKE = {"b.bias": torch.zeros(7), "a.weight": torch.zeros(6, 7), "scale": torch.tensor(1.0), "steps": torch.tensor(3)}


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensors[name].reshape(-1).double() for name in sorted(LIKE)])


def step(images: int = 4, seed: int = 0) -> Step:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 3))
    network = Network(model, {}, BatchNorm.FROZEN)
    weights = [torch.randn(w.shape, generator=stream(seed, name)) for name, w in model.named_parameters()]
    weights = [weight.requires_grad_() for weight in weights]
    inputs = torch.rand(images, 3, 2, 2, generator=stream(seed, "inputs"))
    targets = torch.arange(images) % 3
    return Step(network, weights, inputs, targets, generator=stream(seed, "noise"))


def named(at: Step, tensors: list[Tensor]) -> dict[str, Tensor]:
    return dict(zip(at.network.names, tensors, strict=True))


def test_directions_are_orthonormal_and_leave_counters_alone() -> None:
    each = [CANARIES.total(LIKE, torch.eye(10)[i]) for i in range(10)]
    rows = torch.stack([flat(one) for one in each])

    assert torch.allclose(rows @ rows.T, torch.eye(10, dtype=torch.float64), atol=1e-6)
    assert all(one["steps"] == 0 for one in each)


def test_scores_are_inner_products_whatever_the_order_of_names() -> None:
    update = {
        name: torch.randn(tensor.shape, generator=stream(0, name)) for name, tensor in LIKE.items() if tensor.dim()
    }
    slow = [
        sum(float((CANARIES.total(update, torch.eye(10)[i])[name] * update[name]).sum()) for name in update)
        for i in range(10)
    ]

    assert CANARIES.scores(update).tolist() == pytest.approx(slow, abs=1e-5)
    assert CANARIES.scores(dict(reversed(update.items()))).tolist() == pytest.approx(slow, abs=1e-5)


def test_chunks_are_the_canaries_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedglass.fl.canaries.CHUNK_ENTRIES", 100)
    chunks = list(CANARIES.chunks(LIKE, [7, 2, 5], 4.0))

    assert len(chunks) == 2
    rows = [{name: tensor[i] for name, tensor in chunk.items()} for chunk in chunks for i in range(len(chunk["steps"]))]
    for row, tensors in zip([7, 2, 5], rows, strict=True):
        assert torch.equal(flat(tensors), flat(CANARIES.total(LIKE, 4.0 * torch.eye(10)[row])))


def test_too_many_canaries_are_refused() -> None:
    with pytest.raises(UsageError, match="take fewer"):
        Canaries(0, 1000).scores(LIKE)
    with pytest.raises(UsageError, match="at least 1"):
        Canaries(0, 0)


@pytest.mark.parametrize("rule", [DPSGD(0.5, 0.0), GhostDPSGD(0.5, 0.0), PoissonDPSGD(0.5, 0.0, 1.0)])
def test_included_canaries_add_a_clipped_direction_each(rule: DPSGD) -> None:
    at = step()
    plain = named(at, list(rule.gradient(at)))
    with_canaries = named(at, list(WithCanaries(rule, CANARIES, length=9.0).gradient(step())))

    added = {name: (with_canaries[name] - plain[name]) * len(at.inputs) for name in plain}
    expected = CANARIES.total(added, 0.5 * CANARIES.coins())
    assert all(torch.allclose(added[name], expected[name], atol=1e-5) for name in added)


def test_short_canaries_are_not_clipped() -> None:
    at = step()
    update = named(at, list(WithCanaries(DPSGD(0.5, 0.0), CANARIES, length=0.25).gradient(at)))
    plain = named(at, list(DPSGD(0.5, 0.0).gradient(step())))
    scores = CANARIES.scores({name: (update[name] - plain[name]) * 4 for name in update})

    assert scores.tolist() == pytest.approx((0.25 * CANARIES.coins()).tolist(), abs=1e-5)


def test_each_canary_is_in_one_batch_of_an_epoch() -> None:
    seen: list[int] = []

    class Seen:
        def gradient(self, at: Step) -> list[Tensor]:
            assert at.canaries is not None
            seen.extend(at.canaries.rows)
            list(at.canaries.gradients(at))
            return []

    for place in range(3):
        WithCanaries(Seen(), CANARIES, 1.0, batches=3).gradient(replace(step(), place=place))

    assert sorted(seen) == CANARIES.coins().nonzero()[:, 0].tolist()


def test_poisson_samples_take_canaries_at_the_rate_of_examples() -> None:
    generator = stream(0, "sample")
    many = CanaryExamples(Canaries(0, 4000), list(range(4000)), 1.0)

    assert len(many.sampled(0.25, generator).rows) == pytest.approx(1000, abs=120)
    assert many.uses


def test_an_empty_sample_of_examples_still_holds_its_canaries() -> None:
    """With a rate next to 0 no example and no canary is drawn, and the noise alone is left."""
    rule = PoissonDPSGD(0.5, 0.0, 1e-9)
    gradient = WithCanaries(rule, CANARIES, 1.0).gradient(step())

    assert all(not bool(tensor.any()) for tensor in gradient)


def test_a_gradient_that_never_sees_single_examples_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be inserted"):
        WithCanaries(MeanGradient(), CANARIES, 1.0).gradient(step())
