"""The training of a transformer, with and without an autoencoder, into a folder that the enhancer reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Whitening
from fedglass.data.dataset import Dataset
from fedglass.diffusion.autoencoders import Autoencoder
from fedglass.diffusion.folder import load_folder
from fedglass.diffusion.networks import MaskedDiffusionTransformer
from fedglass.diffusion.stored import stored
from fedglass.diffusion.training import ImageModelTraining, TrainingOptions
from fedglass.train.image_models import PICTURE, learned_autoencoder, train_diffusion


def data(seed: int = 0) -> Dataset:
    images = torch.rand(6, 1, 8, 8, generator=stream(seed, "images"))
    return Dataset("six", images, torch.tensor([0, 1, 2] * 2), classes=3, whitening=Whitening((0.5,), (0.5,)))


def trained(folder: Path, steps: int, autoencoder: bool = False) -> ImageModelTraining:
    options = TrainingOptions(steps=steps, batch_size=4)
    return train_diffusion(data(), options, folder, kind="transformer", autoencoder=autoencoder)


def test_what_is_trained_is_what_the_enhancer_reads(tmp_path: Path) -> None:
    state = trained(tmp_path, 2)
    model = load_folder(tmp_path)
    assert isinstance(model.network, MaskedDiffusionTransformer)
    assert (model.shape, model.network.classes, model.decoder) == ((1, 8, 8), 3, None)
    assert model.clamp
    assert (tmp_path / PICTURE).is_file()
    for name, tensor in model.network.state_dict().items():
        assert torch.allclose(tensor, state.averaged[name], atol=1e-3), name


def test_with_an_autoencoder_latents_are_denoised_and_images_come_out(tmp_path: Path) -> None:
    trained(tmp_path, 2, autoencoder=True)
    model = load_folder(tmp_path)
    autoencoder = model.decoder
    assert isinstance(autoencoder, Autoencoder)
    assert model.shape == autoencoder.latent_shape == (4, 2, 2)
    assert autoencoder.shape == (1, 8, 8)
    assert not model.clamp  # latents have no bounds
    assert model.decode(torch.zeros(2, 4, 2, 2)).shape == (2, 1, 8, 8)
    latents = autoencoder.latents_of(2 * data().images - 1)
    assert torch.allclose(latents.std((0, 2, 3)), torch.ones(4), atol=0.05)


def test_a_longer_training_goes_on_and_leaves_the_autoencoder_as_it_is(tmp_path: Path) -> None:
    trained(tmp_path, 2, autoencoder=True)
    named, first = stored(str(tmp_path)), load_folder(tmp_path).decoder
    state = trained(tmp_path, 3, autoencoder=True)
    assert state.step == 3
    assert stored(str(tmp_path)) != named
    again = load_folder(tmp_path).decoder
    assert isinstance(first, Autoencoder)
    assert isinstance(again, Autoencoder)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


def test_an_autoencoder_of_other_images_is_not_taken_over(tmp_path: Path) -> None:
    course = TrainingOptions(steps=4, batch_size=4)
    learned_autoencoder(2 * data().images - 1, course, tmp_path)
    with pytest.raises(UsageError, match="another training"):
        learned_autoencoder(2 * data(seed=1).images - 1, course, tmp_path)


def test_an_autoencoder_is_for_the_transformer(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--kind transformer"):
        train_diffusion(data(), TrainingOptions(steps=1), tmp_path, autoencoder=True)
