"""The noise of a message beside that of the declared defence: only what is as declared passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fedglass.audit.noise import noise_fit
from torch import Tensor

from fedglass.core.rng import stream

ENTRIES, TRIES = 4000, 6


def drawn(kind: str, seed: int, size: int = ENTRIES) -> Tensor:
    source = stream(seed, kind)
    if kind == "normal":
        return torch.randn(size, generator=source)
    return torch.rand(size, generator=source).log() * torch.randn(size, generator=source).sign()


def fit(noise: float, along: float = 1.0, kind: str = "normal", seed: int = 0, size: int = ENTRIES) -> str:
    """How a message fits whose noise is so many times that of the declaration, and whose signal so many times."""
    plain = 0.5 * drawn("normal", 5000, size)
    tries = [[plain + 10 * drawn(kind, 1000 + i, size)] for i in range(TRIES)]
    return noise_fit([along * plain + noise * 10 * drawn(kind, seed, size)], tries, [plain])


@pytest.mark.parametrize("kind", ["normal", "laplacian"])
def test_what_is_as_declared_passes(kind: str) -> None:
    assert {fit(1.0, kind=kind, seed=seed) for seed in range(200)} == {"as declared"}


@pytest.mark.parametrize("noise", [0.0, 1e-6, 0.1, 0.5])
def test_too_little_noise_is_found(noise: float) -> None:
    assert fit(noise) == "too little"


def test_too_much_noise_is_found() -> None:
    assert fit(2.0) == "too much"


def test_other_data_are_found_below_the_noise() -> None:
    """The signal is a twentieth of the noise, which no distance shows."""
    assert {fit(1.0, along=-2.0, seed=seed) for seed in range(20)} == {"other data"}


def test_a_small_model_can_not_be_told() -> None:
    assert fit(1.0, size=100) == "too few weights"


@pytest.mark.parametrize(
    "values",
    [
        lambda noise: noise.sign(),
        lambda noise: (2 * noise).round() / 2,
        lambda noise: (torch.special.ndtr(noise) - 0.5) * 12**0.5,
    ],
    ids=["two", "a grid", "uniform"],
)
def test_noise_of_another_distribution_is_found(values: Callable[[Tensor], Tensor]) -> None:
    """Of two values it is as long as declared, and whoever subtracts the nearer one has what it should hide."""
    plain = 0.01 * drawn("normal", 5000)
    tries = [[plain + 10 * drawn("normal", 1000 + i)] for i in range(TRIES)]
    assert noise_fit([plain + 10 * values(drawn("normal", 7))], tries, [plain]) == "another kind"
