"""diffusers, an optional package, as reader of the U-Nets that others have published in its format."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedglass.core.errors import ModelError, UsageError


def installed() -> bool:
    """Whether diffusers can be asked."""
    return importlib.util.find_spec("diffusers") is not None


def unet_parameters(config: Mapping[str, Any]) -> int:
    """How many parameters a UNet2DModel of that config.json has, for which none is allocated."""
    kind = _unet()
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        try:
            model: nn.Module = kind.from_config(dict(config))
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ModelError(f"diffusers can not build the UNet2DModel of this config.json: {error}.") from error
    return sum(p.numel() for p in model.parameters())


def read_unet(folder: Path) -> nn.Module:
    """The UNet2DModel of a folder with config.json and safetensors weights; no network and no pickle is touched."""
    kind = _unet()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        try:
            model, told = kind.from_pretrained(
                str(folder),
                use_safetensors=True,
                local_files_only=True,
                low_cpu_mem_usage=False,
                output_loading_info=True,
            )
        except (OSError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise ModelError(f"diffusers can not read the UNet2DModel in {folder}: {error}") from error
    amiss = [name for key in ("missing_keys", "unexpected_keys", "mismatched_keys") for name in told.get(key, ())]
    if amiss:
        raise ModelError(f"The weights in {folder} do not fit its config.json ({amiss[0]}, {len(amiss)} such in all).")
    found: nn.Module = model
    return found


def _unet() -> Any:
    if not installed():
        raise UsageError(
            "A UNet2DModel is read by the package diffusers, which is not installed: pip install fedglass[diffusion]."
        )
    return importlib.import_module("diffusers").UNet2DModel
