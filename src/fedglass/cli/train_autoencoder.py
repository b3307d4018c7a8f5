"""`fedglass train autoencoder`: the codes in which an attack looks for images."""

from __future__ import annotations

import click

from fedglass.cli.output import Output, answering
from fedglass.cli.train_images import Request, training, watched

MINUTES = 2


@click.command("train autoencoder", short_help="Train an autoencoder in whose codes an attack looks for images.")
@training(MINUTES)
@answering
def train_autoencoder(request: Request, output: Output) -> None:
    """Train an autoencoder of three convolutional layers on DATA, named as in a plan, such as glyphs, npz:PATH or
    folder:PATH.

    An attack that looks for codes in place of pixels uses its decoder:
    [[attacks]] name = "maliciously_curious_client_published", decoder = "DIR". Train on images that an adversary
    could have: public ones of the same sort, never the private ones that are audited. The folder says what it was
    trained on, and so does every report of an attack that uses it. It also receives a picture (samples.png): images,
    what comes back of them, and what random codes decode to. If it is stopped, the same command continues where it
    was; with more --minutes or --steps it goes on.

    \b
    Examples:
      fedglass train autoencoder glyphs -o glyph_codes
      fedglass train autoencoder npz:public.npz -o codes --steps 2000
      fedglass train autoencoder folder:faces --side 64 -o face_codes --json
    """
    from fedglass.train.autoencoder import train_autoencoder as run
    from fedglass.train.places import PICTURE

    images, place = request.images(), request.place
    with watched(output.quiet) as screen:
        trained = run(images, request.course(MINUTES), place, screen)
    state, code = trained.state, trained.network.latent_shape
    weights = sum(p.numel() for p in trained.network.parameters())
    output.say(
        f"{place}: codes of {' x '.join(map(str, code))} numbers after {state.step} steps ({state.seconds / 60:.1f} "
        f"minutes) on {len(images)} images of {images.name}, which come back with RMSE {trained.error:.3f}; samples in "
        f"{place / PICTURE}"
    )
    told = {"weights": weights, "steps": state.step, "seconds": state.seconds, "images": len(images)}
    output.answer(
        {
            **told,
            "code": list(code),
            "rmse": trained.error,
            "paths": {"model": str(place), "samples": str(place / PICTURE)},
        }
    )
