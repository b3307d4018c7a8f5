"""`fedglass demo`: audit small embedded federations, as a server and as one of the clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedglass.cli.audit import DEVICES, answer_of, performed
from fedglass.cli.executors import Hands
from fedglass.cli.output import Output, answering

if TYPE_CHECKING:
    from fedglass.audit.audit import Result

PEER = "peer"
"""The folder of the second audit, inside that of the first."""


@click.command(short_help="Audit small embedded federations, in half a minute.")
@click.option("-o", "--output", "place", type=click.Path(path_type=Path), default="demo", show_default=True)
@click.option("--workers", type=click.IntRange(1), help="Worker processes.  [default: one per core]")
@click.option("--device", type=DEVICES, default="cpu", show_default=True, help="Where the attacks run.")
@answering
def demo(place: Path, workers: int | None, device: str, output: Output) -> None:
    """Audit embedded pictures and characters: first what a server reads in single gradients and in updates of federated
    averaging, then what a client reads of its peers in two global models, sharpened by a small diffusion model.

    The clients have no defence, so the attacks succeed and the gate fails; the demo exits with 0 all the same.

    \b
    Example:
      fedglass demo -o demo
    """
    hands = Hands(workers=workers)
    hands.warm_up(device)
    from fedglass.cli.template import DEMO, PEER_DEMO

    server, kind = _audited(DEMO, place, hands, device, output, stops=True)
    peer, _ = _audited(PEER_DEMO, place / PEER, hands, device, output)
    output.answer({**answer_of(server, kind), PEER: answer_of(peer, kind)})


def _audited(
    plan: str, place: Path, hands: Hands, device: str, output: Output, *, stops: bool = False
) -> tuple[Result, str]:
    """Audit a plan; one that `stops` searches only while exact attacks have shown no leak."""
    from fedglass.plan.compile import compile_plan
    from fedglass.plan.schema import parse_plan

    job = compile_plan(parse_plan(plan), Path.cwd(), plan)
    job = replace(job, chosen=frozenset(job.attacks)) if stops else job
    result, kind = performed(job, place, hands, device, output)
    if result.verdict.exit_code:
        output.say(f"In a pipeline, `fedglass audit` would have exited with {result.verdict.exit_code} here.")
    return result, kind
