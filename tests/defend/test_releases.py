"""Laws of the defences on an outgoing update."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.tensors import flatten
from fedglass.defend.noise import Clip, GaussianNoise, LaplacianNoise
from fedglass.defend.pruning import (
    LayerMagnitudePruning,
    LayerRandomPruning,
    MagnitudePruning,
    RandomDrop,
    RandomPruning,
    lowest,
)
from fedglass.fl.release import Chain, Outgoing, Release

GLOBAL = (MagnitudePruning, RandomPruning)
LAYERS = (LayerMagnitudePruning, LayerRandomPruning)
ALL: tuple[Release, ...] = (
    Clip(0.5),
    GaussianNoise(0.1),
    LaplacianNoise(0.1),
    MagnitudePruning(0.3),
    LayerMagnitudePruning(0.3),
    RandomPruning(0.3),
    LayerRandomPruning(0.3),
    RandomDrop(0.3),
    Chain((Clip(0.5), GaussianNoise(0.1))),
)


def some_update() -> dict[str, Tensor]:
    noise = stream(0, "update")
    return {name: torch.randn(shape, generator=noise) for name, shape in {"a": (7, 3), "b": (10,), "c": ()}.items()}


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return list(left) == list(right) and all(torch.equal(left[n], right[n]) for n in left)


@pytest.mark.parametrize("part", ALL, ids=repr)
def test_repr_is_the_part(part: Release) -> None:
    assert eval(repr(part)) == part


@pytest.mark.parametrize("part", ALL, ids=repr)
def test_generator_decides_and_the_update_stays(part: Release) -> None:
    update = some_update()
    first, again = (part.release(Outgoing(update, stream(3, "release"))) for _ in range(2))
    assert same(first, again)
    assert same(update, some_update())
    assert {n: (t.shape, t.dtype) for n, t in first.items()} == {n: (t.shape, t.dtype) for n, t in update.items()}


@pytest.mark.parametrize("part", [p for p in ALL if not isinstance(p, Clip | MagnitudePruning | LayerMagnitudePruning)])
def test_another_seed_gives_another_release(part: Release) -> None:
    one, other = (part.release(Outgoing(some_update(), stream(seed, "x"))) for seed in (0, 1))
    assert not same(one, other)


@pytest.mark.parametrize(
    "part",
    [
        Clip(1e6),
        GaussianNoise(0.0),
        LaplacianNoise(0.0),
        RandomDrop(0.0),
        *(kind(0.0) for kind in GLOBAL + LAYERS),
        Chain(()),
    ],
    ids=repr,
)
def test_zero_strength_is_the_identity(part: Release) -> None:
    assert same(part.release(Outgoing(some_update(), stream(0, "x"))), some_update())


@pytest.mark.parametrize("norm", [0.01, 1.0, 0.99 * float(flatten(some_update()).norm())])
def test_clip_bounds_the_norm_and_keeps_the_direction(norm: float) -> None:
    before = flatten(some_update())
    after = flatten(Clip(norm).release(Outgoing(some_update(), stream(0, "x"))))
    assert float(after.norm()) == pytest.approx(norm, rel=1e-5)
    assert float(torch.cosine_similarity(before, after, dim=0)) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(("part", "variance"), [(GaussianNoise(0.3), 0.09), (LaplacianNoise(0.3), 0.18)])
def test_noise_has_the_stated_moments(part: Release, variance: float) -> None:
    zeros = {"a": torch.zeros(100_000), "b": torch.zeros(100_000)}
    released = part.release(Outgoing(zeros, stream(0, "noise")))
    noise = flatten(released).double()
    kurtosis = float((noise**4).mean() / noise.var() ** 2)
    assert float(noise.var()) == pytest.approx(variance, rel=0.02)
    assert abs(float(noise.mean())) < 5 * math.sqrt(variance / len(noise))
    assert kurtosis == pytest.approx(3.0 if isinstance(part, GaussianNoise) else 6.0, rel=0.06)
    assert abs(float(torch.corrcoef(torch.stack([released["a"], released["b"]]))[0, 1])) < 0.02


def test_the_mean_of_noise_has_its_variance_divided() -> None:
    zeros = {"a": torch.zeros(50_000)}
    for part, variance in ((GaussianNoise(0.3), 0.09), (LaplacianNoise(0.3), 0.18)):
        assert float(part.mean_noise(zeros, 4, stream(0, "n"))["a"].var()) == pytest.approx(variance / 4, rel=0.03)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.7, 0.99])
@pytest.mark.parametrize("kind", GLOBAL)
def test_global_pruning_keeps_exactly_the_share(kind: type[MagnitudePruning], share: float) -> None:
    before = flatten(some_update())
    after = flatten(kind(share).release(Outgoing(some_update(), stream(0, "x"))))
    kept = after != 0
    assert int(kept.sum()) == len(before) - round(share * len(before))
    assert torch.equal(after[kept], before[kept])


@pytest.mark.parametrize("share", [0.1, 0.5, 0.7, 0.99])
@pytest.mark.parametrize("kind", LAYERS)
def test_layer_pruning_keeps_exactly_the_share_of_each(kind: type[LayerMagnitudePruning], share: float) -> None:
    for name, tensor in kind(share).release(Outgoing(some_update(), stream(0, "x"))).items():
        assert int((tensor != 0).sum()) == tensor.numel() - round(share * tensor.numel()), name


def test_magnitude_pruning_keeps_the_largest() -> None:
    before = flatten(some_update()).abs()
    after = flatten(MagnitudePruning(0.6).release(Outgoing(some_update(), stream(0, "x"))))
    assert float(before[after != 0].min()) > float(before[after == 0].max())


def test_magnitude_pruning_of_equal_entries_is_exact() -> None:
    equal = {"a": torch.full((10,), -2.0), "b": torch.full((10,), 2.0)}
    assert int((flatten(MagnitudePruning(0.35).release(Outgoing(equal, stream(0, "x")))) != 0).sum()) == 13


@pytest.mark.parametrize("seed", range(5))
def test_the_lowest_entries_are_those_of_a_stable_sort(seed: int) -> None:
    values = torch.randint(4, (12,), generator=stream(seed, "values")).float()
    for count in range(13):
        first = sorted(range(12), key=lambda i: float(values[i]))[:count]
        assert lowest(values, count).nonzero().flatten().tolist() == sorted(first)


def test_random_pruning_takes_every_entry_equally_often() -> None:
    ones = {"a": torch.ones(20), "b": torch.ones(20)}
    noise = stream(0, "x")
    kept = sum(flatten(RandomPruning(0.25).release(Outgoing(ones, noise))) for _ in range(400))
    assert isinstance(kept, Tensor)
    assert float((kept / 400 - 0.75).abs().max()) < 0.1  # more than four standard deviations


def test_random_drop_has_the_stated_probability() -> None:
    kept = RandomDrop(0.2).release(Outgoing({"a": torch.ones(100_000)}, stream(0, "x")))["a"]
    assert set(kept.unique().tolist()) == {0.0, 1.0}  # what is kept is not scaled up
    assert float(kept.mean()) == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("value", [-0.1, 1.0, 1.5, math.nan, "half", True, None])
@pytest.mark.parametrize("kind", [*GLOBAL, *LAYERS, RandomDrop])
def test_a_share_outside_its_range_is_refused(kind: type[MagnitudePruning], value: float) -> None:
    with pytest.raises(UsageError, match=rf"{kind.__name__}\.(share|probability) must be"):
        kind(value)


@pytest.mark.parametrize("kind", [GaussianNoise, LaplacianNoise])
@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf, "0.1"])
def test_negative_noise_is_refused(kind: type[GaussianNoise], value: float) -> None:
    with pytest.raises(UsageError, match="must be a"):
        kind(value)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_clip_that_is_not_positive_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match=r"Clip\.norm must be a finite number above 0"):
        Clip(value)
