"""What the commands that train models of images share: data, the folder, and how long and how they train."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedglass.cli.bars import Bars
from fedglass.cli.code import code_option, importable

if TYPE_CHECKING:
    from fedglass.data.dataset import Dataset
    from fedglass.diffusion.training import Course, Silence


class ShareScreen(Bars):
    """A progress bar on stderr over the share of the way."""

    def moved(self, step: int, share: float, loss: float) -> None:
        if not self.bars.task_ids:
            self.bars.add_task("", total=1.0)
        self.bars.update(self.bars.task_ids[0], completed=share, description=f"step {step}, loss {loss:.4f}")


@dataclass(frozen=True)
class Request:
    """The images to learn from, the folder of the model, and the course."""

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

    def course(self, usual_minutes: float) -> Course:
        from fedglass.diffusion.training import Course

        ends = self.minutes if self.minutes is not None or self.steps is not None else usual_minutes
        return Course(
            steps=self.steps, minutes=ends, lr=self.lr, batch_size=self.batch, mirror=self.mirror, seed=self.seed
        )

    def images(self) -> Dataset:
        from fedglass.data.catalogue import load

        with importable(self.folders):
            return load(self.data, split=self.split, size=self.side)


@contextmanager
def watched(quiet: bool) -> Iterator[ShareScreen | Silence]:
    """Who hears of the training: a progress bar, or nobody."""
    from fedglass.diffusion.training import Silence

    if quiet:
        yield Silence()
    else:
        with ShareScreen() as screen:
            yield screen


def training(usual_minutes: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the common options, which it receives as its argument `request`."""
    split = click.Choice(["train", "test"])
    least = f"At most.  [default: {usual_minutes}, without --steps]"
    options = [
        click.argument("data"),
        click.option(
            "-o", "--output", "place", type=click.Path(path_type=Path), required=True, help="The folder of the model."
        ),
        click.option("--minutes", type=click.FloatRange(0, min_open=True), help=least),
        click.option("--steps", type=click.IntRange(1), help="At most; with steps alone the result can be repeated."),
        click.option(
            "--side", type=click.IntRange(4, 512), help="Side that images are brought to.  [default: their own]"
        ),
        click.option("--split", type=split, default="train", show_default=True),
        click.option("--lr", type=float, default=2e-3, show_default=True),
        click.option("--batch", type=click.IntRange(1, 4096), default=32, show_default=True),
        click.option("--mirror", is_flag=True, help="Mirror images at random."),
        click.option("--seed", type=int, default=0, show_default=True),
        code_option,
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def wrapped(*arguments: Any, **given: Any) -> None:
            common = {name: given.pop(name) for name in Request.__dataclass_fields__}
            command(*arguments, request=Request(**common), **given)

        made: Callable[..., None] = wrapped
        for option in reversed(options):
            made = option(made)
        return made

    return decorate
