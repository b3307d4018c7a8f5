"""`fedglass epsilon` bounds epsilon from below by canaries, and compares it with what is declared."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedglass.cli.options import COUNT, PATH, Output, announce, code_option, importable, output_options
from fedglass.core.errors import DataError, UsageError
from fedglass.core.text import count, some

if TYPE_CHECKING:
    from rich.progress import TaskID

    from fedglass.audit.epsilon import Accounted, CanaryScores, EpsilonAudit
    from fedglass.cli.progress import Bars
    from fedglass.recordings.privacy import CanaryKey
    from fedglass.recordings.reader import Bundle

CANARIES = 1000
SHOWN_CLIENTS = 3
"""Names of clients in the title of an audit."""


@click.command(short_help="Bound epsilon from below by canaries, in one run.")
@click.argument("source", metavar="PLAN|BUNDLE", type=PATH)
@click.option(
    "--canaries", type=COUNT, help=f"Number of canaries in the simulation of a plan.  [default: {CANARIES:,}]"
)
@click.option(
    "--keys", type=PATH, metavar="DIR", help="Folder with the canaries' keys of a bundle.  [default: BUNDLE-canaries]"
)
@click.option(
    "--declared",
    type=click.FloatRange(0, min_open=True),
    metavar="EPSILON",
    help="Epsilon of one message, as its owner declares it.",
)
@click.option(
    "--gaussian", is_flag=True, help="The owner declares Gaussian noise: use the tighter bound that this allows."
)
@click.option(
    "--delta",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=1e-5,
    show_default=True,
    help="The delta of all epsilons.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the canaries of a plan.")
@code_option
@output_options
@click.pass_context
def epsilon(
    ctx: click.Context,
    source: Path,
    canaries: int | None,
    keys: Path | None,
    declared: float | None,
    gaussian: bool,
    delta: float,
    seed: int,
    folders: tuple[Path, ...],
    output: Output,
) -> None:
    """Measure at least how large epsilon is, and compare it with what the accountant and the owner say.

    Epsilon bounds how much one protected unit can change what is sent: an example of DP-SGD, or the whole update that a
    client clips and noises. Accountants compute it from the declared clipping and noise. This command tests the
    declaration. It inserts canaries, each with a fair coin, and guesses the coins from the message. The more guesses
    are right, the larger epsilon must be. No second training is needed.

    Of a PLAN it simulates one round of one client of each kind. Of a BUNDLE it reads the canaries that a recorder has
    inserted (canaries=N, docs/epsilon.md).

    The ceiling is what perfect guesses of so many canaries would show: no larger epsilon can be refuted with them.
    "Consistent" proves nothing about privacy; a certificate does (fedglass audit).

    \b
    Examples:
      fedglass epsilon plan.toml
      fedglass epsilon plan.toml --canaries 200 --json
      fedglass epsilon recorded/ --declared 8

    \b
    Exit codes: 0 consistent, 1 not as declared, 2 wrong command or plan, 3 too few canaries or nothing declared.
    """
    ctx.with_resource(importable(folders))
    if source.is_dir():
        if canaries is not None:
            raise UsageError("--canaries is for a plan: the canaries of a bundle were inserted when it was recorded.")
        audits = list(_of_bundle(source, keys, declared, gaussian, delta))
    else:
        if keys is not None:
            raise UsageError("--keys is for a bundle: the simulation of a plan draws its own canaries.")
        audits = list(_of_plan(source, canaries or CANARIES, seed, declared, gaussian, delta, output))
    _finish(ctx, audits, output)


def _finish(ctx: click.Context, audits: list[EpsilonAudit], output: Output) -> None:
    """Print all audits, and exit with the code of the worst finding."""
    from fedglass.audit.epsilon import describe

    codes = {audit.exit_code for audit in audits}
    exit_code = 1 if 1 in codes else max(codes)
    for audit in audits:
        for line in describe(audit):
            output.say(line)
    output.answer({"exit_code": exit_code, "audits": [audit.as_json() for audit in audits]})
    ctx.exit(exit_code)


def _of_plan(
    path: Path, canaries: int, seed: int, declared: float | None, gaussian: bool, delta: float, output: Output
) -> Iterator[EpsilonAudit]:
    """Yield the audit of each kind of client in the federations of a plan; `declared` is what the owner says."""
    from fedglass.audit.epsilon import audited_clients, simulated_epsilon
    from fedglass.audit.simulated import Simulated
    from fedglass.cli.progress import Bars
    from fedglass.plan.compile import compile_plan
    from fedglass.plan.schema import read_plan

    plan, text = read_plan(path)
    announce(plan, output)
    simulations = [s for s in compile_plan(plan, path.resolve().parent, text).sources if isinstance(s, Simulated)]
    if not simulations:
        raise UsageError("The plan simulates no federation: give the folder of the bundle instead of the plan.")
    clients = [(simulation, client) for simulation in simulations for client in audited_clients(simulation.federation)]
    if not clients:
        raise UsageError("No client of the plan has a defence, so that epsilon is infinite: add [[defences]].")
    for simulation, client in clients:
        swept = [f"{option} = {value:g}" for option, value in simulation.swept.items()]
        name = ", ".join(filter(None, [simulation.name, client.name, *swept]))
        with Bars(output.quiet) as bars:
            task = bars.bars.add_task(f"canaries of {name}", total=None)

            def show(done: int, total: int, bars: Bars = bars, task: TaskID = task) -> None:
                bars.bars.update(task, completed=done, total=total)

            audit = simulated_epsilon(
                simulation.federation,
                client,
                canaries,
                seed=seed,
                delta=delta,
                declared=declared,
                gaussian=gaussian,
                name=name,
                progress=show,
            )
        yield audit


def _of_bundle(
    folder: Path, keys: Path | None, declared: float | None, gaussian: bool, delta: float
) -> Iterator[EpsilonAudit]:
    """Yield the audit of each protection in a bundle, over all messages that have it."""
    from fedglass.audit.epsilon import judge_scores, pooled, with_declared
    from fedglass.recordings.privacy import keys_folder, messages_with_canaries
    from fedglass.recordings.reader import read_bundle

    bundle = read_bundle(folder)
    groups: dict[str, list[tuple[str, int, CanaryKey]]] = {}
    for client, index, key in messages_with_canaries(bundle, keys or keys_folder(folder)):
        parts = bundle.defences_of(client, index)
        groups.setdefault(f"{key.unit} {json.dumps(parts)}", []).append((client, index, key))
    for messages in groups.values():
        scores = pooled([_scores(bundle, *message) for message in messages])
        said = with_declared(_accounted(bundle, *messages[0], delta), declared, gaussian)
        names = sorted({client for client, _, _ in messages})
        yield judge_scores(f"{some(names, SHOWN_CLIENTS)}, {count(len(messages), 'message')}", scores, said, delta)


def _scores(bundle: Bundle, client: str, index: int, key: CanaryKey) -> CanaryScores:
    """Return the scores of the canaries in one message."""
    from fedglass.audit.epsilon import CanaryScores
    from fedglass.recordings.observed import update_of

    update = update_of(bundle, client, index)
    if update is None or any(name not in update for name in key.names):
        raise DataError(
            f"Round {index} of {client!r} lacks tensors that hold canaries, or the model that was sent: record both."
        )
    scores, coins = key.canaries.scores({name: update[name] for name in key.names}), key.canaries.coins()
    if key.unit == "example":  # a step goes against the gradient
        return CanaryScores(-scores, coins)
    return CanaryScores(scores, coins, per_message=max(1, int(coins.sum())))


def _accounted(bundle: Bundle, client: str, index: int, key: CanaryKey, delta: float) -> Accounted:
    """Return what the bundle's defences say of one message."""
    from fedglass.audit.epsilon import Accounted, accounted_release
    from fedglass.core.types import Training
    from fedglass.plan.bundles import protection_of
    from fedglass.recordings.transcript import participant_of

    parts = bundle.defences_of(client, index)
    protection = None if not parts else protection_of(parts)
    participant = participant_of(bundle, client, index, {})
    training = participant.training or (Training(lr=1.0) if key.unit == "update" else None)
    if protection is None or training is None:
        return Accounted(None, None, False, "The bundle does not say how the noise was made.")
    message = bundle.message(client, index)
    received = [] if message is None or message.received is None else message.received.arrays
    entries = sum(math.prod(array.shape) for array in received)
    return accounted_release(protection, training, participant.examples, entries, delta)
