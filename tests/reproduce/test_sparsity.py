"""Sparsity of a gradient and its correlation, against plain counting and numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.defend.pruning import MagnitudePruning
from fedglass.fl.release import Outgoing
from fedglass.reproduce.probes.geometry import pearson, sparsity

NUMBERS = st.lists(st.tuples(*[st.floats(-1e6, 1e6)] * 2), min_size=2, max_size=20)


def layers() -> list[torch.Tensor]:
    values = torch.randn(60, generator=stream(0, "layers"))
    values[::7] = 0.0
    return [values[:24].view(2, 3, 4), values[24:25], values[25:]]


def test_sparsity_counts_the_entries_of_all_layers_alike() -> None:
    entries = [float(v) for layer in layers() for v in layer.flatten()]
    assert sparsity(layers()) == sum(v == 0 for v in entries) / 60


def test_scale_and_sign_do_not_matter() -> None:
    assert sparsity([-1e-20 * layer for layer in layers()]) == sparsity(layers())


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
def test_pruning_a_share_makes_that_sparsity(share: float) -> None:
    dense = {"w": torch.randn(100, generator=stream(1, "dense"))}
    pruned = MagnitudePruning(share).release(Outgoing(dense, stream(0, "release")))
    assert sparsity(pruned.values()) == pytest.approx(share)


def test_a_relu_that_is_never_on_leaves_zeros() -> None:
    weight = torch.tensor([[-1.0], [1.0]], requires_grad=True)
    loss = torch.relu(weight @ torch.ones(1)).sum()
    assert sparsity(torch.autograd.grad(loss, [weight])) == 0.5


@given(NUMBERS)
def test_pearson_agrees_with_numpy(pairs: list[tuple[float, float]]) -> None:
    xs, ys = ([float(round(p[i], 3)) for p in pairs] for i in (0, 1))
    found = pearson(xs, ys)
    if len(set(xs)) == 1 or len(set(ys)) == 1:
        assert found is None
    else:
        assert found is not None
        assert -1 <= found <= 1
        assert found == pytest.approx(float(np.corrcoef(xs, ys)[0, 1]), abs=1e-6)
        assert pearson(ys, xs) == pytest.approx(found, abs=1e-12)


def test_pearson_of_lines_and_their_shifts() -> None:
    xs = [0.203, 0.213, 0.240, 0.344]
    assert pearson(xs, [3 * x + 2 for x in xs]) == pytest.approx(1.0)
    assert pearson(xs, [-x for x in xs]) == pytest.approx(-1.0)
    # The means of the paper's Figure 3 for CelebA-HQ: more sparsity, less recovered.
    assert pearson(xs, [18.91, 17.03, 13.32, 11.16]) == pytest.approx(-0.9, abs=0.05)


@pytest.mark.parametrize(("xs", "ys"), [([1.0], [1.0]), ([1.0, 2.0], [1.0]), ([1.0, math.nan], [1.0, 2.0]), ([], [])])
def test_correlations_of_nothing_are_refused(xs: list[float], ys: list[float]) -> None:
    with pytest.raises(UsageError, match="A correlation needs"):
        pearson(xs, ys)


def test_empty_gradients_are_refused() -> None:
    with pytest.raises(UsageError, match="without entries"):
        sparsity([])
