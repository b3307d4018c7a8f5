"""Restoration where the right answer is known: a Gaussian prior, whose posterior has a closed form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedglass.core.rng import stream
from fedglass.diffusion.ddrm import Bicubic, BlockMean, Degradation, Noise, RestorationChain, Spectrum
from fedglass.diffusion.denoiser import Denoiser, Prediction, Schedule, sample, spaced

SIDE = 4
SCHEDULE = Schedule()


def silent(done: int, total: int) -> None: ...


def covariance(correlated: bool) -> Tensor:
    """Of the pixels of small images: neighbours are alike, or all are on their own."""
    place = torch.cartesian_prod(torch.arange(SIDE), torch.arange(SIDE)).double()
    distance = torch.cdist(place, place)
    return 0.3 * torch.exp(-distance / 2) if correlated else 0.3 * torch.eye(SIDE**2, dtype=torch.float64)


def exact_denoiser(cov: Tensor, mean: float = 0.1) -> Denoiser:
    """E[x_0 | x_t] of the prior N(mean, cov), which no network has to learn."""

    def clean(noisy: Tensor, steps: Tensor, labels: Tensor | None) -> Tensor:
        sigma, kept = float(SCHEDULE.sigma[steps[0]]), float(SCHEDULE.abar[steps[0]])
        xbar = noisy.flatten(1).double() / kept**0.5
        gain = cov @ torch.linalg.inv(cov + sigma**2 * torch.eye(len(cov), dtype=torch.float64))
        return (mean + (xbar - mean) @ gain.T).view_as(noisy).to(noisy)

    return Denoiser(clean, SCHEDULE, Prediction.SAMPLE, clamp=False)


def restored(part: Degradation, known: Tensor, noise: float, chain: RestorationChain, denoiser: Denoiser) -> Tensor:
    spectrum = Spectrum.of(part, SIDE, SIDE)
    return chain.restore(denoiser, spectrum, known, noise, stream(0, "ddrm"), silent)


def test_denoising_gives_the_posterior_mean_where_the_last_noise_is_that_of_the_measurement() -> None:
    """Then the last step asks for E[x_0 | x_0 + sigma_0 n = y], whatever was before it."""
    cov, chain = covariance(correlated=True), RestorationChain(steps=10)
    noise = float(SCHEDULE.sigma[spaced(SCHEDULE, 10)[-1]])
    y = torch.randn(3, 1, SIDE, SIDE, generator=stream(0, "y")).double()
    gain = cov @ torch.linalg.inv(cov + noise**2 * torch.eye(len(cov), dtype=torch.float64))
    posterior = (0.1 + (y.flatten(1) - 0.1) @ gain.T).view_as(y)
    found = restored(Noise(), y, noise, chain, exact_denoiser(cov))
    assert torch.allclose(found, posterior, atol=1e-6)
    assert not torch.allclose(restored(Noise(), y, 2 * noise, chain, exact_denoiser(cov)), posterior, atol=1e-2)


@pytest.mark.parametrize("eta", [0.0, 0.85, 1.0])
@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_each_coordinate_moves_as_its_own_recursion_says(eta: float, noise: float) -> None:
    """With independent pixels the coordinates do not meet: mean and variance of each follow from scalars."""
    part, chain, count = BlockMean(2), RestorationChain(steps=15, eta=eta), 4000
    y = torch.randn(1, 1, 2, 2, generator=stream(1, "y")).double()
    spectrum = Spectrum.of(part, SIDE, SIDE)
    ybar, singular = spectrum.measured(y)[0, 0], spectrum.singular
    prior_mean = spectrum.coordinates(torch.full((1, 1, SIDE, SIDE), 0.1).double())[0, 0]
    found = spectrum.coordinates(
        restored(part, y.expand(count, -1, -1, -1), noise, chain, exact_denoiser(covariance(correlated=False)))
    )[:, 0]
    sigmas = [float(SCHEDULE.sigma[t]) for t in spaced(SCHEDULE, 15)]
    for i in range(SIDE):
        for j in range(SIDE):
            told = float(ybar[i, j]), float(singular[i, j]), float(prior_mean[i, j])
            mean, variance = recursion(*told, noise, eta, sigmas)
            assert float(found[:, i, j].mean()) == pytest.approx(mean, abs=0.05)
            assert float(found[:, i, j].var()) == pytest.approx(variance, abs=0.04)


def recursion(
    y: float, s: float, prior: float, noise: float, eta: float, sigmas: list[float], c: float = 0.3
) -> tuple[float, float]:
    """Mean and variance of one coordinate at the end, from the published formulas, for the prior N(prior, c)."""
    blur = noise / s if s > 0 else float("inf")
    mean, variance = (y, sigmas[0] ** 2 - blur**2) if blur < sigmas[0] else (0.0, sigmas[0] ** 2)
    for sigma, after in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
        gain = c / (c + sigma**2)
        offset = (1 - gain) * prior  # x_0 = gain x + offset
        still = (1 - eta**2) ** 0.5 * after
        if s == 0:
            slope = gain + still * (1 - gain) / sigma
            mean, variance = slope * mean + offset - still * offset / sigma, slope**2 * variance + eta**2 * after**2
        elif after < blur:
            slope = gain * (1 - still / blur)
            mean = slope * mean + offset * (1 - still / blur) + still * y / blur
            variance = slope**2 * variance + eta**2 * after**2
        else:
            mean, variance = y, after**2 - blur**2
    return mean, variance


def test_what_is_lost_follows_the_prior_where_nothing_is_known_of_it() -> None:
    """With eta 0 and many steps the chain is the exact flow of the prior [Song et al., 2021]."""
    count = 3000
    y = torch.zeros(count, 1, 2, 2).double()
    found = restored(BlockMean(2), y, 0.0, RestorationChain(300, eta=0.0), exact_denoiser(covariance(correlated=False)))
    spectrum = Spectrum.of(BlockMean(2), SIDE, SIDE)
    lost = spectrum.coordinates(found)[:, 0][:, spectrum.singular == 0]
    assert float(lost.var(0).mean()) == pytest.approx(0.3, rel=0.1)


def test_what_is_lost_is_found_from_its_neighbours() -> None:
    """With correlated pixels the mean of many restorations comes near the exact one, but for eta's bias."""
    cov, part, count = covariance(correlated=True), BlockMean(2), 2000
    truth = 0.1 + torch.linalg.cholesky(cov) @ torch.randn(16, dtype=torch.float64, generator=stream(3, "x"))
    spectrum = Spectrum.of(part, SIDE, SIDE)
    y = spectrum.degraded(truth.view(1, 1, SIDE, SIDE))
    unit = torch.eye(16, dtype=torch.float64).view(16, 1, SIDE, SIDE)
    h = spectrum.degraded(unit).flatten(1).T  # (4, 16)
    exact = 0.1 + cov @ h.T @ torch.linalg.inv(h @ cov @ h.T) @ (y.flatten() - h @ torch.full((16,), 0.1).double())
    found = (
        restored(part, y.expand(count, -1, -1, -1), 0.0, RestorationChain(40), exact_denoiser(cov)).mean(0).flatten()
    )
    blocks = spectrum.images(spectrum.measured(y)).flatten()
    assert float((found - exact).norm()) < 0.5 * float((blocks - exact).norm())


@pytest.mark.parametrize("part", [BlockMean(2), Bicubic(2), Noise()], ids=repr)
def test_without_noise_the_picture_has_the_measurement(part: Degradation) -> None:
    y = Spectrum.of(part, SIDE, SIDE).degraded(torch.rand(2, 3, SIDE, SIDE, generator=stream(0, "z")).double())

    def rubbish(noisy: Tensor, steps: Tensor, labels: Tensor | None) -> Tensor:
        return noisy.flip(-1).sin()

    found = restored(part, y, 0.0, RestorationChain(steps=5), Denoiser(rubbish, SCHEDULE))
    assert torch.allclose(Spectrum.of(part, SIDE, SIDE).degraded(found), y)


def test_samples_follow_the_prior() -> None:
    cov = covariance(correlated=True)
    noise = torch.randn(3000, 1, SIDE, SIDE, generator=stream(0, "draw"))
    drawn = sample(exact_denoiser(cov), noise, 200).flatten(1)
    assert float(drawn.mean()) == pytest.approx(0.1, abs=0.03)
    assert float((torch.cov(drawn.T.double()) - cov).abs().max()) < 0.06
