"""The masked diffusion enhancer on models of a few thousand weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedglass.attack.parts import Refinement, discard_film
from fedglass.attack.refine.masked_diffusion import MaskedDiffusion, mde, mde_oracle_epoch
from fedglass.core.errors import ModelError, UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Film, Knowledge, Whitening
from fedglass.diffusion.autoencoders import Autoencoder
from fedglass.diffusion.denoiser import Denoiser
from fedglass.diffusion.folder import AUTOENCODER, load_folder, save_folder, save_network
from fedglass.diffusion.networks import MaskedDiffusionTransformer, UNet
from fedglass.diffusion.stored import Stored, stored

RAW = torch.rand(2, 1, 8, 8, generator=stream(0, "raw"))
LABELS = torch.tensor([2, 0])


def randomised(net: torch.nn.Module) -> torch.nn.Module:
    draws = stream(0, "weights")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=draws))
    return net


def transformer(shape: tuple[int, int, int]) -> torch.nn.Module:
    return randomised(MaskedDiffusionTransformer(shape, 3, patch=4, width=16, depth=2, decoder=1, heads=2))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    net = transformer((1, 8, 8))
    save_folder(tmp_path / "model", net, net.state_dict(), Denoiser(net))
    return tmp_path / "model"


@pytest.fixture
def latent_folder(tmp_path: Path) -> Path:
    net = transformer((2, 4, 4))
    save_folder(tmp_path / "latent", net, net.state_dict(), Denoiser(net, clamp=False))
    encoder = randomised(Autoencoder((1, 8, 8), halvings=1, latent=2, width=4))
    save_network(tmp_path / "latent" / AUTOENCODER, encoder, encoder.state_dict())
    return tmp_path / "latent"


def given(
    images: Tensor = RAW, labels: Tensor = LABELS, film: Callable[[Film], None] = discard_film, classes: int = 3
) -> Refinement:
    shape = (images.shape[1], images.shape[2], images.shape[3])
    knows = Knowledge(shape, classes, len(images), Whitening((0.0,), (1.0,)))
    return Refinement(images, labels, knows, stream(0, "refine"), film=film)


def test_the_picture_draws_nearer_to_the_raw_one_and_the_way_is_shown(folder: Path) -> None:
    films: list[Film] = []
    part = mde_oracle_epoch(str(folder), epoch=30, steps=4, lr=0.1)
    found = part.refine(given(film=films.append))
    assert found.shape == RAW.shape
    assert not found.requires_grad
    assert (float(found.min()) >= 0, float(found.max()) <= 1) == (True, True)
    (film,) = films
    assert film.chosen == (30, 30)
    assert torch.equal(film.frames[-1], found)
    distances = (film.frames - RAW).square().mean((1, 2, 3, 4))
    assert float(distances[-1]) < float(distances[0])
    assert film.caption(1).endswith("epoch 30 was taken")


@pytest.mark.parametrize("kind", ["pixels", "latent"])
def test_it_repeats_itself_from_the_same_draws(kind: str, folder: Path, latent_folder: Path) -> None:
    part = mde(str(folder if kind == "pixels" else latent_folder), epochs=3, steps=3)
    one, again = part.refine(given()), part.refine(given())
    assert torch.equal(one, again)
    assert one.isfinite().all()


def test_class_and_guidance_decide_what_is_made(folder: Path) -> None:
    def made(labels: Tensor, guidance: float) -> Tensor:
        return mde_oracle_epoch(str(folder), 0, steps=3, guidance=guidance).refine(given(labels=labels))

    other = torch.tensor([1, 1])
    assert not torch.equal(made(LABELS, 4.0), made(other, 4.0))
    assert not torch.equal(made(LABELS, 4.0), made(LABELS, 1.0))
    assert torch.allclose(made(LABELS, 0.0), made(other, 0.0))  # without guidance the class is not heard


def test_an_untrained_model_makes_something_else_and_keeps_the_autoencoder(folder: Path, latent_folder: Path) -> None:
    for place in (folder, latent_folder):
        part = mde_oracle_epoch(str(place), 1, steps=3)
        control = part.untrained()
        assert control.untrained() == control
        assert not torch.equal(control.refine(given()), part.refine(given()))
        assert (control.model.load().decoder is None) == (place == folder)


def test_broken_pixels_are_taken_for_grey(folder: Path) -> None:
    broken = RAW.clone()
    broken[0, 0, 0, 0] = torch.nan
    assert mde(str(folder), epochs=2, steps=3).refine(given(broken)).isfinite().all()


def test_a_label_that_the_model_does_not_know_is_refused(folder: Path) -> None:
    part = mde(str(folder), epochs=1, steps=2)
    with pytest.raises(UsageError, match=r"knows the classes 0 to 2, labels go up to 3 here: train one with"):
        part.refine(given(labels=torch.tensor([3, 0])))
    with pytest.raises(UsageError, match="from 0 on, got -1"):
        part.refine(given(labels=torch.tensor([-1, 0])))
    with pytest.raises(UsageError, match="labels go up to 9 here"):
        part.check(given(classes=10).knows)
    part.check(given(classes=3).knows)
    part.check(given(classes=2).knows)


@pytest.mark.parametrize("kind", ["pixels", "latent"])
def test_images_of_another_shape_are_refused(kind: str, folder: Path, latent_folder: Path) -> None:
    part = mde(str(folder if kind == "pixels" else latent_folder), epochs=1, steps=2)
    larger = torch.zeros(2, 1, 8, 12)
    for use in (lambda: part.refine(given(larger)), lambda: part.check(given(larger).knows)):
        with pytest.raises(UsageError, match=r"makes images of 1 x 8 x 8 .* these are 1 x 8 x 12"):
            use()


def test_a_model_that_can_not_be_told_a_class_is_refused(tmp_path: Path) -> None:
    net = UNet((1, 8, 8), widths=(8, 8))
    save_folder(tmp_path, net, net.state_dict(), Denoiser(net))
    with pytest.raises(UsageError, match=r"takes no class: train one with .* --kind transformer"):
        mde(str(tmp_path)).check(given().knows)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match="fedglass train diffusion"):
            mde(str(place))


def test_an_autoencoder_of_other_latents_is_refused(folder: Path) -> None:
    encoder = Autoencoder((1, 8, 8), halvings=1, latent=2, width=4)
    save_network(folder / AUTOENCODER, encoder, encoder.state_dict())
    with pytest.raises(ModelError, match="do not belong together"):
        load_folder(folder)


def test_a_model_is_named_by_what_it_holds(folder: Path, latent_folder: Path) -> None:
    for place in (folder, latent_folder):
        named = stored(str(place))
        assert stored(str(place)) == named
        weights = place / AUTOENCODER / "config.json" if place == latent_folder else place / "config.json"
        weights.write_text(weights.read_text() + " ")
        assert stored(str(place)).digest != named.digest


def test_a_model_that_changed_since_it_was_named_is_refused(folder: Path) -> None:
    part = mde(str(folder), epochs=1, steps=2)
    other = MaskedDiffusion(Stored(str(folder), "0" * 16), part.search)
    with pytest.raises(UsageError, match="is not the one that was named"):
        other.refine(given())


@pytest.mark.parametrize(
    ("options", "words"),
    [({"steps": 0}, "steps of mde"), ({"guidance": -1.0}, "guidance"), ({"epochs": -1}, "epochs"), ({"lr": 0.0}, "lr")],
)
def test_options_out_of_range_are_refused(options: dict[str, float], words: str, folder: Path) -> None:
    with pytest.raises(UsageError, match=words):
        mde(str(folder), **options)  # type: ignore[arg-type]  # numbers, whole and not
