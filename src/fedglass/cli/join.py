"""`fedglass join`: one bundle of what a server and its clients have recorded."""

from __future__ import annotations

from pathlib import Path

import click

from fedglass.cli.output import Output, answering


@click.command(short_help="Make one bundle of what a server and its clients have recorded.")
@click.argument("into", type=click.Path(path_type=Path))
@click.argument("bundles", type=click.Path(path_type=Path), nargs=-1, required=True)
@answering
def join(into: Path, bundles: tuple[Path, ...], output: Output) -> None:
    """Read every bundle of BUNDLES with every check and write what they hold together to the new folder INTO.

    Clients that a server and they themselves call by the same name are one. The clients' truths stay where they are.
    A single folder that Transcript.save has written becomes a bundle too.

    \b
    Examples:
      fedglass join whole/ server/bundle/ clients/*
      fedglass audit whole/ -o out --truth truths/
    """
    from fedglass.bundle.join import join as joined
    from fedglass.rounds.as_bundle import bundle_of_saved, is_saved

    one = bundles[0] if len(bundles) == 1 else None
    whole = bundle_of_saved(one, into) if one is not None and is_saved(one) else joined(into, list(bundles))
    output.say(f"{into}: {len(whole.rounds)} round(s) of {len(whole.clients)} client(s).")
    output.answer({"bundle": str(into), "rounds": list(whole.rounds), "clients": list(whole.clients)})
