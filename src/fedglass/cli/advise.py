"""`fedglass advise` looks for the defence, and its strength, that meets the gate at the best accuracy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from fedglass.cli.options import (
    PATH,
    ExecutorOptions,
    Output,
    announce,
    code_arguments,
    code_option,
    device_option,
    executor_options,
    importable,
    output_options,
)

RECOMMENDED, ANSWER = "recommended.toml", "advice.json"


@click.command(short_help="Find the defence and the strength that meet the gate.")
@click.argument("plan", type=PATH)
@click.option("-o", "--output", "place", type=PATH, help="Output directory.  [default: advice/PLAN]")
@executor_options
@device_option()
@click.option(
    "--minutes", type=click.FloatRange(min=0, min_open=True), help="Begin no other setting after so many minutes."
)
@code_option
@output_options
@click.pass_context
def advise(
    ctx: click.Context,
    plan: Path,
    place: Path | None,
    execution: ExecutorOptions,
    device: str,
    minutes: float | None,
    folders: tuple[Path, ...],
    output: Output,
) -> None:
    """Try the defences of PLAN at several strengths: which one protects, and what does it cost?

    The command audits each setting on federations with several seeds, and measures their test accuracy
    (federation.test_examples). It tries the weakest and the strongest value, then the value at which the accountant
    meets the gate, then halves the range between leak and gate. The cheapest setting that is CLEAR is audited again on
    other seeds.

    The defences are those of [[advise.chain]], or [[defences]] as one chain:

    \b
      [[advise.chain]]
      defences = [{ name = "clip", norm = 1.0 }, { name = "gaussian_noise" }]

    Each defence declares its strength, such as std of gaussian_noise; option, weakest and strongest set another one.

    The output directory receives report.html, advice.json, recommended.toml (a plan for `fedglass audit`) and a folder
    for each setting. If the command is stopped, the same command continues.

    \b
    Examples:
      fedglass advise plan.toml -o advice
      fedglass advise plan.toml -o advice --workers 4 --minutes 30
      fedglass audit advice/recommended.toml -o out

    \b
    Exit codes: 0 a setting is recommended, 2 wrong command or plan, 3 no useful setting meets the gate.
    """
    directory = place or Path("advice") / plan.stem
    ctx.with_resource(importable(folders))
    execution.warm_up(device)
    from fedglass.advise import page
    from fedglass.advise.page import plan_text
    from fedglass.advise.run import advise as run_advice
    from fedglass.cli.progress import AdviceScreen
    from fedglass.core.files import write_atomic
    from fedglass.execution.machine import device_named
    from fedglass.plan.schema import read_plan

    parsed, _ = read_plan(plan)
    announce(parsed, output)
    folder, kind = plan.resolve().parent, device_named(device)
    executor = execution.executor(shared=kind.type != "cpu")
    with AdviceScreen(output.quiet) as screen:
        advice = run_advice(parsed, folder, directory, executor=executor, device=kind, progress=screen, minutes=minutes)
    advice = replace(advice, code=code_arguments(folders))
    recommended = directory / RECOMMENDED
    paths = {
        "directory": str(directory),
        "report": str(directory / page.REPORT),
        "recommended": None if advice.plan is None else str(recommended),
    }
    answer = {**page.advice_as_json(advice), "device": kind.type, "paths": paths}
    write_atomic(directory / ANSWER, json.dumps(answer, indent=1, allow_nan=False) + "\n")
    if advice.plan is not None:
        remark = f"Written by fedglass advise. {page.lead_of(advice)}"
        write_atomic(recommended, plan_text(advice.plan, folder, (remark,)))
    page.write_advice(directory, advice, str(recommended))
    output.say(page.heading_of(advice).upper())
    for line in (page.lead_of(advice), *page.caveats_of(advice, str(recommended)), page.compared(advice)):
        output.say(line)
    output.say(f"Report: {directory / page.REPORT}")
    output.answer(answer)
    ctx.exit(advice.exit_code)
