"""A diffusion model as a folder, in the layout that diffusers has for it.

`config.json` names the network (`_class_name`) and its options, `diffusion_pytorch_model.safetensors` holds the
weights, and `scheduler/scheduler_config.json` the noise and what the network predicts. The network's two files may also
lie in `unet/`, as in a saved pipeline. Networks of ours need no other package; a UNet2DModel is read by diffusers.
Nothing that is read can run code, and no weight is allocated that the file does not hold.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedglass.core.errors import ModelError, UsageError
from fedglass.core.files import follow_links, make_folder, open_file, parse_json, read_file, write_atomic
from fedglass.core.registry import built_in
from fedglass.diffusion.autoencoders import LatentSpace
from fedglass.diffusion.denoiser import Denoiser, Prediction, Schedule
from fedglass.diffusion.networks import Configured, check_images
from fedglass.models.init import load_weights
from fedglass.models.network import Shape

# diffusers, an optional package, as reader of the U-Nets that others have published in its format.


def diffusers_installed() -> bool:
    """Return whether diffusers is installed."""
    return importlib.util.find_spec("diffusers") is not None


def read_unet(folder: Path, config: Mapping[str, Any]) -> nn.Module:
    """The UNet2DModel of a folder with config.json and safetensors weights; no network and no pickle is touched."""
    if not diffusers_installed():
        raise UsageError(
            "A UNet2DModel is read by the package diffusers, which is not installed: pip install fedglass[diffusion]."
        )
    kind: Any = importlib.import_module("diffusers").UNet2DModel
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        try:
            with torch.device("meta"):  # which allocates no weights
                empty: nn.Module = kind.from_config(dict(config))
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ModelError(f"diffusers cannot build the UNet2DModel of this config.json: {error}.") from error
        _check_size(sum(p.numel() for p in empty.parameters()), folder)
        try:
            model, loading_info = kind.from_pretrained(
                str(folder),
                use_safetensors=True,
                local_files_only=True,
                low_cpu_mem_usage=False,
                output_loading_info=True,
            )
        except (OSError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise ModelError(f"diffusers cannot read the UNet2DModel in {folder}: {error}") from error
    misfits = [
        name for key in ("missing_keys", "unexpected_keys", "mismatched_keys") for name in loading_info.get(key, ())
    ]
    if misfits:
        raise ModelError(
            f"The weights in {folder} do not fit its config.json ({misfits[0]}, {len(misfits)} such in all)."
        )
    if not all(bool(torch.isfinite(p).all()) for p in model.parameters()):
        raise ModelError(f"The weights in {folder} hold NaN or infinity: take another checkpoint.")
    network: nn.Module = model
    return network


CONFIG = "config.json"
WEIGHTS = "diffusion_pytorch_model.safetensors"
SCHEDULER = "scheduler/scheduler_config.json"
AUTOENCODER = "autoencoder"
"""The folder inside a model's, in which the autoencoder lies in whose latent space it works."""
FOREIGN = "UNet2DModel"
MOST_TEXT = 1_000_000
"""Bytes of a JSON file; those of diffusers have a few hundred."""
TRAIN = {
    "diffusion model": "train one with `fedglass train diffusion DATA -o DIR`",
    "autoencoder": "train one with `fedglass train autoencoder DATA -o DIR`",
    "GAN": "train one with `fedglass train gan DATA -o DIR`",
}
"""What to do where a folder holds no such model."""


def save_folder(folder: Path, network: nn.Module, weights: Mapping[str, Tensor], denoiser: Denoiser) -> None:
    """Write a network of ours, its weights in half precision; the weights come last."""
    make_folder(folder)
    schedule = denoiser.schedule
    scheduler = {
        "_class_name": "DDPMScheduler",
        "num_train_timesteps": schedule.steps,
        "beta_start": schedule.first,
        "beta_end": schedule.last,
        "beta_schedule": schedule.shape,
        "prediction_type": denoiser.prediction.value,
        "clip_sample": denoiser.clamp,
    }
    write_atomic(folder / SCHEDULER, json.dumps(scheduler, indent=2) + "\n", within=folder)
    save_network(folder, network, weights)


def save_network(folder: Path, network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Write a network of ours without a schedule, as an autoencoder has none."""
    assert isinstance(network, Configured), "built again from its options"
    make_folder(folder)
    write_atomic(folder / CONFIG, json.dumps({"_class_name": network.kind} | network.options(), indent=2) + "\n")
    halves = {name: tensor.detach().cpu().half().contiguous() for name, tensor in weights.items()}
    write_atomic(folder / WEIGHTS, save(halves))


def load_folder(folder: Path) -> Denoiser:
    """The diffusion model of a folder, ours or diffusers'."""
    where = network_folder(folder)
    config, scheduler = read_table(where / CONFIG), read_table(_scheduler(folder, where))
    if config.get("_class_name") == FOREIGN:
        network, shape = _foreign(where, config)
    else:
        ours = load_network(folder, "denoisers")
        network, shape = ours, ours.shape
    schedule, prediction = _schedule(scheduler, folder)
    clamp = bool(scheduler.get("clip_sample", True))
    return Denoiser(network, schedule, prediction, shape, clamp, _decoder(folder, shape))


def _decoder(folder: Path, latent_shape: Shape) -> LatentSpace | None:
    if not (folder / AUTOENCODER).is_dir():
        return None
    autoencoder = load_autoencoder(folder / AUTOENCODER)
    if autoencoder.latent_shape != latent_shape:
        raise ModelError(
            f"The autoencoder in {folder / AUTOENCODER} has latents of {autoencoder.latent_shape}, the network next "
            f"to it is for {latent_shape}: they do not belong together."
        )
    return autoencoder


def load_autoencoder(folder: Path) -> LatentSpace:
    """Read the autoencoder that `save_network` wrote."""
    network = load_network(folder, "autoencoders")
    assert isinstance(network, LatentSpace), "all autoencoders are"
    return network


def load_network(folder: Path, kind: str, noun: str = "diffusion model") -> Configured:
    """Read a network of that kind of the registry, which `save_network` wrote."""
    where = network_folder(folder, noun)
    config, networks = read_table(where / CONFIG), built_in(kind)
    name = config.pop("_class_name", None)
    if not isinstance(name, str) or name not in networks:
        names = ", ".join([*networks, FOREIGN] if kind == "denoisers" else networks)
        raise ModelError(f"{where / CONFIG}: _class_name must be one of {names}, got {name!r}.")
    options = {key: value for key, value in config.items() if not key.startswith("_")}
    with torch.device("meta"):
        try:
            network: Configured = networks[name].value(**options)
        except (TypeError, ValueError, ZeroDivisionError, RuntimeError) as error:
            raise ModelError(f"{where / CONFIG} does not describe a {name}: {error}.") from error
    _check_size(sum(tensor.numel() for tensor in network.state_dict().values()), where)
    network = network.to_empty(device="cpu")
    load_weights(network, str(where / WEIGHTS))
    return network.eval().requires_grad_(False)


def digest_of(folder: Path) -> str:
    """Names what the folder holds, so that results go by the weights and not by where they lie."""
    where = network_folder(folder)
    autoencoder = [path for name in (CONFIG, WEIGHTS) if (path := folder / AUTOENCODER / name).is_file()]
    return digest_of_files([where / CONFIG, _scheduler(folder, where), where / WEIGHTS, *autoencoder])


def digest_of_files(paths: Iterable[Path]) -> str:
    """Names what these files hold, in that order."""
    state = hashlib.sha256()
    for path in paths:
        with open_file(follow_links(path)) as file:
            state.update(hashlib.file_digest(file, "sha256").digest())
    return state.hexdigest()[:16]


def check_unchanged(what: str, digest: str, expected: str) -> None:
    """Refuse a network that has become another since it was named."""
    if digest != expected:
        raise UsageError(
            f"The {what} is not the one that was named (digest {digest}, expected {expected}): run the command again."
        )


def check_shape(denoiser: Denoiser, shape: Shape, where: str) -> None:
    """Refuse a model of other images than these."""
    if denoiser.shape is not None:
        check_images(denoiser.shape, shape, f"The diffusion model {where} makes", TRAIN["diffusion model"])


def network_folder(folder: Path, noun: str = "diffusion model") -> Path:
    """Return the folder of config and weights inside a folder; one without them is refused."""
    if not folder.is_dir():
        raise UsageError(f"The {noun} {str(folder)!r} is not a folder: name one, or {TRAIN[noun]}.")
    where = folder / "unet" if (folder / "unet").is_dir() else folder
    for name in (CONFIG, WEIGHTS):
        if not (where / name).is_file():
            raise UsageError(f"The folder {str(folder)!r} holds no {noun} ({name} is missing): {TRAIN[noun]}.")
    return where


def _scheduler(folder: Path, where: Path) -> Path:
    for path in (folder / SCHEDULER, where / SCHEDULER):
        if path.is_file():
            return path
    raise UsageError(
        f"The folder {str(folder)!r} has no {SCHEDULER}, so the noise that its network was trained on is "
        "unknown: save the scheduler next to the network."
    )


def read_table(path: Path) -> dict[str, Any]:
    """Read the options in a JSON file, which may come from others."""
    try:
        table = parse_json(read_file(follow_links(path), MOST_TEXT))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error}): it is damaged or of another format.") from error
    if not isinstance(table, dict):
        raise ModelError(f"{path} must hold a table of options, got {type(table).__name__}.")
    return table


def _foreign(where: Path, config: Mapping[str, Any]) -> tuple[nn.Module, Shape]:
    sides: Any = config.get("sample_size")
    channels: Any = config.get("in_channels")
    height, width = sides if isinstance(sides, list) and len(sides) == 2 else (sides, sides)
    if not all(isinstance(number, int) and number > 0 for number in (channels, height, width)):
        raise ModelError(f"{where / CONFIG} must tell sample_size and in_channels, got {sides!r} and {channels!r}.")
    if config.get("class_embed_type") is not None or config.get("num_class_embeds") is not None:
        raise ModelError(f"The UNet2DModel in {where} wants the class of every image: take an unconditional one.")
    if "quantization_config" in config:
        raise ModelError(f"The UNet2DModel in {where} is quantised: take one of plain weights.")
    shape: Shape = channels, height, width
    return Borrowed(read_unet(where, config), shape).eval().requires_grad_(False), shape


class Borrowed(nn.Module):
    """A UNet2DModel that answers as our networks do; a learned variance behind its answer is left out."""

    def __init__(self, network: nn.Module, shape: Shape) -> None:
        super().__init__()
        self.network, self.channels = network, shape[0]

    def forward(self, noisy: Tensor, steps: Tensor, labels: Tensor | None = None) -> Tensor:
        answer: Tensor = self.network(noisy, steps).sample
        return answer[:, : self.channels]


def _check_size(parameters: int, where: Path) -> None:
    """A config that asks for more weights than the file can hold is refused before they are allocated."""
    if parameters > (where / WEIGHTS).stat().st_size:  # a byte a weight is less than any format here
        raise ModelError(f"{where / CONFIG} asks for {parameters:,} weights, more than {WEIGHTS} next to it can hold.")


def _schedule(config: Mapping[str, Any], folder: Path) -> tuple[Schedule, Prediction]:
    if config.get("trained_betas") is not None or config.get("rescale_betas_zero_snr"):
        raise ModelError(f"{folder / SCHEDULER}: trained_betas and rescale_betas_zero_snr are not known here.")
    try:
        schedule = Schedule(
            int(config.get("num_train_timesteps", 1000)),
            float(config.get("beta_start", 1e-4)),
            float(config.get("beta_end", 0.02)),
            str(config.get("beta_schedule", "linear")),
        )
        return schedule, Prediction(config.get("prediction_type", "epsilon"))
    except (TypeError, ValueError, OverflowError, UsageError) as error:
        raise ModelError(f"{folder / SCHEDULER} does not describe a noise schedule: {error}") from error
