"""Soteria against slow oracles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedglass.core.errors import ModelError, UsageError
from fedglass.core.types import BatchNorm
from fedglass.defend.pruning import Soteria, SoteriaReleased, representation
from fedglass.fl.local import GradientFn, MeanGradient, Step

HEAD = 4
"""The weight of the last dense layer among the small network's parameters."""


def hidden(step: Step, image: Tensor) -> Tensor:
    """The representation of one image, layer by layer and without the network."""
    kernel, bias, weight, offset, _, _ = step.weights
    body = torch.tanh(nn.functional.conv2d(image[None], kernel, bias)).flatten(1)
    return torch.tanh(body @ weight.T + offset)[0]


def slopes(step: Step, image: Tensor) -> list[float]:
    """||dr_i/dX|| one entry at a time."""
    jacobian = torch.autograd.functional.jacobian(lambda x: hidden(step, x), image)
    return [float(row.norm()) for row in jacobian]


def test_the_representation_and_its_slopes(step: Step) -> None:
    features, found = representation(step)
    for i, image in enumerate(step.inputs):
        torch.testing.assert_close(features[i], hidden(step, image).detach())
        torch.testing.assert_close(found[i], torch.tensor(slopes(step, image)))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_each_example_loses_the_entries_that_tell_most(
    step: Step, one_by_one: Callable[[Step], list[list[Tensor]]], share: float
) -> None:
    slow = torch.zeros(3, 6)
    for image, own in zip(step.inputs, one_by_one(step), strict=True):
        entries = hidden(step, image).tolist()
        # the definition: the change of the input that explains r_i, by the pseudo-inverse of dr_i/dX
        jacobian = torch.autograd.functional.jacobian(lambda x: hidden(step, x), image).flatten(1)
        told = [float((r * torch.linalg.pinv(row[None])).norm()) for r, row in zip(entries, jacobian, strict=True)]
        for i in sorted(range(6), key=lambda i: -told[i])[round(share * 6) :]:
            slow[:, i] += own[HEAD][:, i] / 4
    found = list(Soteria(share).gradient(step))
    torch.testing.assert_close(found[HEAD], slow)
    plain = list(MeanGradient().gradient(step))
    for i in (0, 1, 2, 3, 5):
        assert torch.equal(found[i], plain[i])


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_the_released_mask_is_one_for_the_batch(step: Step, share: float) -> None:
    ratios = np.zeros(6)
    for image in step.inputs:
        entries = hidden(step, image).tolist()
        ratios += [s / (r + 0.1) for s, r in zip(slopes(step, image), entries, strict=True)]
    gone = np.argsort(np.abs(ratios))[: round(share * 6)]
    slow = MeanGradient().gradient(step)[HEAD].clone()
    slow[:, gone] = 0
    torch.testing.assert_close(SoteriaReleased(share).gradient(step)[HEAD], slow)


def test_both_agree_on_one_example_of_positive_representation(make_step: Callable[..., Step]) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Sigmoid(), nn.Linear(8, 3))
    alone = make_step(model, 1)
    released = SoteriaReleased(0.5, shift=1e-9).gradient(alone)
    torch.testing.assert_close(list(Soteria(0.5).gradient(alone)), list(released))
    assert int((released[2] == 0).all(0).sum()) == 4  # exactly half of the columns


@pytest.mark.parametrize("part", [Soteria(0.0), SoteriaReleased(0.0)], ids=repr)
def test_zero_strength_is_plain_sgd(step: Step, part: GradientFn) -> None:
    for found, plain in zip(part.gradient(step), MeanGradient().gradient(step), strict=True):
        assert torch.equal(found, plain)


@pytest.mark.parametrize("part", [Soteria(0.5), SoteriaReleased(0.5)], ids=repr)
def test_order_does_not_matter_and_repr_is_the_part(step: Step, part: GradientFn) -> None:
    assert eval(repr(part)) == part
    order = torch.tensor([2, 0, 3, 1])
    shuffled = replace(step, inputs=step.inputs[order], targets=step.targets[order])
    torch.testing.assert_close(list(part.gradient(step)), list(part.gradient(shuffled)))


def test_dead_units_are_pruned_last(make_step: Callable[..., Step]) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    step = make_step(model, 1)
    features, _ = representation(step)
    alive = int((features > 0).sum())
    assert 0 < alive < 8
    head = Soteria(alive / 8).gradient(step)[2]
    assert not head.any()  # all that lived is gone, and nothing is NaN


@pytest.mark.parametrize("kind", [Soteria, SoteriaReleased])
def test_a_network_without_its_layer_is_refused(make_step: Callable[..., Step], kind: type[Soteria]) -> None:
    convolutions = nn.Sequential(nn.Conv2d(1, 3, 4), nn.Flatten())
    with pytest.raises(ModelError, match="no dense layer"):
        kind(0.5).gradient(make_step(convolutions, 2))
    only_dense = nn.Sequential(nn.Flatten(2), nn.Linear(16, 3), nn.Flatten())
    with pytest.raises(ModelError, match="shape"):
        kind(0.5).gradient(make_step(only_dense, 2))


def test_batch_statistics_are_refused(make_step: Callable[..., Step]) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    with pytest.raises(ModelError, match="statistics of the batch"):
        Soteria(0.5).gradient(make_step(model, 2, BatchNorm.BATCH))


@pytest.mark.parametrize("share", [-0.1, 1.0, 70])
def test_bad_shares_are_refused(share: float) -> None:
    with pytest.raises(UsageError, match=r"share must be in \[0, 1\)"):
        Soteria(share)
