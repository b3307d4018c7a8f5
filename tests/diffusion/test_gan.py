"""Networks that are trained against a critic: shapes, the loss, the folder, and how training is resumed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.core.errors import ModelError, UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Whitening
from fedglass.data.dataset import Dataset
from fedglass.diffusion.folder import CONFIG, WEIGHTS
from fedglass.diffusion.gan import Adversarial, CodeGan, Enhancer, adversarial_loss, adversarial_task, stored_gan
from fedglass.diffusion.stored import TRAINED_ON
from fedglass.diffusion.training import Batch, ImageModelTraining, TrainingOptions
from fedglass.train.image_models import PICTURE, train_gan

SHAPE = (1, 8, 8)


def pictures(toy: Any, n: int = 24) -> Dataset:
    return Dataset("toy", toy.images(n, "gan"), torch.zeros(n, dtype=torch.int64), 1, Whitening((0.0,), (1.0,)))


def batch(images: Tensor) -> Batch:
    return Batch(images, torch.zeros(len(images)), None, images, stream(0, "batch"))


def small(kind: str) -> Adversarial:
    torch.manual_seed(0)
    return CodeGan(SHAPE, code=4, width=4) if kind == "codes" else Enhancer(SHAPE, factor=2, width=4)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 10, 12)])
def test_networks_make_images_of_their_shape(shape: tuple[int, int, int]) -> None:
    images = torch.rand(2, *shape)
    drawn, error = CodeGan(shape, code=5, width=4).draw(images, stream(0, "x"))
    assert (drawn.shape, float(error)) == (images.shape, 0.0)
    enhancer = Enhancer(shape, factor=2, width=4)
    assert enhancer.enhance(images).shape == images.shape
    assert enhancer.draw(images, stream(0, "x"))[0].shape == images.shape


@pytest.mark.parametrize("kind", ["codes", "enhancer"])
def test_critic_and_generator_are_moved_by_their_own_loss_only(toy: Any, kind: str) -> None:
    network, images = small(kind).eval(), 2 * toy.images(3, "x") - 1
    both = torch.autograd.grad(adversarial_loss(network, batch(images)), list(network.parameters()), allow_unused=True)
    moved = dict(zip([name for name, _ in network.named_parameters()], both, strict=True))
    drawn, error = network.draw(images, stream(0, "batch"))
    hinge = F.relu(1 - network.critic(images)).mean() + F.relu(1 + network.critic(drawn.detach())).mean()
    fooling = error - network.critic(drawn).mean()
    for part, loss in (("critic.", hinge), ("generator.", fooling)):
        parameters = {name: p for name, p in network.named_parameters() if name.startswith(part)}
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, retain_graph=True)
        for name, gradient in zip(parameters, gradients, strict=True):
            torch.testing.assert_close(moved[name], gradient)
    assert all(p.requires_grad for p in network.parameters())


def test_an_untrained_enhancer_shows_the_low_resolution_alone(toy: Any) -> None:
    enhancer, images = small("enhancer").eval(), toy.images(3, "x")
    assert isinstance(enhancer, Enhancer)
    once = enhancer.enhance(images)
    torch.testing.assert_close(enhancer.enhance(once), once, atol=1e-4, rtol=0)
    assert not torch.allclose(once, images, atol=1e-3)
    still = replace_noise(enhancer, 0.0).blurred(images, stream(0, "x"))
    torch.testing.assert_close(still, once, atol=1e-5, rtol=0)


def replace_noise(enhancer: Enhancer, noise: float) -> Enhancer:
    enhancer.noise = noise
    return enhancer


def test_an_enhancer_learns_to_make_good_what_was_lost() -> None:
    columns = (torch.arange(8) % 2).float().expand(1, 8, 8)
    images = 2 * columns * torch.linspace(0.5, 1, 16).view(-1, 1, 1, 1) - 1
    enhancer = small("enhancer")
    assert isinstance(enhancer, Enhancer)
    before = float((enhancer.enhance(images) - images).detach().abs().mean())
    ImageModelTraining(
        enhancer, adversarial_task(images), TrainingOptions(steps=60, lr=1e-2, batch_size=4, average=0.9)
    ).run()
    assert float((enhancer.enhance(images) - images).detach().abs().mean()) < 0.5 * before


@pytest.mark.parametrize("kind", ["codes", "enhancer"])
def test_a_stopped_training_continues_as_if_it_had_not_been(toy: Any, tmp_path: Path, kind: str) -> None:
    data, course = pictures(toy), TrainingOptions(steps=4, batch_size=5, every=2)
    straight = train_gan(data, kind, 2, course, tmp_path / "one")
    with pytest.raises(KeyboardInterrupt):
        train_gan(data, kind, 2, course, tmp_path / "two", stop)
    resumed = train_gan(data, kind, 2, course, tmp_path / "two")
    assert (straight.step, resumed.step) == (4, 4)
    for name in (CONFIG, WEIGHTS, TRAINED_ON, PICTURE):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    with pytest.raises(UsageError, match="holds another training"):
        train_gan(data, kind, 2, replace(course, seed=1), tmp_path / "two")


def stop(step: int, share: float, loss: float) -> None:
    if step == 3:
        raise KeyboardInterrupt


@pytest.fixture
def folder(toy: Any, tmp_path: Path) -> Path:
    train_gan(pictures(toy), "codes", 2, TrainingOptions(steps=1, batch_size=4), tmp_path / "m")
    return tmp_path / "m"


def test_a_folder_is_a_value_that_names_its_training_data(folder: Path) -> None:
    stored = stored_gan(str(folder))
    assert eval(repr(stored), {"StoredGan": type(stored)}) == stored
    assert stored.words == "a GAN that was trained on 24 images of toy"
    assert stored.code_gan(SHAPE) is stored.code_gan(SHAPE)
    assert not any(p.requires_grad for p in stored.code_gan(SHAPE).parameters())
    control = replace(stored, trained=False).code_gan(SHAPE)
    assert not torch.equal(control.generator[0].weight, stored.code_gan(SHAPE).generator[0].weight)  # type: ignore[index]


def test_what_does_not_fit_is_refused(toy: Any, folder: Path, tmp_path: Path) -> None:
    stored = stored_gan(str(folder))
    with pytest.raises(UsageError, match=r"makes images of 1 x 8 x 8 .* these are 1 x 12 x 12: train one with"):
        stored.code_gan((1, 12, 12))
    with pytest.raises(UsageError, match="draws images: train one with --kind enhancer"):
        stored.enhancer(SHAPE)
    train_gan(pictures(toy), "enhancer", 2, TrainingOptions(steps=1, batch_size=4), tmp_path / "e")
    with pytest.raises(UsageError, match="sharpens images: train one with --kind codes"):
        stored_gan(str(tmp_path / "e")).code_gan(SHAPE)
    with pytest.raises(UsageError, match="is not the one that was named"):
        replace(stored, digest="0").code_gan(SHAPE)
    with pytest.raises(UsageError, match="Unknown kind of GAN 'code': did you mean 'codes'"):
        train_gan(pictures(toy), "code", 2, TrainingOptions(steps=1), tmp_path / "x")
    with pytest.raises(UsageError, match="cannot be reduced by the factor 3"):
        train_gan(pictures(toy), "enhancer", 3, TrainingOptions(steps=1), tmp_path / "x")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"width": 4096}, "width is a multiple of 4"),
        ({"width": 512}, "more than .* can hold"),
        ({"code": "4"}, "1 to 4096 numbers"),
        ({"shape": [1, 8]}, "needs the images' channels"),
        ({"_class_name": "FedglassThreeLayers"}, "_class_name must be one of FedglassCodeGan, FedglassEnhancer"),
    ],
    ids=str,
)
def test_a_damaged_config_is_refused(folder: Path, tmp_path: Path, change: dict[str, Any], words: str) -> None:
    table = json.loads((folder / CONFIG).read_text())
    other = tmp_path / "other"
    other.mkdir()
    for name in (WEIGHTS, TRAINED_ON):
        (other / name).write_bytes((folder / name).read_bytes())
    (other / CONFIG).write_text(json.dumps(table | change))
    with pytest.raises((ModelError, UsageError), match=words):
        stored_gan(str(other))
