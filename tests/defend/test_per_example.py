"""Defences on each example's gradient inside a local step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedglass.core.errors import ModelError, UsageError
from fedglass.core.rng import stream
from fedglass.core.types import BatchNorm
from fedglass.defend import per_example as examples_file
from fedglass.defend.noise import Clip, GaussianNoise, LaplacianNoise
from fedglass.defend.per_example import PerExample, SameEachEpoch, example_gradients
from fedglass.defend.pruning import MagnitudePruning, RandomDrop, RandomPruning
from fedglass.fl.local import GradientFn, MeanGradient, Step
from fedglass.fl.release import AsIs, Chain, Outgoing, Release

Oracle = Callable[[Step], list[list[Tensor]]]
PARTS: tuple[GradientFn, ...] = (
    PerExample(GaussianNoise(0.1)),
    PerExample(LaplacianNoise(0.1)),
    PerExample(RandomDrop(0.5)),
    PerExample(Chain((Clip(0.5), GaussianNoise(0.1)))),
    SameEachEpoch(PerExample(GaussianNoise(0.1))),
)


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])


@pytest.mark.parametrize("entries", [2**25, 1, 200])
def test_example_gradients_are_those_of_single_passes(
    step: Step, one_by_one: Oracle, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples_file, "CHUNK_ENTRIES", entries)
    chunks = list(example_gradients(step))
    found = [torch.cat(parts) for parts in zip(*chunks, strict=True)]
    assert not any(t.requires_grad for t in found)
    for i, own in enumerate(one_by_one(step)):
        torch.testing.assert_close([t[i] for t in found], own)


def test_example_gradients_of_soft_targets_average_to_the_mean(step: Step) -> None:
    soft = replace(step, targets=torch.softmax(torch.randn(4, 3, generator=stream(0, "soft")), dim=1))
    (chunk,) = example_gradients(soft)
    torch.testing.assert_close([g.mean(0) for g in chunk], list(MeanGradient().gradient(soft)))


def test_example_gradients_of_smoothed_labels_average_to_the_mean(step: Step) -> None:
    smooth = replace(step, smoothing=0.3)
    (chunk,) = example_gradients(smooth)
    found, plain = [g.mean(0) for g in chunk], MeanGradient().gradient(step)
    torch.testing.assert_close(found, list(MeanGradient().gradient(smooth)))
    assert not all(torch.allclose(a, b) for a, b in zip(found, plain, strict=True))


def test_example_gradients_can_be_differentiated(step: Step) -> None:
    moving = replace(step, inputs=step.inputs.clone().requires_grad_(), differentiable=True)
    (slope,) = torch.autograd.grad(PerExample(Clip(1e6)).gradient(moving)[0].square().sum(), moving.inputs)
    (plain,) = torch.autograd.grad(MeanGradient().gradient(moving)[0].square().sum(), moving.inputs)
    torch.testing.assert_close(slope, plain)


@pytest.mark.parametrize(
    "defence",
    [AsIs(), Clip(1e6), GaussianNoise(0.0), LaplacianNoise(0.0), RandomDrop(0.0), MagnitudePruning(0.0)],
    ids=repr,
)
def test_zero_strength_is_plain_sgd(step: Step, defence: Release) -> None:
    torch.testing.assert_close(list(PerExample(defence).gradient(step)), list(MeanGradient().gradient(step)))


@pytest.mark.parametrize("defence", [Clip(0.5), MagnitudePruning(0.5), RandomPruning(0.5)], ids=repr)
def test_the_defence_acts_on_each_example(step: Step, one_by_one: Oracle, defence: Release) -> None:
    noise = stream(7, "noise")
    named = [dict(zip(step.network.names, g, strict=True)) for g in one_by_one(step)]
    released = [defence.release(Outgoing(update, noise)) for update in named]
    slow = [torch.stack([r[name] for r in released]).mean(0) for name in step.network.names]
    torch.testing.assert_close(list(PerExample(defence).gradient(replace(step, generator=stream(7, "noise")))), slow)


@pytest.mark.parametrize("noise", [GaussianNoise(0.2), LaplacianNoise(0.2)], ids=repr)
def test_noise_on_the_mean_is_noise_on_each_example(step: Step, noise: GaussianNoise) -> None:
    """The short cut has the moments of the long way, which a chain of one takes."""
    plain = flat(list(MeanGradient().gradient(step)))
    moments = []
    for part in (PerExample(noise), PerExample(Chain((noise,)))):
        source = replace(step, generator=stream(1, "noise"))
        drawn = torch.stack([flat(list(part.gradient(source))) - plain for _ in range(150)])
        moments.append((float(drawn.var()), float((drawn**4).mean() / drawn.var() ** 2)))
    one = 0.04 if isinstance(noise, GaussianNoise) else 0.08
    assert moments[0][0] == pytest.approx(one / 4, rel=0.05)
    assert moments[1][0] == pytest.approx(one / 4, rel=0.05)
    assert moments[0][1] == pytest.approx(moments[1][1], rel=0.1)


@pytest.mark.parametrize("defence", [Clip(0.5), MagnitudePruning(0.5)], ids=repr)
def test_the_order_of_the_examples_does_not_matter(step: Step, defence: Release) -> None:
    order = torch.tensor([2, 0, 3, 1])
    shuffled = replace(step, inputs=step.inputs[order], targets=step.targets[order])
    torch.testing.assert_close(list(PerExample(defence).gradient(step)), list(PerExample(defence).gradient(shuffled)))


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_repr_and_determinism(step: Step, part: GradientFn) -> None:
    assert eval(repr(part)) == part
    first, again, other = (
        flat(list(part.gradient(replace(step, generator=stream(seed, "noise"))))) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_noise_repeats_with_the_place_in_the_epoch(step: Step) -> None:
    part = SameEachEpoch(PerExample(GaussianNoise(0.1)))
    one, again, next_one = (
        flat(list(part.gradient(replace(step, place=k, index=i)))) for k, i in ((0, 0), (0, 9), (1, 1))
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, next_one)


def test_noise_without_a_generator_is_refused(step: Step) -> None:
    with pytest.raises(UsageError, match="generator"):
        PerExample(GaussianNoise(0.1)).gradient(replace(step, generator=None))


def test_batch_statistics_are_refused(make_step: Callable[..., Step]) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    with pytest.raises(ModelError, match="statistics of the batch"):
        list(example_gradients(make_step(model, 4, BatchNorm.BATCH)))
    frozen = make_step(model, 4)
    (chunk,) = example_gradients(frozen)
    torch.testing.assert_close([g.mean(0) for g in chunk], list(MeanGradient().gradient(frozen)))


class Centred(nn.Module):
    """A layer without statistics of its own that mixes the examples of a batch."""

    def forward(self, features: Tensor) -> Tensor:
        return features - features.mean(0, keepdim=True)


def test_a_layer_that_mixes_examples_is_refused(make_step: Callable[..., Step]) -> None:
    step = make_step(nn.Sequential(nn.Flatten(), nn.Linear(16, 3), Centred()), 4)
    with pytest.raises(ModelError, match="depends on the rest of its batch"):
        list(example_gradients(step))


def test_one_example_may_have_batch_statistics(make_step: Callable[..., Step]) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    alone = make_step(model, 1, BatchNorm.BATCH)
    (chunk,) = example_gradients(alone)
    torch.testing.assert_close([g[0] for g in chunk], list(MeanGradient().gradient(alone)))
