"""Initial weights have the distributions that they state."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from fedglass.core.errors import UsageError
from fedglass.core.registry import built_in, reads_path
from fedglass.core.rng import stream
from fedglass.core.tensors import buffers_of, weights_of
from fedglass.models.init import (
    FromFile,
    Initialisation,
    KaimingNormal,
    KaimingUniform,
    LeCunTruncatedNormal,
    Orthogonal,
    PyTorchDefault,
    Transfer,
    Uniform,
    by_name,
)

PARTS: list[Initialisation] = [
    PyTorchDefault(),
    KaimingUniform(),
    KaimingNormal(),
    LeCunTruncatedNormal(),
    Orthogonal(),
    Uniform(),
    Uniform(bound=0.1),
]
ZERO_BIAS: list[Initialisation] = [KaimingUniform(), KaimingNormal(), LeCunTruncatedNormal(), Orthogonal()]


def model() -> nn.Sequential:
    """A convolution of fan in 200 and fan out 100 (fewer leave a group), and a dense layer of fan in 320."""
    return nn.Sequential(
        nn.Conv2d(16, 4, 5, groups=2), nn.BatchNorm2d(4), nn.Flatten(), nn.LayerNorm(320), nn.Linear(320, 150)
    )


def filled(part: Initialisation, seed: int = 0) -> nn.Sequential:
    made = model()
    part.apply(made, stream(seed, "test"))
    return made


def tensors(of: nn.Sequential) -> tuple[Tensor, Tensor]:
    return of[0].weight.detach(), of[4].weight.detach()  # type: ignore[union-attr,return-value,operator]


def test_the_default_is_what_pytorch_draws() -> None:
    """Bit for bit: the layers draw from the global generator in the order in which they are made."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(7)
        made = nn.Sequential(nn.Conv2d(3, 4, 5, groups=1), nn.BatchNorm2d(4), nn.Conv2d(4, 8, 3, groups=2, bias=False))
        made.append(nn.Linear(9, 5))
    expected = weights_of(made)
    PyTorchDefault().apply(made, torch.Generator().manual_seed(7))
    assert all(torch.equal(w, expected[name]) for name, w in weights_of(made).items())


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_the_generator_alone_decides(part: Initialisation) -> None:
    before = torch.get_rng_state()
    made, again, other = filled(part), filled(part), filled(part, seed=1)
    # Making the layers draws from the global generator, filling them does not.
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(before)
        for _ in range(3):
            model()
        expected = torch.get_rng_state()
    assert torch.equal(torch.get_rng_state(), expected)
    assert all(torch.equal(w, weights_of(again)[name]) for name, w in weights_of(made).items())
    assert not torch.equal(made[4].weight, other[4].weight)


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_specs_are_values(part: Initialisation) -> None:
    assert eval(repr(part), globals()) == part


@pytest.mark.parametrize("part", [p for p in PARTS if not isinstance(p, Uniform)], ids=repr)
def test_normalisation_starts_as_the_identity(part: Initialisation) -> None:
    made = model()
    with torch.no_grad():
        for tensor in (*made.parameters(), *made.buffers()):
            tensor.fill_(3)
    part.apply(made, stream(0, "test"))
    assert all((w == 1).all() for w in (made[1].weight, made[3].weight))
    assert not any(b.any() for b in (made[1].bias, made[3].bias))
    buffers = buffers_of(made)
    assert not buffers["1.running_mean"].any()
    assert (buffers["1.running_var"] == 1).all()


@pytest.mark.parametrize("part", ZERO_BIAS, ids=repr)
def test_biases_start_at_zero(part: Initialisation) -> None:
    made = filled(part)
    assert not made[0].bias.any()
    assert not made[4].bias.any()


@pytest.mark.parametrize(
    ("part", "conv", "dense"),
    [
        (PyTorchDefault(), math.sqrt(1 / 3 / 200), math.sqrt(1 / 3 / 320)),
        (KaimingUniform(), math.sqrt(2 / 200), math.sqrt(2 / 320)),
        (KaimingNormal(), math.sqrt(2 / 100), math.sqrt(2 / 320)),
        (LeCunTruncatedNormal(), math.sqrt(1 / 200), math.sqrt(1 / 320)),
        (Uniform(), 0.5 / math.sqrt(3), 0.5 / math.sqrt(3)),
    ],
    ids=repr,
)
def test_deviations_are_as_stated(part: Initialisation, conv: float, dense: float) -> None:
    first, last = tensors(filled(part))
    assert first.std().item() == pytest.approx(conv, rel=0.08)  # 800 draws: 5 % is two standard errors
    assert last.std().item() == pytest.approx(dense, rel=0.02)  # 48,000 draws
    assert abs(last.mean().item()) < 4 * dense / math.sqrt(last.numel())


def test_bounds_are_as_stated() -> None:
    cut = 2 / 0.87962566 / math.sqrt(320)
    for part, bound in [
        (LeCunTruncatedNormal(), cut),
        (KaimingUniform(), math.sqrt(6 / 320)),
        (Uniform(0.1), 0.1),
    ]:
        assert 0.99 * bound < tensors(filled(part))[1].abs().max() <= bound * (1 + 1e-6)


def test_the_cut_normal_is_scipys() -> None:
    """Kolmogorov-Smirnov against the truncated normal, and far from a normal of the same deviation."""
    from scipy import stats

    drawn = tensors(filled(LeCunTruncatedNormal()))[1].flatten().numpy() * math.sqrt(320) * 0.87962566
    assert stats.kstest(drawn, stats.truncnorm(-2, 2).cdf).pvalue > 0.01
    assert stats.kstest(drawn, stats.norm(0, 0.87962566).cdf).pvalue < 1e-6


def test_orthogonal_rows_are_orthonormal() -> None:
    first, last = tensors(filled(Orthogonal()))
    torch.testing.assert_close(last @ last.T, torch.eye(150), atol=1e-5, rtol=0)
    torch.testing.assert_close(first.flatten(1) @ first.flatten(1).T, torch.eye(4), atol=1e-5, rtol=0)


def test_uniform_reaches_biases_and_normalisation() -> None:
    made = filled(Uniform())
    for tensor in made.parameters():
        assert 0 < tensor.abs().max() <= 0.5
    assert made[1].weight.std() > 0


def test_other_parameters_stay() -> None:
    made = nn.Module()
    made.token = nn.Parameter(torch.full((3,), 2.0))
    for part in PARTS:
        part.apply(made, stream(0, "test"))
    assert (made.token == 2).all()


def test_names_are_parts() -> None:
    listed = built_in("initialisations").values()
    named = [by_name(entry.name) for entry in listed if not reads_path(entry)]
    assert named == [part for part in PARTS if part != Uniform(bound=0.1)]
    assert by_name("file:a/b.safetensors") == FromFile("a/b.safetensors")
    assert by_name("transfer:a/b.safetensors") == Transfer("a/b.safetensors")
    for empty in ("file:", "transfer"):
        with pytest.raises(UsageError, match="names no weights file"):
            by_name(empty)
    assert all(entry.summary for entry in listed)
    with pytest.raises(UsageError, match="Unknown initialisation 'lecum': did you mean 'lecun'"):
        by_name("lecum")
    with pytest.raises(UsageError, match="bound must be a positive number, got -1"):
        Uniform(bound=-1)
