"""`fedglass train diffusion`: a diffusion model of images like the private ones."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click

from fedglass.cli.bars import Bars
from fedglass.cli.code import code_option, importable
from fedglass.cli.output import Output, answering


class DiffusionScreen(Bars):
    """A progress bar on stderr over the share of the way."""

    def moved(self, step: int, share: float, loss: float) -> None:
        if not self.bars.task_ids:
            self.bars.add_task("", total=1.0)
        self.bars.update(self.bars.task_ids[0], completed=share, description=f"step {step}, loss {loss:.4f}")


@click.command("train diffusion", short_help="Train a diffusion model that refines reconstructed images.")
@click.argument("data")
@click.option(
    "-o", "--output", "place", type=click.Path(path_type=Path), required=True, help="The folder of the model."
)
@click.option(
    "--kind",
    default="ddpm",
    show_default=True,
    help="ddpm is a U-Net, for the refinement ddrm; transformer is told classes, for mde.",
)
@click.option("--autoencoder", is_flag=True, help="Train a transformer in the latent space of an autoencoder.")
@click.option("--size", type=click.Choice(["small", "medium", "large"]), default="small", show_default=True)
@click.option("--minutes", type=click.FloatRange(0, min_open=True), help="At most.  [default: 10, without --steps]")
@click.option("--steps", type=click.IntRange(1), help="At most; with steps alone the result can be repeated.")
@click.option("--side", type=click.IntRange(4, 512), help="Side that images are brought to.  [default: their own]")
@click.option("--split", type=click.Choice(["train", "test"]), default="train", show_default=True)
@click.option("--lr", type=float, default=2e-3, show_default=True)
@click.option("--batch", type=click.IntRange(1, 4096), default=32, show_default=True)
@click.option("--mirror", is_flag=True, help="Mirror images at random.")
@click.option("--seed", type=int, default=0, show_default=True)
@code_option
@answering
def train_diffusion(
    data: str,
    place: Path,
    kind: str,
    autoencoder: bool,
    size: str,
    minutes: float | None,
    steps: int | None,
    side: int | None,
    split: str,
    lr: float,
    batch: int,
    mirror: bool,
    seed: int,
    folders: tuple[Path, ...],
    output: Output,
) -> None:
    """Train a diffusion model on DATA, named as in a plan, such as glyphs, npz:PATH or folder:PATH.

    An attack uses it by refine = {name = "ddrm", model = "DIR"}, or "mde" where it is a transformer. Train on images
    that an adversary could have: public ones of the same sort, never the private ones that are audited. The folder
    receives the model, a picture of what it makes up (samples.png) and the state of the training. If it is stopped,
    the same command continues where it was; with more --minutes or --steps it goes on.

    \b
    Examples:
      fedglass train diffusion idx:mnist -o mnist_ddpm --minutes 10
      fedglass train diffusion idx:mnist -o mnist_mdt --kind transformer --minutes 20
      fedglass train diffusion folder:faces --side 64 --size medium --steps 20000 -o faces_ddpm
    """
    from fedglass.data.catalogue import load
    from fedglass.diffusion.training import Course, Silence
    from fedglass.train.diffusion import PICTURE, Teaching
    from fedglass.train.diffusion import train_diffusion as run

    ends = minutes if minutes is not None or steps is not None else 10.0
    course = Course(steps=steps, minutes=ends, lr=lr, batch_size=batch, mirror=mirror, seed=seed)
    with importable(folders):
        images = load(data, split=split, size=side)
    with nullcontext(Silence()) if output.quiet else DiffusionScreen() as screen:
        state = run(images, Teaching(course, kind, size, autoencoder), place, screen)
    weights = sum(p.numel() for p in state.network.parameters())
    output.say(
        f"{place}: {weights / 1e6:.2f} million weights after {state.step} steps ({state.seconds / 60:.1f} minutes) on "
        f"{len(images)} images of {images.name}; samples in {place / PICTURE}"
    )
    told = {"weights": weights, "steps": state.step, "seconds": state.seconds, "images": len(images)}
    output.answer({"kind": kind, **told, "paths": {"model": str(place), "samples": str(place / PICTURE)}})
