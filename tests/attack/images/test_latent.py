"""Images as what a decoder draws of codes: where it comes from, what it may depend on, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.best_of import BestOf
from fedglass.attack.forward.gradients import OneGradient
from fedglass.attack.images import latent as decoders
from fedglass.attack.images.latent import Latent, OwnDecoder, augmented, decoder_named, located_decoder
from fedglass.attack.labels.given import OracleLabels
from fedglass.attack.parts import GeneratesImages
from fedglass.attack.peer_knowledge import SubtractOwnUpdate
from fedglass.attack.solvers.adam import Adam
from fedglass.attack.terms.distance import SquaredError
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Observation, Own, Training, Whitening
from fedglass.data.dataset import Dataset
from fedglass.diffusion.folder import CONFIG, WEIGHTS, load_autoencoder
from fedglass.diffusion.stored import TRAINED_ON
from fedglass.diffusion.training import TrainingOptions
from fedglass.federation.client import Client
from fedglass.federation.federation import observe
from fedglass.federation.peer import PeerView
from fedglass.federation.views import Knows
from fedglass.train.image_models import train_autoencoder

QUICK = OwnDecoder(steps=20, latent=4, width=4)


@pytest.fixture
def folder(toy: Any, tmp_path: Path) -> Path:
    data = Dataset("public pictures", toy.images(12, "public"), torch.arange(12) % 3, 3, Whitening((0.5,), (0.5,)))
    train_autoencoder(data, TrainingOptions(steps=3), tmp_path / "m")
    return tmp_path / "m"


def with_own(toy: Any, images: Tensor, share: float | None = 0.0) -> Observation:
    seen: Observation = toy.observation(Training(0.1))
    return replace(seen, own=Own(images, torch.zeros(len(images), dtype=torch.int64), seen.update, share))


def weights(decoder: OwnDecoder, seen: Observation) -> list[Tensor]:
    return [tensor.clone() for tensor in decoder.network(seen).state_dict().values()]


def test_the_gradient_of_every_image_reaches_its_own_code_alone(toy: Any) -> None:
    bound = Latent(QUICK).bind(with_own(toy, toy.images(3)), stream(0, "x"), None)
    codes = bound.unknowns[0].start.clone().requires_grad_()
    images = bound.decode([codes])
    assert images.shape == (1, 4, 1, 8, 8)
    (gradient,) = torch.autograd.grad(images[0, 2].sum(), codes)
    assert gradient[2].any()
    assert not gradient[[0, 1, 3]].any()


def test_pixels_stay_inside_the_bounds_however_large_the_codes(toy: Any) -> None:
    seen = with_own(toy, toy.images(3))
    bound = Latent(QUICK).bind(seen, stream(0, "x"), None)
    pixels = seen.knows.whitening.unwhiten(bound.decode([100 * bound.unknowns[0].start]))
    assert float(pixels.min()) >= -1e-6
    assert float(pixels.max()) <= 1 + 1e-6


def test_codes_start_as_the_codes_of_images_are_spread(toy: Any, folder: Path) -> None:
    decoder = decoder_named(str(folder))
    seen = toy.observation(Training(0.1), examples=400)
    start = Latent(decoder).bind(seen, stream(0, "x"), None).unknowns[0].start
    codes = load_autoencoder(folder).latents_of(2 * toy.images(12, "public") - 1)
    assert abs(float(start.mean() - codes.mean())) < 0.1
    assert abs(float(start.std() - codes.std())) < 0.15


def test_a_stage_may_start_from_the_images_of_the_one_before(toy: Any, folder: Path) -> None:
    seen: Observation = toy.observation(Training(0.1))
    network = load_autoencoder(folder)
    drawn = (network.decode(torch.randn(4, *network.latent_shape, generator=stream(0, "codes"))) + 1) / 2
    bound = Latent(decoder_named(str(folder))).bind(seen, stream(0, "x"), seen.knows.whitening.whiten(drawn)[None])
    assert torch.allclose(bound.unknowns[0].start, network.encode(2 * drawn - 1), atol=1e-4)
    assert not bound.unknowns[0].start.requires_grad


def test_images_that_no_code_decodes_to_are_still_their_own_nearest(toy: Any) -> None:
    """A decoder that can not draw the private images must not make them look protected."""
    seen = with_own(toy, toy.images(3))
    other = seen.knows.whitening.whiten(toy.images(4, "truth"))[None]
    bound = Latent(QUICK).bind(seen, stream(0, "x"), None)
    assert torch.equal(bound.nearest(other), other)


def test_an_own_decoder_depends_on_own_examples_alone(toy: Any) -> None:
    seen = with_own(toy, toy.images(3))
    first = weights(QUICK, seen)
    other = replace(
        with_own(toy, toy.images(3), share=None),
        update={name: t + 1 for name, t in seen.update.items()},
        before={name: t - 1 for name, t in seen.before.items()},
        knows=replace(seen.knows, labels=torch.tensor([4, 4, 4, 4]), training=None, examples=9),
    )
    decoders._taught.cache_clear()  # or the first would only be handed out again
    torch.manual_seed(5)
    assert all(map(torch.equal, first, weights(QUICK, other)))
    assert not all(map(torch.equal, first, weights(QUICK, with_own(toy, 1 - toy.images(3)))))
    assert not all(map(torch.equal, first, weights(replace(QUICK, seed=1), seen)))


def test_few_examples_are_multiplied_and_many_are_not(toy: Any) -> None:
    few = toy.images(3)
    many = augmented(few, stream(0, "copies"))
    assert torch.equal(many[:3], few)
    assert len({tuple(image.flatten().tolist()) for image in many}) > 20
    values = few.flatten(1).sort().values
    assert all(any(torch.equal(own, image.flatten().sort().values) for own in values) for image in many[::50])
    enough = torch.zeros(700, 1, 8, 8)
    assert augmented(enough, stream(0, "copies")) is enough
    large = torch.zeros(2, 1, 1, 1).expand(2, 3, 4000, 4000)
    assert len(augmented(large, stream(0, "copies"))) == 2


def test_it_learns_once_and_nobody_can_change_what_others_see(toy: Any) -> None:
    seen = with_own(toy, toy.images(3))
    network = QUICK.network(seen)
    assert QUICK.network(replace(seen, model=seen.model)) is network
    assert not any(p.requires_grad for p in network.parameters())
    part = Latent(QUICK)
    part.bind(seen, stream(0, "x"), None).decode([torch.zeros(4, 4, 1, 1)])
    assert all(map(torch.equal, weights(QUICK, seen), list(network.state_dict().values())))


def test_to_ask_whether_an_attack_can_run_trains_nothing(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "_taught", lambda *_: pytest.fail("it was trained"))
    stage = Stage(OneGradient(), Latent(QUICK), SquaredError(), Adam(iterations=1))
    Attack(OracleLabels(), (stage,)).check(with_own(toy, toy.images(3)))


def test_without_examples_of_its_own_nobody_trains_on_them(toy: Any) -> None:
    stage = Stage(OneGradient(), Latent(QUICK), SquaredError(), Adam(iterations=1))
    for seen in (toy.observation(Training(0.1)), with_own(toy, toy.images(0))):
        with pytest.raises(UsageError, match="OwnDecoder needs examples of the adversary's own"):
            Attack(OracleLabels(), (stage,)).run(seen)


def test_a_peer_whose_update_is_subtracted_still_has_its_examples(toy: Any) -> None:
    clients = [Client(f"client {i}", toy.images(2, i), torch.tensor([i, i + 1])) for i in range(3)]
    seen, truth = observe(replace(toy.federation(Training(0.1)), clients=clients), PeerView(0), Knows(labels=True))
    stage = Stage(OneGradient(), Latent(QUICK), SquaredError(), Adam(iterations=2))
    found = BestOf(Attack(OracleLabels(), (stage,)), SubtractOwnUpdate()).run(seen)
    assert found.images.shape == truth.images.shape
    assert torch.equal(found.images[4:], toy.images(2, 0))


def test_what_it_draws_of_nothing_looks_at_no_message(toy: Any, folder: Path) -> None:
    seen: Observation = toy.observation(Training(0.1))
    part = Latent(decoder_named(str(folder)))
    assert isinstance(part, GeneratesImages)
    one = part.imagined(seen, 7, stream(0, "x"))
    other = replace(seen, update={name: 3 * t for name, t in seen.update.items()})
    assert one.shape == (7, 1, 8, 8)
    assert torch.equal(one, part.imagined(other, 7, stream(0, "x")))
    assert not torch.equal(one, part.imagined(seen, 7, stream(1, "x")))
    assert part.learned_from == "an autoencoder that was trained on 12 images of public pictures"


def edit(file: str, **changes: object) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        told = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps({**told, **changes}))

    return apply


def spoilt(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["decoder.0.weight"][0] = float("nan")
    save_file(tensors, folder / WEIGHTS)


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda f: (f / WEIGHTS).unlink(), "holds no autoencoder .*fedglass train autoencoder"),
    "no config": (lambda f: (f / CONFIG).unlink(), "holds no autoencoder"),
    "no provenance": (lambda f: (f / TRAINED_ON).unlink(), "does not say what its network was trained on"),
    "code for a class": (edit(CONFIG, _class_name="os:system"), "_class_name must be one of"),
    "a denoiser": (edit(CONFIG, _class_name="FedglassUNet"), "_class_name must be one of"),
    "an unknown option": (edit(CONFIG, command="rm"), "does not describe a FedglassThreeLayers"),
    "text for a number": (edit(CONFIG, width="many"), "whole numbers"),
    "too much memory": (edit(CONFIG, width=1024), "more than .* can hold"),
    "other sizes": (edit(CONFIG, latent=2), "architecture"),
    "endless config": (lambda f: (f / CONFIG).write_text("[" * 100_000), "cannot be read as JSON"),
    "cut weights": (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:-50]), "safetensors"),
    "a pickle": (lambda f: (f / WEIGHTS).write_bytes(b"\x80\x04" + b"x" * 99_999), "safetensors"),
    "NaN": (spoilt, "NaN or infinity"),
    "a name of lines": (edit(TRAINED_ON, data="mnist\x1b[2J"), "must tell the name of the data"),
    "a name without end": (edit(TRAINED_ON, data="x" * 1000), "must tell the name of the data"),
    "no number": (edit(TRAINED_ON, images="many"), "must tell the name of the data"),
    "a list": (lambda f: (f / TRAINED_ON).write_text("[]"), "must hold a table"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_folder_that_means_harm_is_refused_in_words(folder: Path, what: str) -> None:
    spoil, words = HOSTILE[what]
    spoil(folder)
    with pytest.raises(UsageError, match=words):
        decoder_named(str(folder))


def test_other_images_than_the_decoders_and_other_weights_than_named_are_refused(toy: Any, folder: Path) -> None:
    named = decoder_named(str(folder))
    seen: Observation = toy.observation(Training(0.1))
    with pytest.raises(UsageError, match=r"draws images of 1 x 8 x 8 .* these are 3 x 8 x 8"):
        named.latent_shape(replace(seen.knows, shape=(3, 8, 8)))
    with pytest.raises(UsageError, match="is not the one that was named"):
        replace(named, digest="other").network(seen)  # type: ignore[type-var]  # a stored one is a dataclass
    with pytest.raises(UsageError, match="The autoencoder 'nowhere' is not a folder"):
        decoder_named("nowhere")


def test_paths_are_relative_to_the_plan_and_words_are_words() -> None:
    assert located_decoder("codes", Path("/plans")) == "/plans/codes"
    assert [located_decoder(word, Path("/plans")) for word in ("own", "none")] == ["own", "none"]


@pytest.mark.parametrize("size", [{"steps": 0}, {"latent": 0}, {"width": 0}], ids=str)
def test_sizes_that_can_not_be_are_refused(size: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="must be at least 1, got 0"):
        OwnDecoder(**size)
