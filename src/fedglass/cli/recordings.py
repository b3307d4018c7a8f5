"""`fedglass join`: one bundle of what a server and its clients have recorded."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from fedglass.cli.options import Output, output_options
from fedglass.core.text import some

if TYPE_CHECKING:
    from fedglass.plan.bundle_info import Info
    from fedglass.recordings.format import FactSheet, RoundFacts


@click.command(short_help="Make one bundle of what a server and its clients have recorded.")
@click.argument("into", type=click.Path(path_type=Path))
@click.argument("bundles", type=click.Path(path_type=Path), nargs=-1, required=True)
@output_options
def join(into: Path, bundles: tuple[Path, ...], output: Output) -> None:
    """Read every bundle of BUNDLES with every check and write what they hold together to the new folder INTO.

    Clients that a server and they themselves call by the same name are one. The clients' truths stay where they are.
    A single folder that Transcript.save has written becomes a bundle too.

    \b
    Examples:
      fedglass join whole/ server/bundle/ clients/*
      fedglass audit whole/ -o out --truth truths/
    """
    from fedglass.recordings.join import bundle_of_saved, is_saved
    from fedglass.recordings.join import join as joined

    one = bundles[0] if len(bundles) == 1 else None
    whole = bundle_of_saved(one, into) if one is not None and is_saved(one) else joined(into, list(bundles))
    output.say(f"{into}: {len(whole.rounds)} round(s) of {len(whole.clients)} client(s).")
    output.answer({"bundle": str(into), "rounds": list(whole.rounds), "clients": list(whole.clients)})


# `fedglass record-info`: what a bundle holds, and what is missing for which attack.


What = TypeVar("What", bound=Hashable)
Where = TypeVar("Where")
SHOWN = 10
"""Names of clients in one line."""
LONGEST = 300
"""Characters of a sentence that somebody's recorder tells."""

PUBLIC = (
    "Give the audit examples like the clients' that no client has, at least 200 of each class (--public DATA): they "
    "show what a guess without the messages reaches, and whether a message names its records."
)


@click.command("record-info", short_help="Say what a recorded federation holds, and what is missing for which attack.")
@click.argument("bundle", type=click.Path(path_type=Path))
@output_options
def record_info(bundle: Path, output: Output) -> None:
    """Check every file of BUNDLE and say what is in it, what is not as it was said, and what is missing.

    No code is run, whatever the bundle names.

    \b
    Examples:
      fedglass record-info recorded/
      fedglass record-info recorded/ --json
    """
    from fedglass.plan.bundle_info import info_of, plain_info
    from fedglass.recordings.reader import read_bundle

    info = info_of(read_bundle(bundle))
    for line in _lines(info):
        output.say(line)
    output.answer(plain_info(info))


def _lines(info: Info) -> Iterator[str]:
    bundle = info.bundle
    yield f"{bundle.folder}: {_counted(len(bundle.rounds), 'round')}, {_counted(len(bundle.clients), 'client')}, whole."
    yield from (f"  {line}" for line in _told(bundle.facts))
    for about, rounds in _alike((_of_round(past), index) for index, past in bundle.rounds.items()):
        yield f"{_numbered(rounds)}: {about}"
    told = (
        ((message.client, tuple(_told(bundle.facts_of(message.client, index), ("config", "metrics")))), index)
        for index, past in bundle.rounds.items()
        for message in past.messages
    )
    by_client = (((facts, tuple(indices)), client) for (client, facts), indices in _alike(told))
    for (facts, indices), clients in _alike(by_client):
        yield f"{_some(clients)}, {_numbered(indices).lower()}:"
        yield from (f"  {fact}" for fact in facts or ["nothing is told of it"])
    yield from _judged(info)


def _of_round(past: RoundFacts) -> str:
    seen = [name for name, held in (("sent", past.sent), ("aggregated", past.aggregated)) if held is not None]
    count = sum(message.received is not None for message in past.messages)
    missing = [message.client for message in past.messages if message.absent is not None]
    absent = f", absent: {_some(missing)}" if missing else ""
    special = [message.client for message in past.messages if message.sent is not None]
    own = f", a model of its own for {_some(special)}" if special else ""
    return f"{' and '.join(seen) or 'no global model'}{own}, {_counted(count, 'message')}{absent}"


def _alike(said: Iterable[tuple[What, Where]]) -> Iterable[tuple[What, list[Where]]]:
    """What is said of several, once, with all of which it is said."""
    found: dict[What, list[Where]] = {}
    for what, where in said:
        found.setdefault(what, []).append(where)
    return found.items()


def _numbered(indices: Iterable[int]) -> str:
    """Rounds with runs of them drawn together.

    >>> _numbered([1, 2, 3, 7])
    'Rounds 1 to 3, 7'
    """
    numbers = sorted(set(indices))
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return f"Round{'' if len(numbers) == 1 else 's'} {', '.join(parts)}"


def _some(names: Iterable[str]) -> str:
    """Names, each once, and the first ones where there are many."""
    return some(list(dict.fromkeys(names)), SHOWN)


def _judged(info: Info) -> Iterator[str]:
    if info.findings:
        yield "Not as it was said:"
        for found in info.findings:
            yield f"  round {found.round}{f', {found.client}' if found.client else ''}: {found.words}"
    if info.problem:
        yield info.problem
        return
    if info.needed:
        yield f"Missing, and needed for every attack (a plan can give it): {', '.join(info.needed)}"
    assert info.choice is not None, "there would be a problem"
    sees = "each client's message" if info.choice.view == "server" else "the aggregate alone"
    yield f"An audit looks at {sees} of {_numbered(info.choice.rounds).lower()}."
    yield from (f"  left out: {reason}" for reason in info.choice.left)
    possible = [name for name, missing in info.missing.items() if not missing]
    yield f"Attacks that the facts allow: {', '.join(possible) or 'none'}"
    for name, missing in info.missing.items():
        if missing:
            yield f"  {name} lacks {', '.join(fact.words for fact in missing)}"
    yield PUBLIC


def _told(sheet: FactSheet, without: tuple[str, ...] = ()) -> Iterator[str]:
    """Each fact with its source."""
    import json

    from fedglass.recordings.format import RESERVED

    for name, told in sheet.items():
        if name == RESERVED:
            yield from (f"the recorder says: {each}" for said in told.values() for each in _sentences(said))
        elif name not in without:
            said = ", ".join(f"{json.dumps(value)[:100]} ({source})" for source, value in told.items())
            yield f"{name} = {said}"


def _sentences(said: object) -> list[str]:
    """Each whole: they tell what of a training can not be relied on."""
    return [str(each)[:LONGEST] for each in said] if isinstance(said, list) else [str(said)[:LONGEST]]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
