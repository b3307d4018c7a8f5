"""What DDRM, or a GAN, adds to pictures that were read at low resolution.

    python tools/measure_refinement.py DATA MODEL [FACTOR [IMAGES]]

The truth is reduced by the factor, with noise as an attack leaves it; raw is that picture enlarged, by repetition and
by bicubic interpolation, and the better of the two by LPIPS is what a refinement is compared with. Beside it stand its
controls: the refinement of the next image, and that of an untrained network. Images are of the test split; glyphs are
those of the embedded set, which no training of the embedded model has seen. MODEL is a folder of `fedglass train
diffusion` or of `fedglass train gan`, which is shown the bicubic enlargement.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.attack.parts import Refinement
from fedglass.attack.refine.gan import gan
from fedglass.attack.refine.restoration import ddrm
from fedglass.core.rng import stream
from fedglass.core.types import Knowledge
from fedglass.data.catalogue import is_embedded, load
from fedglass.diffusion.stored import TRAINED_ON
from fedglass.metrics.catalogue import Matching, score

NOISE = 0.04
CROWD = 1000
"""Images among which the truth must be the nearest."""


def main(source: str, model: str, factor: int = 2, count: int = 100) -> None:
    torch.set_num_threads(1)
    data = load(source, split="train" if is_embedded(source) else "test")
    order = torch.randperm(len(data), generator=stream(3, "measure"))[:CROWD]
    crowd = data.images[order]
    truth = crowd[:count]
    small = F.avg_pool2d(truth, factor)
    small = small + NOISE * torch.randn(small.shape, generator=stream(3, "noise"))
    raws = {
        "repeated": small.repeat_interleave(factor, -1).repeat_interleave(factor, -2).clamp(0, 1),
        "bicubic": F.interpolate(small, data.shape[1:], mode="bicubic").clamp(0, 1),
    }
    blocks = small.repeat_interleave(factor, -1).repeat_interleave(factor, -2)
    knows = Knowledge(data.shape, data.classes, count, data.whitening)
    enhancer = (Path(model) / TRAINED_ON).is_file()  # a GAN's folder says what it was trained on
    part = gan(model) if enhancer else ddrm(model, factor)
    given = F.interpolate(small, data.shape[1:], mode="bicubic") if enhancer else blocks
    made = {
        "refined": part.refine(Refinement(given, data.labels[order][:count], knows, stream(0, "refine"))),
        "untrained": part.untrained().refine(Refinement(given, data.labels[:count], knows, stream(0, "refine"))),
    }
    shown = raws | made | {"another's": made["refined"].roll(1, 0)}
    figures = {name: _figures(images, truth, crowd) for name, images in shown.items()}
    best = min(figures[name]["lpips"] for name in raws)
    for name, of in figures.items():
        gain = 100 * (1 - of["lpips"] / best)
        line = f"{of['psnr']:6.2f} dB  LPIPS {of['lpips']:.4f} ({gain:+5.1f} %)  top-1 {100 * of['top']:5.1f} %"
        sys.stdout.write(f"{data.name} x{factor} {name:10s} {line}\n")


def _figures(images: Tensor, truth: Tensor, crowd: Tensor) -> dict[str, float]:
    same = Matching(tuple(range(len(truth))))
    values = score(images, truth, ["psnr", "lpips"], same).values
    nearest = torch.cdist(images.flatten(1), crowd.flatten(1)).argmin(1)
    top = float((nearest == torch.arange(len(truth))).float().mean())
    return {name: sum(v) / len(v) for name, v in values.items()} | {"top": top}


if __name__ == "__main__":
    first, second, *counts = sys.argv[1:5]
    main(first, second, *map(int, counts))
