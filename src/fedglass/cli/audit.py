"""`fedglass audit` runs a plan or audits a recorded folder; `demo` audits embedded data."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedglass.cli.options import (
    COUNT,
    PATH,
    PROCESSES,
    ExecutorOptions,
    Output,
    announce,
    announce_named,
    code_option,
    device_option,
    executor_options,
    importable,
    model_option,
    output_options,
    public_option,
)
from fedglass.cli.report import baseline_as_json, baseline_of, baseline_option, note_changed, say_baseline
from fedglass.core.errors import UsageError

if TYPE_CHECKING:
    from fedglass.audit.audit import AuditResult, Job
    from fedglass.plan.draft import Draft
    from fedglass.verdict.outcomes import FindingBaseline

EFFORTS = click.Choice(["quick", "standard", "thorough"])


@click.command(short_help="Run a plan and write the report.")
@click.argument("plan", type=PATH)
@click.option("-o", "--output", "place", type=PATH, help="Output directory.  [default: audits/PLAN]")
@executor_options
@device_option()
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
@click.option(
    "--minutes",
    type=click.FloatRange(min=0),
    help="Time limit in minutes for all searches together. The same command without it continues.",
)
@click.option("--dry-run", is_flag=True, help="Print the threat model and the estimated time, and run nothing.")
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
    dry_run: bool,
    everything: bool,
    accepted: Path | None,
    folders: tuple[Path, ...],
    output: Output,
) -> None:
    """Run the attacks of PLAN and judge what they recovered.

    Exact attacks, the candidate game and the certificate of each message run first. They take seconds for small
    networks and few examples, and minutes for thousands of examples; --minutes does not limit them.

    PLAN may be the folder of a recorded federation (docs/bundles.md). The audit then chooses the searches itself. It
    stops them when one of them shows a leak, or when their time is over (--minutes, --all).

    Searches of a plan run to their end, unless --minutes limits them. --dry-run estimates their time. Findings in a
    --baseline do not count for the exit code (docs/ci.md).

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
    from fedglass.verdict.outcomes import outcomes_of

    baseline = baseline_of(accepted)
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
        if effort is not None or everything:
            raise UsageError(
                "--effort and --all are options for a recorded folder: the attacks of a plan run to their end, unless "
                "--minutes limits them."
            )
        job = replace(job, minutes=minutes)
    if minutes == 0:
        output.note(
            "With --minutes 0 no search runs: only exact attacks, the candidate game and the check of messages."
        )
    if dry_run:
        _show_dry_run(job, execution, output)
        return
    result, kind = _perform(job, directory, execution, device, output, baseline)
    outcomes = outcomes_of(result.records, job.gate)
    say_baseline(baseline, outcomes, output)
    output.answer({**_as_json(result, kind), **baseline_as_json(baseline, outcomes)})
    ctx.exit(result.verdict.exit_code)


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
    baseline: FindingBaseline,
) -> tuple[AuditResult, str]:
    """Run a job with progress on stderr, print its result as text, and return it with the device."""
    from fedglass.api import run_and_report
    from fedglass.audit.cost import estimated_seconds
    from fedglass.audit.simulated import Simulated
    from fedglass.cli.progress import Screen, outcome_in_words, say_result
    from fedglass.execution.machine import device_named

    note_changed(directory, output, "they do not count, and their cases run again")
    kind = str(device_named(device))
    executor = execution.executor(shared=kind != "cpu")
    unknown = output.quiet or kind != "cpu" or execution.name != PROCESSES  # gradients are timed on this processor
    seconds = None if unknown else estimated_seconds(job, execution.count())
    with Screen("cases", outcome_in_words, output.quiet, seconds) as screen:
        result = run_and_report(
            job,
            directory,
            workers=1,
            device=kind,
            progress=screen,
            executor=executor,
            baseline=baseline,
        )
    if output.in_words:
        say_result(result, kind, simulated=any(isinstance(source, Simulated) for source in job.sources))
    return result, kind


def _show_dry_run(job: Job, execution: ExecutorOptions, output: Output) -> None:
    """Print what would run and how long it takes."""
    from fedglass.audit.audit import threat_model
    from fedglass.audit.cost import describe_time, time_as_json
    from fedglass.cli.plans import show_sections

    sections = [*threat_model(job), ("Time", describe_time(job, execution.count()))]
    if output.in_words:
        show_sections(sections)
    output.answer({"sections": [{"title": t, "lines": list(ls)} for t, ls in sections], "time": time_as_json(job)})


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
@device_option(default="cpu")
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
    result, kind = _perform(job, place, execution, device, output, baseline_of(None))
    if result.verdict.exit_code:
        output.say(f"In a pipeline, `fedglass audit` would exit with {result.verdict.exit_code} here.")
    return result, kind
