"""The terms of Theorem 1 of the maliciously curious client."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.reproduce.probes.theory import FederationSizes, bound_terms, smoothness, steepness

SGD = FederationSizes(lr=0.1, clients=4, batch=2, parameters=50, clip=3.0, noise=2.0)


def test_the_terms_follow_the_proof_step_by_step() -> None:
    """e_0 + L |g_0 - g_k| with |g_0 - g_k|^2 <= 8k/eta (gap^2 + k eta d C^2 sigma^2 / (M B^2)) [Eqs. 35d, 37f]."""
    for index, gap in ((1, 0.2), (7, 1.3)):
        found = bound_terms(SGD, index, steep=0.6, gap=gap, base=0.4, longest=1e9)
        spread = index * SGD.lr * SGD.parameters * (SGD.clip * SGD.noise / SGD.batch) ** 2 / SGD.clients
        both = 0.6 * math.sqrt(8 * index / SGD.lr * (gap**2 + spread))
        of_gap, of_noise = (0.6 * math.sqrt(8 * index / SGD.lr * part) for part in (gap**2, spread))
        assert found.gap == pytest.approx(of_gap)
        assert found.noise == pytest.approx(of_noise)
        assert found.total is not None
        assert found.total >= 0.4 + both  # roots are subadditive


def test_without_noise_the_clipping_does_not_matter() -> None:
    one, other = (bound_terms(replace(SGD, clip=c, noise=0.0), 3, 1.0, 0.5, 0.1, 9.0) for c in (0.0, 5.0))
    assert one == other
    assert one.noise == 0


def test_a_risen_objective_leaves_the_cap() -> None:
    found = bound_terms(SGD, 3, 1.0, None, 0.1, 9.0)
    assert (found.total, found.capped, found.error(81)) == (None, True, 2.0)


def test_a_linear_map_is_as_steep_as_its_norm_and_no_steeper() -> None:
    map_ = torch.randn(6, 4, generator=stream(0, "map"))
    steps = [torch.randn(4, generator=stream(0, "step", i)) for i in range(40)]
    norm = float(torch.linalg.matrix_norm(map_, 2))
    found = steepness([(map_ @ g)[None] for g in steps], steps)
    assert 0.5 * norm < found <= norm * (1 + 1e-5)


def test_another_picture_of_the_same_step_is_infinitely_steep() -> None:
    assert steepness([torch.zeros(1, 2), torch.ones(1, 2)], [torch.ones(3), torch.ones(3)]) == math.inf


def test_a_quadratic_is_as_smooth_as_its_curvature() -> None:
    weights = [torch.randn(3, generator=stream(1, "w", i)) for i in range(5)]
    assert smoothness(weights, [2.5 * w for w in weights]) == pytest.approx(2.5)


def test_what_can_not_be_is_refused() -> None:
    with pytest.raises(UsageError, match="two rounds or more"):
        steepness([torch.zeros(1, 2)], [torch.zeros(2)])
