"""The autoencoder: shapes, standardised latents, and that the denoisers' loop trains it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.diffusion.autoencoders import Autoencoder, reconstruction_loss
from fedglass.diffusion.denoiser import Prediction
from fedglass.diffusion.training import DenoisingTask, ImageModelTraining, TrainingOptions


@pytest.mark.parametrize(
    ("shape", "latent"), [((1, 8, 8), (2, 4, 4)), ((3, 9, 6), (2, 5, 3))], ids=["even", "with a border"]
)
def test_pictures_come_back_in_their_shape(shape: tuple[int, int, int], latent: tuple[int, int, int]) -> None:
    net = Autoencoder(shape, halvings=1, latent=2, width=4)
    images = torch.rand(3, *shape)
    assert net.latent_shape == latent
    assert net.encode(images).shape == (3, *latent)
    assert net(images).shape == images.shape


def test_settled_latents_have_mean_zero_and_variance_one_and_decode_as_before() -> None:
    net = Autoencoder((1, 8, 8), halvings=1, latent=2, width=4)
    images = torch.rand(20, 1, 8, 8, generator=stream(0, "images"))
    before = net(images)
    net.settle(images)
    latents = net.latents_of(images)
    assert torch.allclose(latents, net.encode(images), atol=1e-5)
    assert torch.allclose(latents.mean((0, 2, 3)), torch.zeros(2), atol=1e-4)
    assert torch.allclose(latents.std((0, 2, 3)), torch.ones(2), atol=1e-3)
    assert torch.allclose(net(images), before, atol=1e-5)
    net.settle(images)  # again changes nothing
    assert torch.allclose(net.latents_of(images), latents, atol=1e-5)


def error(net: Autoencoder, images: Tensor) -> float:
    return float((net(images) - images).detach().square().mean())


def test_the_loop_of_the_denoisers_trains_it() -> None:
    flat = torch.linspace(-1, 1, 16).view(16, 1, 1, 1).expand(16, 1, 8, 8)
    torch.manual_seed(0)
    net = Autoencoder((1, 8, 8), halvings=1, latent=1, width=4)
    first = error(net, flat)
    lesson = DenoisingTask(flat, prediction=Prediction.SAMPLE, loss=reconstruction_loss)
    ImageModelTraining(net, lesson, TrainingOptions(steps=80, lr=1e-2, batch_size=16)).run()
    assert error(net, flat) < 0.2 * first


@pytest.mark.parametrize(
    "size", [{"halvings": 0}, {"halvings": 6}, {"latent": 0}, {"width": 0}, {"width": "4"}, {"shape": (1, 8)}], ids=str
)
def test_sizes_that_can_not_be_built_are_refused(size: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="autoencoder"):
        Autoencoder(**{"shape": (1, 8, 8), **size})
