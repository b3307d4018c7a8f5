"""`fedglass audit` runs a plan or audits a recorded folder; `demo` audits embedded data; `report` writes the page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedglass.cli.options import (
    COUNT,
    DEVICES,
    PATH,
    ExecutorOptions,
    Output,
    announce,
    announce_named,
    code_option,
    executor_options,
    importable,
    model_option,
    output_options,
    public_option,
)
from fedglass.core.errors import UsageError

if TYPE_CHECKING:
    from fedglass.audit.audit import AuditResult, Job
    from fedglass.plan.draft import Draft
    from fedglass.verdict.baseline import Baseline
    from fedglass.verdict.gate import Gate
    from fedglass.verdict.records import Record

baseline_option = click.option(
    "--baseline",
    "accepted",
    type=PATH,
    metavar="FILE",
    help="Accepted findings, each with a reason and a date. They do not count for the exit code (docs/ci.md).",
)
EFFORTS = click.Choice(["quick", "standard", "thorough"])


@click.command(short_help="Run a plan and write the report.")
@click.argument("plan", type=PATH)
@click.option("-o", "--output", "place", type=PATH, help="Output directory.  [default: audits/PLAN]")
@executor_options
@click.option("--device", type=DEVICES, default="auto", show_default=True, help="Where the attacks run.")
@click.option(
    "--resume/--no-resume",
    default=True,
    show_default=True,
    help="Continue a stopped audit, or refuse a directory that already holds records.",
)
@model_option
@click.option(
    "--truth",
    type=PATH,
    help="Folder with the clients' own examples, for scoring a recorded folder.  [default: PLAN-truth]",
)
@click.option("--weights", type=PATH, help="Safetensors file with parameters that clients never send.")
@public_option
@click.option("--effort", type=EFFORTS, help="Time limit of the searches on a recorded folder.  [default: standard]")
@click.option("--minutes", type=click.FloatRange(min=0), help="Time limit in minutes for all searches together.")
@click.option(
    "--all", "everything", is_flag=True, help="Run all searches to their end, even after one has shown a leak."
)
@baseline_option
@code_option
@output_options
@click.pass_context
def audit(
    ctx: click.Context,
    plan: Path,
    place: Path | None,
    execution: ExecutorOptions,
    device: str,
    resume: bool,
    model: str | None,
    truth: Path | None,
    weights: Path | None,
    public: str | None,
    effort: str | None,
    minutes: float | None,
    everything: bool,
    accepted: Path | None,
    folders: tuple[Path, ...],
    output: Output,
) -> None:
    """Run the attacks of PLAN and judge what they recovered.

    Exact attacks, the candidate game and the certificate of each message run first and take seconds.

    PLAN may be the folder of a recorded federation (docs/bundles.md). The audit then chooses the searches itself. It
    stops them when one of them shows a leak, or when their time is over (--minutes, --all).

    The output directory receives records.jsonl (one line per case), summary.json, the reconstructions and
    report.html. If the audit is stopped, even by a power cut, the same command continues it.

    A plan that contains package.module:name runs that code. fedglass prints the name before it imports the code, and
    looks for it only in installed packages and the folders of --code.

    \b
    Examples:
      fedglass audit plan.toml -o out
      fedglass audit plan.toml -o out --workers 4 --device cpu
      fedglass audit plan.toml -o out --executor ray -x address=10.0.0.5:6379
      fedglass audit plan.toml -o out --code . --json
      fedglass audit recorded/ -o out

    \b
    Exit codes: 0 CLEAR, 1 LEAK or EXPOSED, 2 wrong command or plan, 3 INCONCLUSIVE or incomplete.
    """
    from fedglass.verdict.directory import RECORDS

    baseline = _baseline(accepted)
    directory = place or Path("audits") / (plan.resolve().name if plan.is_dir() else plan.stem)
    if not resume and (directory / RECORDS).exists():
        raise UsageError(f"{directory} already holds the records of an audit: leave out --no-resume to continue it.")
    # Before the workers are started, so that they find the same modules.
    ctx.with_resource(importable(folders))
    execution.warm_up(device)
    _refuse_bundles(plan, directory)
    from fedglass.audit.audit import Effort
    from fedglass.plan.compile import compile_plan
    from fedglass.plan.schema import read_plan

    if plan.is_dir():
        drafted = _draft_of(plan, model, truth, weights, public, output)
        job = drafted.job()
        limit = job.effort if effort is None else Effort(effort)
        job = replace(job, effort=limit, minutes=minutes, everything=everything, chosen=frozenset(job.attacks))
    elif any(option is not None for option in (model, truth, weights, public)):
        raise UsageError(
            "--model, --truth, --weights and --public are options for a recorded folder: for a plan, set the keys of "
            "the same names."
        )
    else:
        parsed, text = read_plan(plan)
        announce(parsed, output)
        job = compile_plan(parsed, plan.resolve().parent, text)
        if effort is not None or minutes is not None or everything:
            raise UsageError(
                "--effort, --minutes and --all are options for a recorded folder: the attacks of a plan always run to "
                "their end."
            )
    result, kind = _perform(job, directory, execution, device, output, baseline)
    _say_baseline(baseline, result.records, job.gate, output)
    output.answer({**_as_json(result, kind), **_baseline_as_json(baseline, result.records, job.gate)})
    ctx.exit(result.verdict.exit_code)


def _baseline(path: Path | None) -> Baseline:
    """Return the accepted findings in a file as of today; none without a file."""
    from datetime import UTC, datetime

    from fedglass.verdict.baseline import Baseline, read_baseline

    return Baseline() if path is None else read_baseline(path, datetime.now(UTC).date())


def _baseline_as_json(baseline: Baseline, records: Sequence[Record], gate: Gate) -> dict[str, object]:
    """Return the accepted findings, and what accepts nothing, as JSON; empty without a baseline."""
    from fedglass.verdict.outcomes import outcomes_of

    if not baseline.entries:
        return {}
    outcomes = outcomes_of(records, gate)
    accepted = [
        {"record": o.record.key, "finding": o.kind, "reason": e.reason, "expires": str(e.expires)}
        for o, e in baseline.accepted(outcomes)
    ]
    return {"accepted": accepted, "baseline_remarks": baseline.remarks(outcomes)}


def _say_baseline(baseline: Baseline, records: Sequence[Record], gate: Gate, output: Output) -> None:
    """Print each accepted finding, and each entry that accepts nothing."""
    from fedglass.verdict.outcomes import outcomes_of

    if baseline.entries:
        outcomes = outcomes_of(records, gate)
        for outcome, entry in baseline.accepted(outcomes):
            output.say(f"Accepted until {entry.expires} ({entry.reason}): {outcome.kind}, {outcome.sentence}")
        for remark in baseline.remarks(outcomes):
            output.note(remark)


def _refuse_bundles(plan: Path, directory: Path) -> None:
    """Refuse a bundle as output directory, because bundles are passed on, and a file of a bundle as plan."""
    from fedglass.recordings.format import MANIFEST

    if os.path.isfile(directory / MANIFEST):
        raise UsageError(f"{directory} is a recorded federation: choose another output directory with -o.")
    if plan.suffix in (".json", ".safetensors") and os.path.isfile(plan.parent / MANIFEST):
        raise UsageError(f"{plan} is a file of a recorded federation: give its folder, {plan.parent}.")


def _draft_of(
    bundle: Path, model: str | None, truth: Path | None, weights: Path | None, public: str | None, output: Output
) -> Draft:
    """Return the plan of a bundle, and print what it leaves out."""
    from fedglass.plan.draft import draft

    announce_named(model, public, output)
    drafted = draft(bundle, model=model, truth=truth, weights=weights, public=public)
    if drafted.problem:
        raise UsageError(drafted.problem)
    names = ", ".join(attack.name for attack in drafted.plan.attacks)
    output.note(f"Searches: {names or 'none; only exact attacks run'}.")
    for name, reason in drafted.skipped_attacks.items():
        output.note(f"Skipped: {name}: {reason}")
    for reason in drafted.skipped:
        output.note(f"Not audited: {reason}")
    for contradiction in drafted.sources[0].contradiction_texts():
        output.note(f"Contradiction: {contradiction}")
    return drafted


def _perform(
    job: Job,
    directory: Path,
    execution: ExecutorOptions,
    device: str,
    output: Output,
    baseline: Baseline | None = None,
) -> tuple[AuditResult, str]:
    """Run a job with progress on stderr, print its result as text, and return it with the device."""
    from fedglass.api import run_and_report
    from fedglass.cli.progress import Screen, outcome_in_words, say_result
    from fedglass.execution.machine import device_named

    kind = device_named(device).type
    executor = execution.executor(shared=kind != "cpu")
    with Screen("cases", outcome_in_words, output.quiet) as screen:
        result = run_and_report(
            job,
            directory,
            workers=1,
            device=kind,
            progress=screen,
            executor=executor,
            baseline=baseline or _baseline(None),
        )
    if output.in_words:
        say_result(result, kind)
    return result, kind


def _as_json(result: AuditResult, device: str) -> dict[str, object]:
    """Return the result of an audit as JSON."""
    from fedglass.cli.progress import audit_as_json
    from fedglass.verdict.directory import RECORDS, REPORT, SUMMARY

    summary, directory = result.summary, result.directory
    files = {"records": RECORDS, "summary": SUMMARY, "report": REPORT}
    return {
        **audit_as_json(result.verdict, result.records, summary.planned, summary.judged_by(), summary.attacks),
        "device": device,
        "paths": {"directory": str(directory), **{name: str(directory / file) for name, file in files.items()}},
    }


PEER = "peer"
"""The folder of the second audit, inside that of the first."""


@click.command(short_help="Audit small embedded federations, in half a minute.")
@click.option("-o", "--output", "place", type=PATH, default="demo", show_default=True)
@click.option("--workers", type=COUNT, help="Worker processes.  [default: one per core]")
@click.option("--device", type=DEVICES, default="cpu", show_default=True, help="Where the attacks run.")
@output_options
def demo(place: Path, workers: int | None, device: str, output: Output) -> None:
    """Audit embedded pictures and characters.

    The first audit shows what a server reads from single gradients and from updates of federated averaging. The second
    shows what a client reads about its peers from two global models, sharpened by a small diffusion model.

    The clients have no defence, so the attacks succeed and the verdict is LEAK. The demo still exits with 0.

    \b
    Example:
      fedglass demo -o demo
    """
    execution = ExecutorOptions(workers=workers)
    execution.warm_up(device)
    from fedglass.cli.plans import DEMO, PEER_DEMO

    server, kind = _audited(DEMO, place, execution, device, output, stops=True)
    peer, _ = _audited(PEER_DEMO, place / PEER, execution, device, output)
    output.answer({**_as_json(server, kind), PEER: _as_json(peer, kind)})


def _audited(
    plan: str, place: Path, execution: ExecutorOptions, device: str, output: Output, *, stops: bool = False
) -> tuple[AuditResult, str]:
    """Audit a plan; with `stops`, searches run only if exact attacks have shown no leak."""
    from fedglass.plan.compile import compile_plan
    from fedglass.plan.schema import parse_plan

    job = compile_plan(parse_plan(plan), Path.cwd(), plan)
    job = replace(job, chosen=frozenset(job.attacks)) if stops else job
    result, kind = _perform(job, place, execution, device, output)
    if result.verdict.exit_code:
        output.say(f"In a pipeline, `fedglass audit` would exit with {result.verdict.exit_code} here.")
    return result, kind


TITLES = {"report": "Report", "junit": "JUnit XML", "sarif": "SARIF", "markdown": "Markdown"}


@click.command(short_help="Write the report of an audit directory, also for CI systems.")
@click.argument("directory", type=PATH)
@click.option("-o", "--output", "page", type=PATH, help="File of the page.  [default: DIRECTORY/report.html]")
@click.option("--junit", type=PATH, metavar="FILE", help="Also write JUnit XML.")
@click.option("--sarif", type=PATH, metavar="FILE", help="Also write SARIF 2.1.0.")
@click.option("--markdown", type=PATH, metavar="FILE", help="Also write a summary in Markdown, without pictures.")
@click.option("--plan", type=PATH, metavar="FILE", help="Plan file in your repository, the place of SARIF's findings.")
@baseline_option
@output_options
def report(
    directory: Path,
    page: Path | None,
    junit: Path | None,
    sarif: Path | None,
    markdown: Path | None,
    plan: Path | None,
    accepted: Path | None,
    output: Output,
) -> None:
    """Write report.html from the records in DIRECTORY: one self-contained page that works offline.

    An unfinished audit can be reported too; its page says that it is incomplete. JUnit XML has a test case for each
    record: a leak is a failure, a failed or inconclusive case is an error. SARIF has a rule for each kind of finding
    and of doubt. The Markdown is for the summary page of a CI job (docs/ci.md).

    \b
    Examples:
      fedglass report out
      fedglass report out -o /tmp/for-the-board.html
      fedglass report out --junit out/junit.xml --sarif out/fedglass.sarif --plan plan.toml
      fedglass report out --markdown out/summary.md --baseline accepted.toml
    """
    from fedglass.cli.progress import audit_as_json
    from fedglass.report.html import judged_by, records_of, write_report
    from fedglass.report.markdown import write_markdown
    from fedglass.report.pipelines import write_junit, write_sarif
    from fedglass.verdict.directory import PLAN
    from fedglass.verdict.judge import judge
    from fedglass.verdict.summary import by_attack

    baseline = _baseline(accepted)
    written = {"report": write_report(directory, page, baseline)}
    if junit is not None:
        written["junit"] = write_junit(directory, junit, baseline)
    if sarif is not None:
        written["sarif"] = write_sarif(directory, sarif, baseline, PLAN if plan is None else _in_repository(plan))
    if markdown is not None:
        written["markdown"] = write_markdown(directory, markdown, baseline)
    for name, path in written.items():
        output.say(f"{TITLES[name]}: {path}")
    records = records_of(directory)
    gate, missing, _ = judged_by(directory, len(records))
    _say_baseline(baseline, records, gate, output)
    if output.as_json:
        planned = None if missing is None else len(records) + missing
        verdict = baseline.apply(judge(records, gate, missing), records, gate, missing)
        answer = audit_as_json(verdict, records, planned, gate, by_attack(records, gate))
        answer |= _baseline_as_json(baseline, records, gate)
        output.answer({**answer, "paths": {name: str(path) for name, path in written.items()}})


def _in_repository(plan: Path) -> str:
    """Return a path relative to the current folder, with slashes; of a file elsewhere its name alone."""
    path = plan.resolve()
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else path.name
