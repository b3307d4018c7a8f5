"""What the user sees of a training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import TaskID
from rich.text import Text

from fedglass.cli.bars import Bars
from fedglass.cli.plain import plain


class Silent:
    """Says nothing."""

    def line(self, text: str) -> None: ...

    def moved(self, step: int, steps: int, loss: float) -> None: ...

    def judged(self, step: int, accuracy: float, saved: Sequence[Path]) -> None: ...


class TrainingScreen(Bars):
    """A progress bar on stderr; where that is no terminal, every saved checkpoint leaves a line."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console)
        self.task: TaskID | None = None
        self.tested = ""

    def line(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)

    def moved(self, step: int, steps: int, loss: float) -> None:
        if self.task is None:
            self.task = self.bars.add_task("", total=steps)
        said = f"step {step} of {steps}, loss {loss:.3f}{self.tested}"
        self.bars.update(self.task, completed=step, total=steps, description=said)

    def judged(self, step: int, accuracy: float, saved: Sequence[Path]) -> None:
        self.tested = f", test accuracy {accuracy:.1f} %"
        for path in saved:
            if path.name.startswith("acc"):
                self.line(plain(f"step {step}: {accuracy:.1f} % of the test images, saved as {path}"))
