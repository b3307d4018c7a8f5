"""Inverting Gradients on DLG's LeNet: three pictures, five networks, labels known, 1,000 iterations.

Needs a folder with `natural_images/astronaut.png`, `chelsea.png` and `coffee.png` (they come with scikit-image), named
in FEDGLASS_SHARED. Each seed draws the network, the label and the start anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fedglass.attack.attack import Attack
from fedglass.attack.labels.given import OracleLabels
from fedglass.core.rng import stream
from fedglass.core.types import Training
from fedglass.data.dataset import CIFAR10
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation, observe
from fedglass.federation.views import Knows, ServerView
from fedglass.metrics.images import psnr
from fedglass.models.catalogue import build
from fedglass.models.init import Uniform
from fedglass.recipes.inverting_gradients import inverting_gradients, inverting_gradients_published

PICTURES = ("astronaut", "chelsea", "coffee")
SEEDS = 5


def measure() -> list[tuple[str, str, str]]:
    folder = Path(os.environ.get("FEDGLASS_SHARED", "")) / "natural_images"
    if not folder.is_dir():
        return [("Inverting Gradients on three pictures", "not run: set FEDGLASS_SHARED", "")]
    pictures = {name: _read(folder / f"{name}.png") for name in PICTURES}
    return [
        ("inverting_gradients", _mean(pictures, inverting_gradients), "at least 22.5 dB"),
        ("inverting_gradients_published", _mean(pictures, inverting_gradients_published), ""),
    ]


def _mean(pictures: dict[str, torch.Tensor], make: Callable[..., Attack]) -> str:
    attack = make(labels=OracleLabels(), iterations=1000)
    found = {name: [_one(attack, image, seed) for seed in range(SEEDS)] for name, image in pictures.items()}
    each = " / ".join(f"{np.mean(values):.1f}" for values in found.values())
    return f"{np.mean(list(found.values())):.2f} dB ({each})"


def _one(attack: Attack, image: torch.Tensor, seed: int) -> float:
    label = torch.randint(0, 10, (1,), generator=stream(seed, "label"))
    model = build("lenet", shape=(3, 32, 32), classes=10, init=Uniform(), seed=seed)
    federation = Federation(model, [Client("client", image, label)], Training(lr=0.1), 10, CIFAR10, seed=seed)
    seen, truth = observe(federation, ServerView(), Knows(labels=True))
    return float(psnr(attack.run(seen, seed).images, truth.images))


def _read(path: Path) -> torch.Tensor:
    """The middle square at 32x32.  # (1, 3, 32, 32)"""
    picture = Image.open(path).convert("RGB")
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    small = picture.crop((left, top, left + side, top + side)).resize((32, 32), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(small)).permute(2, 0, 1)[None].float() / 255
