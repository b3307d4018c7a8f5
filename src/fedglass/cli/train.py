"""`fedglass train` trains networks to given test accuracies, diffusion models, autoencoders and GANs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedglass.cli.options import COUNT, PATH, Output, code_option, device_option, importable, output_options
from fedglass.core.errors import AuditError, UsageError

if TYPE_CHECKING:
    from fedglass.data.dataset import Dataset
    from fedglass.diffusion.training import ImageModelTraining, TrainingOptions


def training(usual_minutes: int, usual_lr: float = 2e-3) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the common options of image models.

    It receives the loaded `images`, the `course` of the training, and the `place` of the model.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.argument("data")
        @click.option("-o", "--output", "place", type=PATH, required=True, help="Output folder of the model.")
        @click.option(
            "--minutes",
            type=click.FloatRange(0, min_open=True),
            help=f"Time limit.  [default: {usual_minutes}, without --steps]",
        )
        @click.option(
            "--steps", type=COUNT, help="Limit of training steps. Without --minutes the result is reproducible."
        )
        @click.option("--side", type=click.IntRange(4, 512), help="Resize images to this side.  [default: their own]")
        @click.option("--split", type=click.Choice(["train", "test"]), default="train", show_default=True)
        @click.option("--lr", type=float, default=usual_lr, show_default=True)
        @click.option("--batch", "batch_size", type=click.IntRange(1, 4096), default=32, show_default=True)
        @click.option("--mirror", is_flag=True, help="Mirror images at random.")
        @click.option("--seed", type=int, default=0, show_default=True)
        @code_option
        @wraps(command)
        def wrapped(
            *,
            data: str,
            minutes: float | None,
            steps: int | None,
            side: int | None,
            split: str,
            folders: tuple[Path, ...],
            **values: Any,
        ) -> None:
            from fedglass.data.catalogue import load
            from fedglass.diffusion.training import TrainingOptions

            ends = minutes if minutes is not None or steps is not None else usual_minutes
            more = {name: values.pop(name) for name in ("lr", "batch_size", "mirror", "seed")}
            course = TrainingOptions(steps=steps, minutes=ends, **more)
            with importable(folders):
                images = load(data, split=split, size=side)
            command(images=images, course=course, **values)

        return wrapped

    return decorate


def _figures(state: ImageModelTraining, images: Dataset) -> dict[str, Any]:
    """Return the figures of a training as JSON."""
    weights = sum(p.numel() for p in state.network.parameters())
    return {"weights": weights, "steps": state.step, "seconds": state.seconds, "images": len(images)}


def _answer(kind: str, state: ImageModelTraining, images: Dataset, place: Path, output: Output) -> None:
    """Print the figures of a model that draws images, and where it is."""
    from fedglass.train.image_models import PICTURE

    figures = _figures(state, images)
    output.say(
        f"{place}: {figures['weights'] / 1e6:.2f} million weights after {state.step} steps ({state.seconds / 60:.1f} "
        f"minutes) on {len(images)} images of {images.name}; samples in {place / PICTURE}"
    )
    output.answer({"kind": kind, **figures, "paths": {"model": str(place), "samples": str(place / PICTURE)}})


@click.command("train autoencoder", short_help="Train an autoencoder for attacks that search its codes.")
@training(usual_minutes=2)
@output_options
def train_autoencoder(images: Dataset, course: TrainingOptions, place: Path, output: Output) -> None:
    """Train an autoencoder of three convolutional layers on DATA, a source as in a plan, such as glyphs, npz:PATH or
    folder:PATH.

    An attack that searches codes instead of pixels uses its decoder:
    [[attacks]] name = "maliciously_curious_client_published", decoder = "DIR".

    Train on images that an adversary could have: similar public images, never the private images of the audit. The
    folder states the training data, and so does every report of an attack that uses it. It also receives samples.png
    with images, their reconstructions, and decoded random codes. If the training is stopped, the same command
    continues it. More --minutes or --steps extend it.

    \b
    Examples:
      fedglass train autoencoder glyphs -o glyph_codes
      fedglass train autoencoder npz:public.npz -o codes --steps 2000
      fedglass train autoencoder folder:faces --side 64 -o face_codes --json
    """
    from fedglass.cli.progress import TrainingScreen
    from fedglass.train.image_models import PICTURE
    from fedglass.train.image_models import train_autoencoder as run

    with TrainingScreen(digits=4, quiet=output.quiet) as screen:
        network, state, error = run(images, course, place, screen.moved)
    code = network.latent_shape
    output.say(
        f"{place}: codes of {' x '.join(map(str, code))} numbers after {state.step} steps ({state.seconds / 60:.1f} "
        f"minutes) on {len(images)} images of {images.name}; reconstruction error RMSE {error:.3f}; samples in "
        f"{place / PICTURE}"
    )
    paths = {"model": str(place), "samples": str(place / PICTURE)}
    output.answer({**_figures(state, images), "code": list(code), "rmse": error, "paths": paths})


@click.command("train gan", short_help="Train a GAN that sharpens reconstructed images, or draws images from codes.")
@click.option(
    "--kind",
    default="enhancer",
    show_default=True,
    help="enhancer: for the refinement gan; codes: for the attack fedinverse.",
)
@click.option(
    "--factor", type=click.IntRange(1), default=4, show_default=True, help="Reduction that an enhancer makes good."
)
@training(usual_minutes=5, usual_lr=5e-4)
@output_options
def train_gan(images: Dataset, course: TrainingOptions, place: Path, kind: str, factor: int, output: Output) -> None:
    """Train a GAN on DATA, a source as in a plan, such as glyphs, npz:PATH or folder:PATH.

    An enhancer sharpens images that an attack found at low resolution: refine = {name = "gan", model = "DIR"}. One of
    codes draws images, and model inversion searches its codes: [[attacks]] name = "fedinverse", generator = "DIR".
    Train on images that an adversary could have: similar public images, never the private images of the audit. The
    folder states the training data, and receives samples.png. If the training is stopped, the same command continues
    it. More --minutes or --steps extend it.

    \b
    Examples:
      fedglass train gan idx:mnist -o mnist_codes --kind codes --minutes 10
      fedglass train gan npz:public.npz -o sharp --factor 4
    """
    from fedglass.cli.progress import TrainingScreen
    from fedglass.train.image_models import train_gan as run

    with TrainingScreen(digits=4, quiet=output.quiet) as screen:
        state = run(images, kind, factor, course, place, screen.moved)
    _answer(kind, state, images, place, output)


@click.command("train diffusion", short_help="Train a diffusion model that refines reconstructed images.")
@click.option(
    "--kind",
    default="ddpm",
    show_default=True,
    help="ddpm: a U-Net for the refinement ddrm; transformer: a class-conditional model for mde.",
)
@click.option("--autoencoder", is_flag=True, help="Train a transformer in the latent space of an autoencoder.")
@click.option("--size", type=click.Choice(["small", "medium", "large"]), default="small", show_default=True)
@training(usual_minutes=10)
@output_options
def train_diffusion(
    images: Dataset, course: TrainingOptions, place: Path, kind: str, autoencoder: bool, size: str, output: Output
) -> None:
    """Train a diffusion model on DATA, a source as in a plan, such as glyphs, npz:PATH or folder:PATH.

    An attack uses it with refine = {name = "ddrm", model = "DIR"}, or name = "mde" for a transformer. Train on images
    that an adversary could have: similar public images, never the private images of the audit. The folder receives
    the model, generated samples (samples.png) and the state of the training. If the training is stopped, the same
    command continues it. More --minutes or --steps extend it.

    \b
    Examples:
      fedglass train diffusion idx:mnist -o mnist_ddpm --minutes 10
      fedglass train diffusion idx:mnist -o mnist_mdt --kind transformer --minutes 20
      fedglass train diffusion folder:faces --side 64 --size medium --steps 20000 -o faces_ddpm
    """
    from fedglass.cli.progress import TrainingScreen
    from fedglass.train.image_models import train_diffusion as run

    with TrainingScreen(digits=4, quiet=output.quiet) as screen:
        state = run(images, course, place, screen.moved, kind=kind, size=size, autoencoder=autoencoder)
    _answer(kind, state, images, place, output)


@click.command(short_help="Train a model and save it at given test accuracies.")
@click.argument("plan", required=False, type=PATH)
@click.option(
    "--data",
    help="Data source as in a plan, such as cifar10:PATH; see `fedglass list datasets`.  [default: the plan's]",
)
@click.option("--model", help="A model of `fedglass list models`, or package.module:factory.  [default: the plan's]")
@click.option(
    "--init", help="Initial weights, such as kaiming_normal, file:PATH or transfer:PATH.  [default: the plan's]"
)
@click.option("--size", type=click.IntRange(1, 2048), help="Resize images to this side.  [default: the plan's]")
@click.option("--at", "targets", default="25,50,75", show_default=True, help="Test accuracies in percent.")
@click.option("--epochs", type=COUNT, default=30, show_default=True, help="Limit of epochs.")
@click.option("--batch", "batch_size", type=int, default=64, show_default=True)
@click.option("--lr", type=float, default=0.05, show_default=True)
@click.option("--momentum", type=float, default=0.9, show_default=True)
@click.option("--weight-decay", type=float, default=5e-4, show_default=True)
@click.option("--mirror", is_flag=True, help="Mirror images at random.")
@click.option("--every", type=int, default=20, show_default=True, help="Steps between tests.")
@click.option("--seed", type=int, default=0, show_default=True)
@device_option()
@click.option("-o", "--output", "place", type=PATH, default=Path("stages"), show_default=True)
@code_option
@output_options
def train(
    plan: Path | None,
    data: str | None,
    model: str | None,
    init: str | None,
    size: int | None,
    targets: str,
    epochs: int,
    seed: int,
    device: str,
    place: Path,
    folders: tuple[Path, ...],
    output: Output,
    **course: Any,
) -> None:
    """Train a model, and save its weights when it first reaches each of the given test accuracies.

    Model, data and initial weights come from PLAN's federation or from the options. The output directory receives
    acc25.safetensors and so on, and best.safetensors. A plan starts from one of them with
    init = "file:stages/acc25.safetensors". If the training is stopped, even by a power cut, the same command
    continues it. More --epochs or higher accuracies in --at extend it.

    \b
    Examples:
      fedglass train --model resnet18 --data cifar10:cifar-10-batches-bin --init kaiming_normal --at 25,50,75
      fedglass train plan.toml --at 60 -o stages
      fedglass train plan.toml --at 60 -o stages --json
    """
    from fedglass.cli.progress import TrainingScreen
    from fedglass.execution.machine import device_named
    from fedglass.train.classifiers import BEST, ClassifierOptions, choose_start, name_of, train_to

    wanted = percentages(targets)
    options = ClassifierOptions(**course, seed=seed)
    with importable(folders):
        begin = choose_start(plan, seed, data=data, model=model, init=init, size=size)
        kind = str(device_named(device))
        begin.model.to(kind)
        with TrainingScreen(digits=3, quiet=output.quiet) as screen:
            screen.line(f"{begin.title}, on {kind}")
            state = train_to(wanted, begin, options, epochs, place, screen.moved, screen.judged)
    paths = {target: place / f"{name_of(target)}.safetensors" for target in wanted}
    reached = {target: state.reached[name_of(target)] for target in wanted if name_of(target) in state.reached}
    missed = [target for target in wanted if target not in reached]
    for target, accuracy in reached.items():
        output.say(f"{target:g} %: {paths[target]} ({accuracy:.1f} % of the test images)")
    output.answer(
        {
            "start": begin.title,
            "device": kind,
            "exit_code": 3 if missed else 0,
            "reached": [
                {"target": target, "accuracy": accuracy, "path": str(paths[target])}
                for target, accuracy in reached.items()
            ],
            "missed": missed,
            "best": {"accuracy": state.best, "path": str(place / BEST)} if state.best >= 0 else None,
            "steps": state.step,
        }
    )
    if missed:
        raise AuditError(
            f"{', '.join(f'{target:g} %' for target in missed)} not reached within {epochs} epochs; the best was "
            f"{max(state.best, 0):.1f} % ({place / BEST}): run the same command with more --epochs to continue, or "
            "with another --lr and another -o."
        )


def percentages(text: str) -> list[float]:
    """Return the accuracies of a text that separates them by commas.

    >>> percentages("25, 50,95.3")
    [25.0, 50.0, 95.3]
    """
    try:
        return sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(f"--at must be test accuracies in percent, such as 25,50,75, got {text!r}.") from None
