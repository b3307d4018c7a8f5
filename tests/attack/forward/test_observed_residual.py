"""The residual of a single example is read off its message."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedglass.attack.forward.gradients import ObservedResidual, OneGradient, left_factor
from fedglass.core.optimisers import SGD, Adam
from fedglass.core.rng import stream
from fedglass.core.types import BatchNorm, Candidate, Observation, Training
from fedglass.federation.federation import Federation, observe
from fedglass.federation.views import Knows, ServerView

KNOWS = Knows()


def seen_in(federation: Federation, knows: Knows = KNOWS) -> Observation:
    return observe(federation, ServerView(), knows)[0]


def message(forward: Any, seen: Observation, candidate: Candidate) -> Tensor:
    return torch.cat([g.detach().flatten() for g in forward.bind(seen).predict(candidate, ())])


@pytest.mark.parametrize(
    ("training", "knows"),
    [
        (Training(0.3), Knows()),
        (Training(0.3), Knows(training=False)),
        (Training(0.3, batch_norm=BatchNorm.BATCH), Knows()),
        (Training(0.3, clip=0.1), Knows()),
        (Training(0.3, label_smoothing=0.1), Knows()),
        (Training(0.3, optimiser=SGD(0.9, nesterov=True)), Knows()),
    ],
    ids=repr,
)
def test_the_true_image_explains_the_message(toy: Any, training: Training, knows: Knows) -> None:
    federation = toy.federation(training, model=toy.normalised(), examples=1)
    seen = seen_in(federation, knows)
    target = torch.cat([y.flatten() for y in ObservedResidual().bind(seen).target])
    found = message(ObservedResidual(), seen, toy.trained_on(federation))
    assert (found - target).norm() < 1e-5 * target.norm()


def test_at_another_image_only_the_residual_differs_from_one_gradient(toy: Any) -> None:
    federation = toy.federation(Training(0.3), examples=1)
    seen, truth = seen_in(federation), toy.trained_on(federation)
    other = Candidate(torch.zeros_like(truth.images), truth.labels)
    bias = ObservedResidual().bind(seen).predict(other, ())[-1]
    torch.testing.assert_close(bias.detach(), seen.update["3.bias"] / -0.3)
    assert not torch.allclose(OneGradient().bind(seen).predict(other, ())[-1].detach(), bias.detach(), rtol=1e-2)


class NoBias(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(6, classes, bias=False)  # registered before the layer that feeds it
        self.body = nn.Linear(64, 6)
        self.idle = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.flatten(1)).sigmoid())  # type: ignore[no-any-return]  # of Any


@pytest.mark.parametrize("label", range(5))
def test_without_a_bias_the_direction_is_found(toy: Any, label: int) -> None:
    federation = toy.federation(Training(0.3), model=toy.seeded(NoBias(5)), examples=1)
    client = replace(federation.clients[0], labels=torch.tensor([label]))
    federation = replace(federation, clients=[client])
    seen = seen_in(federation)
    found = message(ObservedResidual(), seen, toy.trained_on(federation))
    target = torch.cat([y.flatten() for y in ObservedResidual().bind(seen).target])
    assert torch.nn.functional.cosine_similarity(found, target, dim=0) > 0.999


def test_without_a_bias_sizes_are_left_to_one_gradient(toy: Any) -> None:
    seen = seen_in(toy.federation(Training(0.3), model=toy.seeded(NoBias(5)), examples=1))
    candidate = Candidate(toy.images(1, "other")[None], torch.zeros(1).long())
    found = message(ObservedResidual(sized=True), seen, candidate)
    assert torch.equal(found, message(OneGradient(), seen, candidate))
    assert not torch.equal(found, message(ObservedResidual(), seen, candidate))


@pytest.mark.parametrize("classes", [2, 3, 62])
def test_the_left_factor_has_the_sign_of_a_residual(classes: int) -> None:
    for seed in range(10):
        truth = torch.randn(classes, generator=stream(seed, "logits")).softmax(-1)
        truth[seed % classes] -= 1
        hidden = torch.rand(7, generator=stream(seed, "hidden"))
        found = left_factor(torch.outer(truth, hidden))
        torch.testing.assert_close(found, truth / truth.norm(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("training", "knows", "examples"),
    [
        (Training(0.3), Knows(), 2),
        (Training(0.3, epochs=2), Knows(), 1),
        (Training(0.3, epochs=2), Knows(training=False, steps=True), 1),
        (Training(0.3, optimiser=Adam()), Knows(), 1),
        (Training(0.3, optimiser=SGD(weight_decay=0.1)), Knows(), 1),
    ],
)
def test_mixed_residuals_are_left_to_one_gradient(toy: Any, training: Training, knows: Knows, examples: int) -> None:
    seen = seen_in(toy.federation(training, examples=examples), knows)
    candidate = Candidate(toy.images(examples, "other")[None], torch.zeros(examples).long())
    assert torch.equal(message(ObservedResidual(), seen, candidate), message(OneGradient(), seen, candidate))


def test_labels_that_are_sought_get_a_gradient(toy: Any) -> None:
    seen = seen_in(toy.federation(Training(0.3), examples=1))
    soft = torch.full((1, 5), 0.2, requires_grad=True)
    predicted = ObservedResidual().bind(seen).predict(Candidate(toy.images(1)[None], soft), ())
    (found,) = torch.autograd.grad(torch.stack([p.square().sum() for p in predicted]).sum(), soft)
    assert found.any()


@pytest.mark.parametrize("kept", [0, 1])
def test_a_pruned_residual_is_not_believed(toy: Any, kept: int) -> None:
    federation = toy.federation(Training(0.3), examples=1)
    seen = seen_in(federation)
    bias = list(seen.update)[-1]
    largest = seen.update[bias].abs().topk(kept).indices
    cut = torch.zeros_like(seen.update[bias]).index_copy(0, largest, seen.update[bias][largest])
    pruned = replace(seen, update={**seen.update, bias: cut})
    candidate = toy.trained_on(federation)
    torch.testing.assert_close(
        message(ObservedResidual(), pruned, candidate), message(OneGradient(), pruned, candidate), rtol=0, atol=0
    )
