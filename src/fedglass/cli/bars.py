"""The progress bars of every long command."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column


def progress_bars(console: Console) -> Progress:
    """Spinner, words cut to the width that is left, bar, elapsed and remaining time; gone when they are done."""
    words = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    text = TextColumn("{task.description}", markup=False, table_column=words)
    parts = (SpinnerColumn(), text, BarColumn(bar_width=24), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*parts, console=console, transient=True, expand=True)
