"""`fedglass train`: networks at given test accuracies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedglass.cli.code import code_option, importable
from fedglass.cli.output import Output, answering
from fedglass.core.errors import AuditError, UsageError

if TYPE_CHECKING:
    from fedglass.train.checkpoints import Course, State
    from fedglass.train.start import Start


@click.command(short_help="Train a model and keep it at given test accuracies.")
@click.argument("plan", required=False, type=click.Path(path_type=Path))
@click.option("--data", help="As in a plan, such as cifar10:PATH; `fedglass list` has all.  [default: the plan's]")
@click.option("--model", help="A model of `fedglass list`, or package.module:factory.  [default: the plan's]")
@click.option(
    "--init", help="Initial weights, such as kaiming_normal, file:PATH or transfer:PATH.  [default: the plan's]"
)
@click.option("--size", type=click.IntRange(1, 2048), help="Side that images are brought to.  [default: the plan's]")
@click.option("--at", "targets", default="25,50,75", show_default=True, help="Test accuracies in percent.")
@click.option("--epochs", type=click.IntRange(1), default=30, show_default=True, help="At most.")
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
@answering
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
    """Train a model and save its weights when they first reach given test accuracies.

    Model, data and initial weights are those of PLAN's federation, or of the options. The directory receives
    acc25.safetensors and so on, and best.safetensors; a plan starts from one by
    init = "file:stages/acc25.safetensors". If the training is stopped, even by a power cut, the same command
    continues where it was; more --epochs or higher accuracies of --at continue it too.

    \b
    Examples:
      fedglass train --model resnet18 --data cifar10:cifar-10-batches-bin --init kaiming_normal --at 25,50,75
      fedglass train plan.toml --at 60 -o stages
      fedglass train plan.toml --at 60 -o stages --json
    """
    from fedglass.audit.machine import device_named
    from fedglass.train.checkpoints import Course
    from fedglass.train.start import from_plan, overridden, start

    wanted = percentages(targets)
    course = Course(lr, momentum, weight_decay, batch, mirror, every, seed)
    options = {"data": data, "model": model, "init": init, "size": size}
    with importable(folders):
        chosen = overridden(None if plan is None else from_plan(plan), options)
        _perform(start(chosen, seed), course, wanted, epochs, place, device_named(device).type, output)


def percentages(text: str) -> list[float]:
    """Accuracies separated by commas.

    >>> percentages("25, 50,95.3")
    [25.0, 50.0, 95.3]
    """
    try:
        return sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(f"--at must be test accuracies in percent, such as 25,50,75, got {text!r}.") from None


def _perform(
    begin: Start, course: Course, targets: list[float], epochs: int, place: Path, device: str, output: Output
) -> None:
    from contextlib import nullcontext

    from fedglass.cli.plain import plain
    from fedglass.cli.trained import Silent, TrainingScreen
    from fedglass.train.checkpoints import train_to

    begin.model.to(device)
    with nullcontext(Silent()) if output.quiet else TrainingScreen() as screen:
        screen.line(plain(f"{begin.words}, on {device}"))
        state = train_to(targets, begin, course, epochs, place, screen)
    _say(state, targets, place, output)
    output.answer({"start": begin.words, "device": device, **answer_of(state, targets, place)})
    _refuse_missed(state, targets, epochs, place)


def _say(state: State, targets: list[float], place: Path, output: Output) -> None:
    from fedglass.train.checkpoints import name_of

    for target in targets:
        if (reached := state.reached.get(name_of(target))) is not None:
            path = place / f"{name_of(target)}.safetensors"
            output.say(f"{target:g} %: {path} ({reached:.1f} % of the test images)")


def answer_of(state: State, targets: list[float], place: Path) -> dict[str, object]:
    """What came of a training as JSON has it; accuracies in percent."""
    from fedglass.train.checkpoints import BEST, name_of

    reached = [
        {"target": target, "accuracy": state.reached[name], "path": str(place / f"{name}.safetensors")}
        for target in targets
        if (name := name_of(target)) in state.reached
    ]
    missed = [target for target in targets if name_of(target) not in state.reached]
    best = {"accuracy": state.best, "path": str(place / BEST)} if state.best >= 0 else None
    return {"exit_code": 3 if missed else 0, "reached": reached, "missed": missed, "best": best, "steps": state.step}


def _refuse_missed(state: State, targets: list[float], epochs: int, place: Path) -> None:
    from fedglass.train.checkpoints import BEST, name_of

    missed = [f"{target:g} %" for target in targets if name_of(target) not in state.reached]
    if missed:
        raise AuditError(
            f"{', '.join(missed)} not reached within {epochs} epochs, the best was {max(state.best, 0):.1f} % "
            f"({place / BEST}): run the same command with more --epochs, it continues, or with another --lr and "
            "another -o."
        )
