"""The progress bars of every long command."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console


class Bars:
    """Spinner, words cut to the width that is left, bar, elapsed and remaining time; on stderr, gone when done."""

    def __init__(self, console: Console | None = None) -> None:
        # Imported here: `fedglass --help` imports this module and shows no bar.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.table import Column

        self.console = console or Console(stderr=True, highlight=False)
        words = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        text = TextColumn("{task.description}", markup=False, table_column=words)
        parts = (SpinnerColumn(), text, BarColumn(bar_width=24), TimeElapsedColumn(), TimeRemainingColumn())
        self.bars = Progress(*parts, console=self.console, transient=True, expand=True)

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()
