"""`fedglass train` trains networks to given test accuracies, diffusion models and autoencoders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedglass.cli.options import Bars, Output, code_option, importable, output_options
from fedglass.core.errors import AuditError, UsageError

if TYPE_CHECKING:
    from fedglass.core.resumable import NoProgress
    from fedglass.data.dataset import Dataset
    from fedglass.diffusion.training import TrainingOptions
    from fedglass.train.classifiers import ClassifierOptions, ClassifierStart, ClassifierTraining


class ShareScreen(Bars):
    """A progress bar on stderr for the finished share of a training."""

    def moved(self, step: int, share: float, loss: float) -> None:
        if not self.bars.task_ids:
            self.bars.add_task("", total=1.0)
        self.bars.update(self.bars.task_ids[0], completed=share, description=f"step {step}, loss {loss:.4f}")


@dataclass(frozen=True)
class Request:
    """The common options of image models: data, output folder, and how they are trained."""

    data: str
    place: Path
    minutes: float | None
    steps: int | None
    side: int | None
    split: str
    lr: float
    batch: int
    mirror: bool
    seed: int
    folders: tuple[Path, ...]

    def course(self, usual_minutes: float) -> TrainingOptions:
        from fedglass.diffusion.training import TrainingOptions

        ends = self.minutes if self.minutes is not None or self.steps is not None else usual_minutes
        return TrainingOptions(
            steps=self.steps, minutes=ends, lr=self.lr, batch_size=self.batch, mirror=self.mirror, seed=self.seed
        )

    def images(self) -> Dataset:
        from fedglass.data.catalogue import load

        with importable(self.folders):
            return load(self.data, split=self.split, size=self.side)


@contextmanager
def watched(quiet: bool) -> Iterator[ShareScreen | NoProgress]:
    """Show the training as a progress bar, or not at all."""
    from fedglass.core.resumable import NoProgress

    if quiet:
        yield NoProgress()
    else:
        with ShareScreen() as screen:
            yield screen


def training(usual_minutes: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the common options, which it receives as its argument `request`."""
    split = click.Choice(["train", "test"])
    minutes_help = f"Time limit.  [default: {usual_minutes}, without --steps]"
    options = [
        click.argument("data"),
        click.option(
            "-o",
            "--output",
            "place",
            type=click.Path(path_type=Path),
            required=True,
            help="Output folder of the model.",
        ),
        click.option("--minutes", type=click.FloatRange(0, min_open=True), help=minutes_help),
        click.option(
            "--steps",
            type=click.IntRange(1),
            help="Limit of training steps. Without --minutes the result is reproducible.",
        ),
        click.option("--side", type=click.IntRange(4, 512), help="Resize images to this side.  [default: their own]"),
        click.option("--split", type=split, default="train", show_default=True),
        click.option("--lr", type=float, default=2e-3, show_default=True),
        click.option("--batch", type=click.IntRange(1, 4096), default=32, show_default=True),
        click.option("--mirror", is_flag=True, help="Mirror images at random."),
        click.option("--seed", type=int, default=0, show_default=True),
        code_option,
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def wrapped(*arguments: Any, **values: Any) -> None:
            common = {name: values.pop(name) for name in Request.__dataclass_fields__}
            command(*arguments, request=Request(**common), **values)

        decorated: Callable[..., None] = wrapped
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return decorate


AUTOENCODER_MINUTES = 2


@click.command("train autoencoder", short_help="Train an autoencoder for attacks that search its codes.")
@training(AUTOENCODER_MINUTES)
@output_options
def train_autoencoder(request: Request, output: Output) -> None:
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
    from fedglass.train.image_models import PICTURE
    from fedglass.train.image_models import train_autoencoder as run

    images, place = request.images(), request.place
    with watched(output.quiet) as screen:
        trained = run(images, request.course(AUTOENCODER_MINUTES), place, screen)
    state, code = trained.training, trained.network.latent_shape
    weights = sum(p.numel() for p in trained.network.parameters())
    output.say(
        f"{place}: codes of {' x '.join(map(str, code))} numbers after {state.step} steps ({state.seconds / 60:.1f} "
        f"minutes) on {len(images)} images of {images.name}; reconstruction error RMSE {trained.error:.3f}; samples in "
        f"{place / PICTURE}"
    )
    figures = {"weights": weights, "steps": state.step, "seconds": state.seconds, "images": len(images)}
    output.answer(
        {
            **figures,
            "code": list(code),
            "rmse": trained.error,
            "paths": {"model": str(place), "samples": str(place / PICTURE)},
        }
    )


DIFFUSION_MINUTES = 10


@click.command("train diffusion", short_help="Train a diffusion model that refines reconstructed images.")
@click.option(
    "--kind",
    default="ddpm",
    show_default=True,
    help="ddpm: a U-Net for the refinement ddrm; transformer: a class-conditional model for mde.",
)
@click.option("--autoencoder", is_flag=True, help="Train a transformer in the latent space of an autoencoder.")
@click.option("--size", type=click.Choice(["small", "medium", "large"]), default="small", show_default=True)
@training(DIFFUSION_MINUTES)
@output_options
def train_diffusion(request: Request, kind: str, autoencoder: bool, size: str, output: Output) -> None:
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
    from fedglass.train.image_models import PICTURE, DiffusionOptions
    from fedglass.train.image_models import train_diffusion as run

    teaching, images, place = (
        DiffusionOptions(request.course(DIFFUSION_MINUTES), kind, size, autoencoder),
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
    figures = {"weights": weights, "steps": state.step, "seconds": state.seconds, "images": len(images)}
    output.answer({"kind": kind, **figures, "paths": {"model": str(place), "samples": str(place / PICTURE)}})


@click.command(short_help="Train a model and save it at given test accuracies.")
@click.argument("plan", required=False, type=click.Path(path_type=Path))
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
@click.option("--epochs", type=click.IntRange(1), default=30, show_default=True, help="Limit of epochs.")
@click.option("--batch", type=int, default=64, show_default=True)
@click.option("--lr", type=float, default=0.05, show_default=True)
@click.option("--momentum", type=float, default=0.9, show_default=True)
@click.option("--weight-decay", type=float, default=5e-4, show_default=True)
@click.option("--mirror", is_flag=True, help="Mirror images at random.")
@click.option("--every", type=int, default=20, show_default=True, help="Steps between tests.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda", "mps"]), default="auto", show_default=True)
@click.option("-o", "--output", "place", type=click.Path(path_type=Path), default=Path("stages"), show_default=True)
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
    batch: int,
    lr: float,
    momentum: float,
    weight_decay: float,
    mirror: bool,
    every: int,
    seed: int,
    device: str,
    place: Path,
    folders: tuple[Path, ...],
    output: Output,
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
    from fedglass.execution.machine import device_named
    from fedglass.train.classifiers import ClassifierOptions, from_plan, overridden, start

    wanted = percentages(targets)
    course = ClassifierOptions(lr, momentum, weight_decay, batch, mirror, every, seed)
    options = {"data": data, "model": model, "init": init, "size": size}
    with importable(folders):
        chosen = overridden(None if plan is None else from_plan(plan), options)
        _perform(start(chosen, seed), course, wanted, epochs, place, device_named(device).type, output)


def percentages(text: str) -> list[float]:
    """Return the accuracies of a text that separates them by commas.

    >>> percentages("25, 50,95.3")
    [25.0, 50.0, 95.3]
    """
    try:
        return sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(f"--at must be test accuracies in percent, such as 25,50,75, got {text!r}.") from None


def _perform(
    begin: ClassifierStart,
    course: ClassifierOptions,
    targets: list[float],
    epochs: int,
    place: Path,
    device: str,
    output: Output,
) -> None:
    from contextlib import nullcontext

    from fedglass.cli.options import plain
    from fedglass.cli.progress import SilentTraining, TrainingScreen
    from fedglass.train.classifiers import train_to

    begin.model.to(device)
    with nullcontext(SilentTraining()) if output.quiet else TrainingScreen() as screen:
        screen.line(plain(f"{begin.title}, on {device}"))
        state = train_to(targets, begin, course, epochs, place, screen)
    _say(state, targets, place, output)
    output.answer({"start": begin.title, "device": device, **answer_of(state, targets, place)})
    _refuse_missed(state, targets, epochs, place)


def _say(state: ClassifierTraining, targets: list[float], place: Path, output: Output) -> None:
    from fedglass.train.classifiers import name_of

    for target in targets:
        if (reached := state.reached.get(name_of(target))) is not None:
            path = place / f"{name_of(target)}.safetensors"
            output.say(f"{target:g} %: {path} ({reached:.1f} % of the test images)")


def answer_of(state: ClassifierTraining, targets: list[float], place: Path) -> dict[str, object]:
    """Return the result of a training as JSON; accuracies are in percent."""
    from fedglass.train.classifiers import BEST, name_of

    reached = [
        {"target": target, "accuracy": state.reached[name], "path": str(place / f"{name}.safetensors")}
        for target in targets
        if (name := name_of(target)) in state.reached
    ]
    missed = [target for target in targets if name_of(target) not in state.reached]
    best = {"accuracy": state.best, "path": str(place / BEST)} if state.best >= 0 else None
    return {"exit_code": 3 if missed else 0, "reached": reached, "missed": missed, "best": best, "steps": state.step}


def _refuse_missed(state: ClassifierTraining, targets: list[float], epochs: int, place: Path) -> None:
    from fedglass.train.classifiers import BEST, name_of

    missed = [f"{target:g} %" for target in targets if name_of(target) not in state.reached]
    if missed:
        raise AuditError(
            f"{', '.join(missed)} not reached within {epochs} epochs; the best was {max(state.best, 0):.1f} % "
            f"({place / BEST}): run the same command with more --epochs to continue, or with another --lr and "
            "another -o."
        )
