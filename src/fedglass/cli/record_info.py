"""`fedglass record-info`: what a bundle holds, and what is missing for which attack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedglass.cli.output import Output, answering

if TYPE_CHECKING:
    from fedglass.bundle.facts import FactSheet
    from fedglass.plan.bundle_info import Info


@click.command("record-info", short_help="Say what a recorded federation holds, and what is missing for which attack.")
@click.argument("bundle", type=click.Path(path_type=Path))
@answering
def record_info(bundle: Path, output: Output) -> None:
    """Check every file of BUNDLE and say what is in it, what is not as it was said, and what is missing.

    No code is run, whatever the bundle names.

    \b
    Examples:
      fedglass record-info recorded/
      fedglass record-info recorded/ --json
    """
    from fedglass.bundle.check import read_bundle
    from fedglass.plan.bundle_info import info_of, plain_info

    info = info_of(read_bundle(bundle))
    for line in _lines(info):
        output.say(line)
    output.answer(plain_info(info))


def _lines(info: Info) -> Iterator[str]:
    bundle = info.bundle
    yield f"{bundle.folder}: {_counted(len(bundle.rounds), 'round')}, {_counted(len(bundle.clients), 'client')}, whole."
    yield from (f"  {line}" for line in _told(bundle.facts))
    for index, past in bundle.rounds.items():
        seen = [name for name, held in (("sent", past.sent), ("aggregated", past.aggregated)) if held is not None]
        count = sum(message.received is not None for message in past.messages)
        missing = [message.client for message in past.messages if message.absent is not None]
        absent = f", absent: {', '.join(missing)}" if missing else ""
        yield f"Round {index}: {' and '.join(seen) or 'no global model'}, {_counted(count, 'message')}{absent}"
        for message in past.messages:
            told = "; ".join(_told(bundle.facts_of(message.client, index), ("config", "metrics")))
            yield f"  {message.client}: {told or 'nothing is told of it'}"
    yield from _judged(info)


def _judged(info: Info) -> Iterator[str]:
    if info.findings:
        yield "Not as it was said:"
        for found in info.findings:
            yield f"  round {found.round}{f', {found.client}' if found.client else ''}: {found.words}"
    if info.needed:
        yield f"Missing, and needed for every attack (a plan can give it): {', '.join(info.needed)}"
    if info.choice is None:
        yield info.problem
        return
    rounds = ", ".join(map(str, info.choice.rounds))
    sees = "each client's message" if info.choice.view == "server" else "the aggregate alone"
    yield f"An audit looks at {sees} of round {rounds}."
    yield from (f"  left out: {reason}" for reason in info.choice.left)
    possible = [name for name, missing in info.missing.items() if not missing]
    yield f"Attacks that the facts allow: {', '.join(possible) or 'none'}"
    for name, missing in info.missing.items():
        if missing:
            yield f"  {name} lacks {', '.join(fact.words for fact in missing)}"


def _told(sheet: FactSheet, without: tuple[str, ...] = ()) -> Iterator[str]:
    """Each fact with its source."""
    import json

    for name, told in sheet.items():
        if name not in without:
            said = ", ".join(f"{json.dumps(value)[:100]} ({source})" for source, value in told.items())
            yield f"{name} = {said}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
