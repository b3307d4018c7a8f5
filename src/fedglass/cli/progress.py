"""Progress and results of audits and trainings: on the screen, and as JSON (docs/json.md has an example of each)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column
from rich.text import Text

from fedglass.advise.run import AdviceProgress
from fedglass.advise.tried import TriedSetting
from fedglass.audit.audit import AuditResult
from fedglass.audit.cost import duration
from fedglass.audit.target import Case
from fedglass.cli.options import plain
from fedglass.core.metric_scale import scale_of
from fedglass.verdict.collect_doubts import flag as flag_of
from fedglass.verdict.collect_doubts import flags_of
from fedglass.verdict.directory import REPORT
from fedglass.verdict.gate import Gate, is_mute
from fedglass.verdict.images import ImageScores
from fedglass.verdict.judge import Verdict
from fedglass.verdict.records import Record
from fedglass.verdict.summary import AttackFigures

STYLES = {
    "leak": "bold red",
    "exposed": "bold red",
    "clear": "bold green",
    "inconclusive": "bold yellow",
    "incomplete": "bold yellow",
}


FAIR_SHARE = 0.1
"""Share of the work after which its pace says more about the rest than an estimate does."""
SILENT_SECONDS = 30.0


class Bars:
    """Progress bars on stderr with spinner, text, elapsed and remaining time; they disappear at the end.

    If stderr is not a terminal, a line in every half minute says how far the work is.
    """

    def __init__(self, quiet: bool, seconds: float | None = None) -> None:
        """With `quiet`, show nothing; `seconds` is the estimated time of everything."""
        self.seconds, self.begun = seconds, time.monotonic()
        self.spoken = self.begun
        self.console = Console(stderr=True, highlight=False, quiet=quiet)
        column = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        text = TextColumn("{task.description}", markup=False, table_column=column)
        parts = (SpinnerColumn(), text, BarColumn(bar_width=24), TimeElapsedColumn(), _Remaining(self))
        self.bars = Progress(*parts, console=self.console, transient=True, expand=True, disable=quiet)

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.bars.stop()

    def line(self, text: str, style: str = "") -> None:
        """Print a line that stays."""
        self.console.print(Text(plain(text), style=style), soft_wrap=True)

    def share(self) -> float:
        """Return the share of the work that is done."""
        task = next(iter(self.bars.tasks), None)
        return 0.0 if task is None or not task.total else task.completed / task.total

    def remaining(self) -> float | None:
        """Return the seconds that are left: by the pace so far, and by the estimate before there is one."""
        passed, share = time.monotonic() - self.begun, self.share()
        if share >= FAIR_SHARE or (share > 0 and self.seconds is None):
            return passed * (1 - share) / share
        return None if self.seconds is None else max(0.0, self.seconds - passed)

    def speak(self) -> None:
        """Print a line about the progress, if nobody sees the bars and the last line is half a minute old."""
        now = time.monotonic()
        if self.console.is_terminal or now - self.spoken < SILENT_SECONDS:
            return
        self.spoken, left = now, self.remaining()
        rest = "" if left is None else f", about {duration(left)} left"
        self.line(f"{self.share():.0%} done after {duration(now - self.begun)}{rest}.", "dim")


class _Remaining(ProgressColumn):
    """The remaining time of everything, next to the first bar."""

    def __init__(self, bars: Bars) -> None:
        super().__init__()
        self.bars = bars

    def render(self, task: Task) -> Text:
        left = self.bars.remaining() if task.id == 0 else task.time_remaining
        return Text("" if left is None else f"{duration(left)} left", style="progress.remaining")


class Screen(Bars):
    """Progress bars on stderr: one for all cases and one for each that is running.

    If stderr is not a terminal, as in a pipeline, every finished case leaves a line, and so does every half minute.
    """

    def __init__(
        self, cases: str, in_words: Callable[[Record], str], quiet: bool = False, seconds: float | None = None
    ) -> None:
        """Show cases under the name `cases`; `in_words` describes a record in a phrase."""
        super().__init__(quiet, seconds)
        self.cases, self.in_words = cases, in_words
        self.all_cases: TaskID | None = None
        self.running: dict[str, TaskID] = {}
        self.training: dict[str, TaskID] = {}

    def planned(self, cases: int, done: int) -> None:
        if done:
            self.line(f"{done} of {cases} {self.cases} are done already.", "dim")
        if self.all_cases is None:
            self.all_cases = self.bars.add_task(f"{cases} {self.cases}", total=cases, completed=done)
        else:  # searches are added after the cases that always run
            self.bars.update(self.all_cases, total=cases, completed=done, description=f"{cases} {self.cases}")

    def trained(self, name: str, done: int, total: int) -> None:
        if name not in self.training:
            self.training[name] = self.bars.add_task(plain(f"training {name}".rstrip()), total=total)
        self.bars.update(self.training[name], completed=done, visible=done < total)
        self.speak()

    def started(self, case: Case[Any]) -> None:
        self.running[case.key] = self.bars.add_task(plain(case.title), total=None)

    def moved(self, case: Case[Any], done: int, total: int) -> None:
        self.bars.update(self.running[case.key], completed=done, total=total)
        self.speak()

    def finished(self, case: Case[Any], record: Record) -> None:
        self.bars.remove_task(self.running.pop(case.key))
        if self.all_cases is not None:
            self.bars.advance(self.all_cases)
        self.line(f"{case.title}: {self.in_words(record)}", "red" if record.status == "failed" else "")
        self.speak()

    def decided(self, verdict: Verdict) -> None:
        self.line(f"{verdict.title.upper()}: {verdict.lead} Further cases cannot clear this.", "bold red")

    def share(self) -> float:
        """Return the share of the cases that is done, with the parts of those that are running."""
        task = None if self.all_cases is None else self.bars.tasks[self.bars.task_ids.index(self.all_cases)]
        if task is None or not task.total:
            return 0.0
        running = [t for t in self.bars.tasks if t.id in self.running.values() and t.total]
        return min(1.0, (task.completed + sum(t.completed / (t.total or 1) for t in running)) / task.total)


class AdviceScreen(Screen, AdviceProgress):
    """The same for the audits of an advice, below a bar for its settings; every finished setting leaves a line."""

    def __init__(self, quiet: bool) -> None:
        super().__init__("cases", outcome_in_words, quiet)
        self.settings: TaskID | None = None
        self.most_done = 0.0

    def setting_started(self, name: str, number: int, most: int) -> None:
        text = plain(f"setting {number} of at most {most}: {name}")
        if self.settings is None:
            self.settings = self.bars.add_task(text, total=most, completed=number - 1)
        if self.all_cases is not None:
            self.bars.reset(self.all_cases, total=None)
        self.bars.update(self.settings, description=text, total=most, completed=number - 1)

    def share(self) -> float:
        """Return the share of the settings that is done, with the part of the one that is audited; it never falls."""
        task = None if self.settings is None else self.bars.tasks[self.bars.task_ids.index(self.settings)]
        if task is not None and task.total:
            self.most_done = max(self.most_done, (task.completed + super().share()) / task.total)
        return self.most_done

    def setting_finished(self, setting: TriedSetting) -> None:
        self.line(f"{setting.name}: {setting.state.upper()}, accuracy {setting.accuracy}")
        for task in self.training.values():
            self.bars.remove_task(task)
        self.training.clear()

    def decided(self, verdict: Verdict) -> None:
        """Say nothing: the line of the setting has its verdict."""

    def planned(self, cases: int, done: int) -> None:
        if self.all_cases is None:
            self.all_cases = self.bars.add_task("")
        self.bars.reset(self.all_cases, total=cases, completed=done, description=f"{cases} {self.cases}")

    def finished(self, case: Case[Any], record: Record) -> None:
        self.bars.remove_task(self.running.pop(case.key))
        if self.all_cases is not None:
            self.bars.advance(self.all_cases)
        if record.status == "failed":
            self.line(f"{case.title}: {self.in_words(record)}", "red")


def outcome_in_words(record: Record) -> str:
    """Describe one record in a phrase: its best scores and its doubts."""
    if record.status == "failed":
        return f"failed after {record.seconds:.0f} s ({record.error})"
    scores = [
        f"{scale_of(name).title} {scale_of(name).show(scale_of(name).best(values))}"
        for name in list(record.metrics)[:2]
        # Without a message the scores are those of a plain grey image.
        if not is_mute(record)
        and (values := [v for v in ImageScores.of(record).values(name, scale_of(name)) if v is not None])
    ]
    flags = [flag.name for flag in map(flag_of, record.doubts) if flag.severity != "info"]
    noted = f" [{', '.join(flags)}]" if flags else ""
    return f"{'best ' + ', '.join(scores) if scores else _evidence_in_words(record)}, {record.seconds:.0f} s{noted}"


def _evidence_in_words(record: Record) -> str:
    """Describe a game, a certificate or an exact attack in a phrase."""
    if record.game is not None:
        named = round(record.game.top1 * record.game.records)
        return f"{named} of {record.game.records} records named among {record.game.candidates}"
    if record.certificate is not None:
        return f"success at most {record.certificate.worst:.2%}"
    if record.kind == "attack":
        return "nothing was read" if not record.labels_recovered else "not scored"
    return "no certificate" if record.kind == "certificate" else "not played"


def utility_in_words(records: Sequence[Record], *, simulated: bool) -> list[str]:
    """Describe the defences of each federation and the quality of its model, as far as they are known.

    Only a simulated federation can be given test examples.
    """
    lines = []
    for record in records:
        figures = ", ".join(f"{name} {value:.1%}" for name, value in record.utility.items() if value is not None)
        if figures or record.defences:
            cost = figures or ("not measured, set federation.test_examples" if simulated else "")
            lines.append(" ".join([*(record.defences or ["No defence."]), *([f"Utility: {cost}."] if cost else [])]))
    return list(dict.fromkeys(lines))


def say_result(result: AuditResult, device: str, *, simulated: bool) -> None:
    """Print the verdict, its doubts and the path of the report on stdout."""
    console = Console(highlight=False)
    verdict = result.verdict
    console.print(Text(verdict.title.upper(), style=STYLES[verdict.state]))
    next_step = [f"Next step: {verdict.step}"] if verdict.step else []
    utility = utility_in_words(result.records, simulated=simulated)
    for line in (verdict.sentence, *verdict.by_value, verdict.interval, *verdict.limits, *next_step, *utility):
        console.print(Text(plain(line)), soft_wrap=True)
    gate = result.summary.judged_by()
    counts = Counter(flag.name for record in result.records for flag in flags_of(record, gate))
    if counts:
        names = ", ".join(f"{name} ({count})" for name, count in counts.most_common())
        console.print(Text(f"Doubts, explained in the report: {names}", style="dim"), soft_wrap=True)
    console.print(Text(f"Device: {device}", style="dim"))
    console.print(Text(plain(f"Report: {result.directory / REPORT}")), soft_wrap=True)


class TrainingScreen(Bars):
    """A progress bar on stderr; if that is not a terminal, every saved checkpoint leaves a line."""

    def __init__(self, digits: int, quiet: bool) -> None:
        """Show so many digits of the loss."""
        super().__init__(quiet)
        self.digits, self.tested = digits, ""
        self.task = self.bars.add_task("", total=1.0, visible=False)

    def moved(self, step: int, share: float, loss: float) -> None:
        text = f"step {step}, loss {loss:.{self.digits}f}{self.tested}"
        self.bars.update(self.task, completed=share, description=text, visible=True)

    def judged(self, step: int, accuracy: float, saved: Sequence[Path]) -> None:
        self.tested = f", test accuracy {accuracy:.1f} %"
        for path in saved:
            if path.name.startswith("acc"):
                self.line(f"step {step}: {accuracy:.1f} % of the test images, saved as {path}")


def audit_as_json(
    verdict: Verdict, records: Sequence[Record], planned: int | None, gate: Gate, groups: Sequence[AttackFigures]
) -> dict[str, Any]:
    """Return the verdict with the exit code for a pipeline, numbers of cases, doubts, limits and figures as JSON.

    `planned` is None if it is unknown. The attack that leaked most is the first of the `groups`.
    """
    interval = {"at_least": verdict.at_least, "at_most": verdict.at_most, "sentence": verdict.interval}
    failed = sum(record.status == "failed" for record in records)
    counts = Counter((flag.kind, flag.severity) for record in records for flag in flags_of(record, gate))
    names = ("attack", "cases", "failed", "images", "recovered", "oracle")
    return {
        "state": verdict.state,
        "exit_code": verdict.exit_code,
        "sentence": verdict.sentence,
        "interval": interval,
        "next_step": verdict.step,
        "by_value": list(verdict.by_value),
        "limits": list(verdict.limits),
        "cases": {"planned": planned, "run": len(records), "failed": failed},
        "doubts": [{"kind": kind, "severity": severity, "cases": n} for (kind, severity), n in counts.most_common()],
        "gate": {field.name: getattr(gate, field.name) for field in fields(gate) if field.compare},
        "attacks": [{name: getattr(group, name) for name in names} for group in groups],
    }
