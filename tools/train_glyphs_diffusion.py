"""Train the diffusion model of glyphs that comes with the package: python tools/train_glyphs_diffusion.py FOLDER

Its writers are drawn from a seed of their own, which no audit, test or measurement uses. FOLDER continues where it was
when the script was stopped; the model without the state of its training is then copied into the package.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch

from fedglass.data.catalogue import glyphs
from fedglass.diffusion.folder import CONFIG, SCHEDULER, WEIGHTS
from fedglass.diffusion.training import TrainingOptions
from fedglass.train.image_models import train_diffusion

SEED = 771_001
WRITERS = 400
STEPS = 2500
PACKAGED = Path(__file__).resolve().parents[1] / "src/fedglass/diffusion/embedded/glyphs"


def write_line(step: int, share: float, loss: float) -> None:
    """Write a line on stderr now and then."""
    if step % 100 == 0:
        sys.stderr.write(f"step {step} of {STEPS}: loss {loss:.4f}\n")


def main(folder: Path) -> None:
    torch.set_num_threads(1)  # the sums of other numbers of threads are rounded otherwise
    data = glyphs(writers=WRITERS, seed=SEED)
    train_diffusion(data, TrainingOptions(steps=STEPS, seed=SEED), folder, write_line)
    for name in (CONFIG, SCHEDULER, WEIGHTS):
        (PACKAGED / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / name, PACKAGED / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
