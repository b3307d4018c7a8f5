"""The gradient of the affine map, memory, and the search for a start."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedglass.attack.parts import no_progress
from fedglass.attack.refine import masked_diffusion as start_search
from fedglass.attack.refine.masked_diffusion import Flattening, OracleEpoch, SampleFit, StartSearch, sample_fit
from fedglass.core.rng import stream
from fedglass.diffusion.autoencoders import Autoencoder
from fedglass.diffusion.denoiser import Denoiser, Prediction, Schedule, spaced, with_guidance
from fedglass.diffusion.networks import MaskedDiffusionTransformer

SCHEDULE = Schedule(steps=40, last=0.2)
LABELS = torch.tensor([0, 1, 1])
Decode = Callable[[Tensor], Tensor]


def pixels(images: Tensor) -> Tensor:
    return images


def autoencoder() -> Autoencoder:
    torch.manual_seed(0)
    return Autoencoder((1, 8, 8), halvings=1, latent=1, width=4).double()


def denoiser(side: int, prediction: Prediction = Prediction.V) -> Denoiser:
    net = MaskedDiffusionTransformer((1, side, side), 2, patch=2, width=8, depth=2, decoder=1, heads=2)
    draws = stream(0, "weights")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=draws))
    return Denoiser(with_guidance(net.double(), 2, 4.0), SCHEDULE, prediction, clamp=False)


def drawn(name: str, side: int) -> Tensor:
    return torch.randn(3, 1, side, side, generator=stream(0, name), dtype=torch.float64)


def slow_gradient(of: Denoiser, decode: Decode, count: int, start: Tensor, raw: Tensor) -> Tensor:
    """Through a graph over all steps, in which the noise predictions are constants."""
    start = start.clone().requires_grad_()
    noisy, steps = start, spaced(SCHEDULE, count)
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        kept = float(SCHEDULE.abar[step])
        left = 1.0 if following is None else float(SCHEDULE.abar[following])
        clean = of.clean(noisy.detach(), step, LABELS).detach()
        noise = ((noisy.detach() - kept**0.5 * clean) / (1 - kept) ** 0.5).detach()
        noisy = left**0.5 * (noisy - (1 - kept) ** 0.5 * noise) / kept**0.5 + (1 - left) ** 0.5 * noise
    errors = ((decode(noisy) + 1) / 2 - raw).square().flatten(1).mean(1)
    return torch.autograd.grad(errors.sum(), start)[0]


@pytest.mark.parametrize("prediction", list(Prediction))
@pytest.mark.parametrize("latent", [False, True], ids=["pixels", "latent"])
def test_the_gradient_is_that_through_all_steps_with_constant_noise_predictions(
    latent: bool, prediction: Prediction
) -> None:
    decode: Decode = autoencoder().decode if latent else pixels
    of, side = denoiser(4 if latent else 8, prediction), 4 if latent else 8
    start, raw = drawn("start", side), drawn("raw", 8).sigmoid()
    _, _, gradient = sample_fit(of, decode, 6)(start, LABELS, raw)
    expected = slow_gradient(of, decode, 6, start, raw)
    assert float(expected.abs().max()) > 1e-6
    assert torch.allclose(gradient, expected, rtol=1e-6, atol=1e-12)


def test_what_is_kept_for_the_gradient_does_not_grow_with_the_steps() -> None:
    def kept(steps: int) -> int:
        total = 0

        def pack(tensor: Tensor) -> Tensor:
            nonlocal total
            total += tensor.numel()
            return tensor

        fit = sample_fit(denoiser(4), autoencoder().decode, steps)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            fit(drawn("start", 4), LABELS, drawn("raw", 8))
        return total

    assert kept(3) == kept(30) > 0


def test_images_are_sampled_a_few_at_a_time_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    fit, start, raw = sample_fit(denoiser(8), pixels, 4), drawn("start", 8), drawn("raw", 8)
    whole = fit(start, LABELS, raw)
    monkeypatch.setattr(start_search, "BATCH", 2)
    parts = fit(start, LABELS, raw)
    assert all(torch.allclose(a, b) for a, b in zip(whole, parts, strict=True))


def toy(steps: int = 4) -> SampleFit:
    """A network that predicts no noise at all: the end is the start times the slope."""
    return sample_fit(Denoiser(lambda x, t, y: 0 * x, SCHEDULE, Prediction.EPSILON, clamp=False), pixels, steps)


def test_the_search_draws_nearer_and_keeps_a_film() -> None:
    start, raw = 0.1 * drawn("start", 8), drawn("raw", 8).sigmoid()
    kept = start.clone()
    told: list[tuple[int, int]] = []
    taken, film = StartSearch(30, 0.01, OracleEpoch(30)).run(toy(), start, LABELS, raw, lambda *now: told.append(now))
    assert torch.equal(start, kept)
    assert told[-1] == (30, 30)
    assert (film.epochs[0], film.epochs[-1]) == (0, 30)
    assert film.frames.shape == (len(film.epochs), 3, 1, 8, 8)
    assert torch.equal(film.frames[-1], taken)
    distances = (film.frames - raw).square().mean((1, 2, 3, 4))
    assert float(distances[-1]) < 0.5 * float(distances[0])
    assert film.chosen == (30, 30, 30)


def test_each_image_is_taken_when_its_own_rule_says_so_and_is_left_alone_from_then_on() -> None:
    raw = drawn("raw", 8).sigmoid()
    start = drawn("start", 8)
    near = toy()(start, LABELS, raw)[0]
    raw[0] = near[0]  # nothing to win
    search = StartSearch(40, 0.01, Flattening(share=0.05, over=3))
    taken, film = search.run(toy(), start, LABELS, raw, no_progress)
    assert film.chosen[0] == 3
    assert min(film.chosen[1:]) > 3
    alone, _ = search.run(toy(), start[1:], LABELS[1:], raw[1:], no_progress)
    assert torch.allclose(taken[1:], alone)


def test_a_search_of_no_epochs_is_a_sample() -> None:
    start, raw = drawn("start", 8), drawn("raw", 8)
    taken, film = StartSearch(0, 0.01, OracleEpoch(0)).run(toy(), start, LABELS, raw, no_progress)
    assert torch.allclose(taken, toy()(start, LABELS, raw)[0])
    assert film.epochs == (0,)
