"""`fedglass demo`: audit a small embedded federation."""

from __future__ import annotations

from pathlib import Path

import click

from fedglass.cli.audit import DEVICES, perform, warm_up
from fedglass.cli.output import Output, answering


@click.command(short_help="Audit a small embedded federation, in a minute or two.")
@click.option("-o", "--output", "place", type=click.Path(path_type=Path), default="demo", show_default=True)
@click.option("--workers", type=click.IntRange(1), help="Worker processes.  [default: one per core]")
@click.option("--device", type=DEVICES, default="cpu", show_default=True, help="Where the attacks run.")
@answering
def demo(place: Path, workers: int | None, device: str, output: Output) -> None:
    """Audit embedded pictures and characters: single gradients, and updates of federated averaging.

    The clients have no defence, so the attacks succeed and the gate fails; the demo exits with 0 all the same.

    \b
    Example:
      fedglass demo -o demo
    """
    warm_up(workers, device)
    from fedglass.cli.template import DEMO
    from fedglass.plan.compile import compile_plan
    from fedglass.plan.schema import parse_plan

    job = compile_plan(parse_plan(DEMO), Path.cwd(), DEMO)
    result = perform(job, place, workers, device, output)
    if result.verdict.exit_code:
        output.say(f"In a pipeline, `fedglass audit` would have exited with {result.verdict.exit_code} here.")
