"""`fedglass train diffusion`: a diffusion model of images like the private ones."""

from __future__ import annotations

import click

from fedglass.cli.output import Output, answering
from fedglass.cli.train_images import Request, training, watched

MINUTES = 10


@click.command("train diffusion", short_help="Train a diffusion model that refines reconstructed images.")
@click.option(
    "--kind",
    default="ddpm",
    show_default=True,
    help="ddpm is a U-Net, for the refinement ddrm; transformer is told classes, for mde.",
)
@click.option("--autoencoder", is_flag=True, help="Train a transformer in the latent space of an autoencoder.")
@click.option("--size", type=click.Choice(["small", "medium", "large"]), default="small", show_default=True)
@training(MINUTES)
@answering
def train_diffusion(request: Request, kind: str, autoencoder: bool, size: str, output: Output) -> None:
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
    from fedglass.train.diffusion import Teaching
    from fedglass.train.diffusion import train_diffusion as run
    from fedglass.train.places import PICTURE

    teaching, images, place = (
        Teaching(request.course(MINUTES), kind, size, autoencoder),
        request.images(),
        request.place,
    )
    with watched(output.quiet) as screen:
        state = run(images, teaching, place, screen)
    weights = sum(p.numel() for p in state.network.parameters())
    output.say(
        f"{place}: {weights / 1e6:.2f} million weights after {state.step} steps ({state.seconds / 60:.1f} minutes) on "
        f"{len(images)} images of {images.name}; samples in {place / PICTURE}"
    )
    told = {"weights": weights, "steps": state.step, "seconds": state.seconds, "images": len(images)}
    output.answer({"kind": kind, **told, "paths": {"model": str(place), "samples": str(place / PICTURE)}})
