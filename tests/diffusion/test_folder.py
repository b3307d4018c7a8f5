"""Folders of diffusion models: ours, those of diffusers, and those that are damaged or mean harm."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedglass.core.errors import UsageError
from fedglass.diffusion.denoiser import Denoiser, Prediction, Schedule
from fedglass.diffusion.folder import CONFIG, SCHEDULER, WEIGHTS, check_shape, digest_of, load_folder, save_folder
from fedglass.diffusion.networks import UNet
from fedglass.diffusion.stored import Stored, stored

SHAPE = (1, 8, 8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    network = UNet(SHAPE, widths=(8, 12), patch=2)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    schedule = Schedule(steps=100, last=0.05, shape="scaled_linear")
    save_folder(tmp_path / "m", network, network.state_dict(), Denoiser(network, schedule, Prediction.EPSILON))
    return tmp_path / "m"


def test_what_is_saved_is_read_again(folder: Path) -> None:
    torch.manual_seed(0)
    network = UNet(SHAPE, widths=(8, 12), patch=2)
    found = load_folder(folder)
    assert found.schedule == Schedule(steps=100, last=0.05, shape="scaled_linear")
    assert (found.prediction, found.shape) == (Prediction.EPSILON, SHAPE)
    kept = load_file(folder / WEIGHTS)
    assert {tensor.dtype for tensor in kept.values()} == {torch.float16}
    network.load_state_dict({name: tensor.float() for name, tensor in kept.items()})
    noisy, steps = torch.randn(2, *SHAPE), torch.tensor([3, 50])
    assert torch.equal(found.network(noisy, steps, None), network(noisy, steps))


def test_the_network_may_lie_in_a_folder_of_a_pipeline(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "p" / "scheduler").mkdir(parents=True)
    (folder / SCHEDULER).rename(tmp_path / "p" / SCHEDULER)
    (folder / "scheduler").rmdir()
    folder.rename(tmp_path / "p" / "unet")
    assert load_folder(tmp_path / "p").shape == SHAPE


def test_a_digest_goes_by_what_the_folder_holds(folder: Path) -> None:
    named = stored(str(folder))
    assert named == Stored(str(folder), digest_of(folder))
    weights = load_file(folder / WEIGHTS)
    weights["first.bias"] += 1
    save_file(weights, folder / WEIGHTS)
    with pytest.raises(UsageError, match="is not the one that was named"):
        named.load()


def test_an_untrained_model_is_another_with_the_same_network(folder: Path) -> None:
    named = stored(str(folder))
    noisy, steps = torch.randn(2, *SHAPE), torch.tensor([3, 50])
    trained, blank, again = (
        m.load().network(noisy, steps, None) for m in (named, named.untrained(), named.untrained())
    )
    assert torch.equal(blank, again)
    assert not torch.allclose(trained, blank)
    assert torch.equal(trained, named.load().network(noisy, steps, None))
    assert blank.abs().max() > 0


def edited(folder: Path, file: str, **changes: object) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


BROKEN = {
    "another class": ({"_class_name": "StableDiffusion"}, "_class_name must be one of .*FedglassUNet"),
    "a class with code": ({"_class_name": "os:system"}, "_class_name must be one of"),
    "no class": ({"_class_name": None}, "_class_name must be one of"),
    "an unknown option": ({"command": "rm"}, "does not describe a FedglassUNet"),
    "text for a number": ({"widths": ["a", "b"]}, "whole numbers"),
    "too much memory": ({"widths": [1024, 1024, 1024]}, "more than .* can hold"),
    "too many levels": ({"widths": [8] * 40}, "1 to 6 even widths"),
    "other widths": ({"widths": [8, 10]}, "another architecture"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_config_that_does_not_fit_is_refused(folder: Path, what: str) -> None:
    changes, words = BROKEN[what]
    edited(folder, CONFIG, **changes)
    with pytest.raises(UsageError, match=words):
        load_folder(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"beta_schedule": "wavy"},
        {"num_train_timesteps": 10**9},
        {"beta_start": "x"},
        {"prediction_type": "mood"},
        {"trained_betas": [0.1]},
    ],
    ids=repr,
)
def test_a_schedule_that_is_not_known_is_refused(folder: Path, changes: dict[str, object]) -> None:
    edited(folder, SCHEDULER, **changes)
    with pytest.raises(UsageError, match="scheduler_config"):
        load_folder(folder)


def test_files_that_are_missing_or_damaged_are_named(folder: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        load_folder(folder / CONFIG)
    good = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(good[:-100])
    with pytest.raises(UsageError, match="cannot be read as safetensors"):
        load_folder(folder)
    weights = load_file_of(good, folder)
    weights["first.bias"][0] = float("nan")
    save_file(weights, folder / WEIGHTS)
    with pytest.raises(UsageError, match="NaN"):
        load_folder(folder)
    (folder / CONFIG).write_text("[" * 100_000)
    with pytest.raises(UsageError, match="cannot be read as JSON"):
        load_folder(folder)
    (folder / WEIGHTS).unlink()
    with pytest.raises(
        UsageError, match=r"holds no diffusion model \(diffusion_pytorch_model.safetensors is missing\)"
    ):
        load_folder(folder)


def load_file_of(content: bytes, folder: Path) -> dict[str, torch.Tensor]:
    (folder / "good").write_bytes(content)
    return load_file(folder / "good")


def test_a_network_without_its_noise_is_refused(folder: Path) -> None:
    (folder / SCHEDULER).unlink()
    with pytest.raises(UsageError, match=r"has no scheduler/scheduler_config.json"):
        load_folder(folder)


def test_other_images_than_the_models_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"makes images of 1 x 8 x 8 .* these are 3 x 8 x 8"):
        check_shape(load_folder(folder), (3, 8, 8), "m")


def test_without_diffusers_the_error_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edited(folder, CONFIG, _class_name="UNet2DModel", sample_size=8, in_channels=1)
    monkeypatch.setattr("fedglass.diffusion.folder.diffusers_installed", lambda: False)
    with pytest.raises(UsageError, match=r"pip install fedglass\[diffusion\]"):
        load_folder(folder)


@pytest.fixture
def borrowed(tmp_path: Path) -> Path:
    """A pipeline as diffusers saves it."""
    pytest.importorskip("diffusers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

        blocks = {
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        }
        network = UNet2DModel(8, 1, 1, block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1, **blocks)
        scheduler = DDPMScheduler(num_train_timesteps=500, prediction_type="v_prediction")
        DDPMPipeline(network, scheduler).save_pretrained(tmp_path / "d")
    return tmp_path / "d"


def test_a_pipeline_of_diffusers_is_read(borrowed: Path) -> None:
    from diffusers import UNet2DModel

    found = load_folder(borrowed)
    assert (found.schedule, found.prediction, found.shape) == (Schedule(steps=500), Prediction.V, SHAPE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = UNet2DModel.from_pretrained(borrowed / "unet")
    noisy, steps = torch.randn(2, *SHAPE), torch.tensor([3, 50])
    assert torch.equal(found.network(noisy, steps, None), theirs(noisy, steps).sample)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_class_embeds": 10}, "wants the class"),
        ({"block_out_channels": [1024, 2048]}, "more than .* can hold"),
        ({"block_out_channels": [8, 12]}, "diffusers cannot read|do not fit"),
        ({"sample_size": None}, "must tell sample_size"),
        ({"down_block_types": ["Nonsense", "DownBlock2D"]}, "cannot build"),
        ({"quantization_config": {}}, "quantised"),
    ],
    ids=repr,
)
def test_a_pipeline_that_does_not_fit_is_refused(borrowed: Path, changes: dict[str, object], words: str) -> None:
    edited(borrowed, f"unet/{CONFIG}", **changes)
    with pytest.raises(UsageError, match=words):
        load_folder(borrowed)
