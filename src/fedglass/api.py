"""The public API: an audit in a few lines of Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedglass.attack.best_of import AnyAttack
from fedglass.audit.audit import AuditResult, Job, rehearse, run
from fedglass.audit.play import play_case
from fedglass.audit.public_data import Public
from fedglass.audit.recorded import Recorded
from fedglass.audit.simulated import Simulated, Source
from fedglass.audit.target import AuditProgress
from fedglass.core.errors import UsageError
from fedglass.core.registry import names
from fedglass.execution.executor import Executor
from fedglass.execution.fork_server import start_fork_server
from fedglass.execution.machine import device_named
from fedglass.execution.processes import executor_for
from fedglass.federation.federation import Federation
from fedglass.federation.transcript import Transcript
from fedglass.federation.truth import Examples, Truths
from fedglass.federation.views import Knows, ServerView, View
from fedglass.metrics.catalogue import DEFAULT_METRICS
from fedglass.plan.compile import read_job
from fedglass.recipes import recipe
from fedglass.report.audit_page import write_report
from fedglass.verdict.gate import Gate
from fedglass.verdict.outcomes import NO_BASELINE, FindingBaseline, outcomes_of

PLACE = Path("audits")
"""Parent folder of audits without a directory of their own."""

Attacks = Mapping[str, AnyAttack] | Iterable[str]


@dataclass(eq=False)
class Audit:
    """An audit of a federation: it runs attacks and judges what they recovered.

    The federation is simulated, or the transcript of a real one, with its private data if they are known. `attacks` are
    names of recipes, or attacks under your own names. `run` stores its records in a directory and continues there if it
    was stopped. `report` writes the page of the last run.
    """

    federation: Federation | Transcript
    attacks: Attacks
    views: Sequence[View] = (ServerView(),)
    knows: Knows = field(default_factory=Knows)
    rounds: int = 1
    metrics: Sequence[str] = DEFAULT_METRICS
    gate: Gate = field(default_factory=Gate)
    repeats: int = 1
    seed: int = 0
    truths: Truths | None = None
    """Private data of a transcript; a federation has its own."""
    public: Examples | None = None
    """Similar public data, for blind guesses and the candidate game."""

    def __post_init__(self) -> None:
        source = self._source()
        attacks, metrics = composed(self.attacks), tuple(self.metrics)
        self._job = Job([source], attacks, metrics, self.gate, self.repeats, self.seed)
        rehearse([source], attacks)
        self._result: AuditResult | None = None

    def _source(self) -> Source:
        public = None if self.public is None else Public.given(self.public.images, self.public.labels)
        if isinstance(self.federation, Transcript):
            return Recorded(self.federation, self.truths, tuple(self.views), self.knows, public=public)
        return Simulated(self.federation, self.rounds, tuple(self.views), self.knows, public=public)

    def run(
        self,
        directory: str | Path | None = None,
        *,
        workers: int = 1,
        device: str = "cpu",
        progress: AuditProgress | None = None,
        executor: Executor | None = None,
    ) -> AuditResult:
        """Run all cases that have no result yet, and write the report into the directory.

        With more than one worker, put the calling script under `if __name__ == "__main__":`. An `executor` of your own
        replaces the `workers` processes on this machine.
        """
        place = PLACE / self._job.digest[:12] if directory is None else Path(directory)
        self._result = run_and_report(
            self._job, place, workers=workers, device=device, progress=progress, executor=executor
        )
        return self._result

    def report(self, path: str | Path) -> Path:
        """Write the page of the last run as one self-contained file, and return its path."""
        if self._result is None:
            raise UsageError("There is nothing to report yet: call run() first.")
        return write_report(self._result.directory, Path(path))


def audit_plan(
    plan: str | Path,
    directory: str | Path,
    *,
    workers: int = 1,
    device: str = "cpu",
    progress: AuditProgress | None = None,
    executor: Executor | None = None,
) -> AuditResult:
    """Audit what a plan file describes, as `fedglass audit` does."""
    job, place = read_job(Path(plan)), Path(directory)
    return run_and_report(job, place, workers=workers, device=device, progress=progress, executor=executor)


def run_and_report(
    job: Job,
    directory: Path,
    *,
    workers: int,
    device: str,
    progress: AuditProgress | None,
    executor: Executor | None = None,
    baseline: FindingBaseline = NO_BASELINE,
) -> AuditResult:
    """Run a job, and write its page next to its records; findings in the baseline do not count for the exit code."""
    if workers > 1 and executor is None:
        start_fork_server(play_case.__module__)  # imports while the clients train
    chosen = executor_for(workers) if executor is None else executor
    result = run(job, directory, executor=chosen, device=device_named(device), progress=progress)
    write_report(directory, baseline=baseline)
    missing = max(0, result.summary.planned - len(result.records))
    return replace(
        result, verdict=baseline.apply(result.verdict, outcomes_of(result.records, job.gate), job.gate, missing)
    )


def composed(attacks: Attacks) -> dict[str, AnyAttack]:
    """Return attacks by their names in the report.

    >>> list(composed(["idlg", "dlg"]))
    ['idlg', 'dlg']
    """
    if isinstance(attacks, Mapping):
        return dict(attacks)
    if isinstance(attacks, str) or not all(isinstance(name, str) for name in attacks):
        raise UsageError(
            "attacks must be a list of names of recipes, or a mapping from your own names to attacks, such as "
            f'{{"strong": recipe("idlg", restarts=4)}}; known recipes: {", ".join(names("attacks"))}.'
        )
    return {name: recipe(name) for name in attacks}
