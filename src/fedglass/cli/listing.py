"""`fedglass list`: what can be named in a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from fedglass.cli.options import Output, answering
from fedglass.core.errors import UsageError
from fedglass.core.registry import KINDS, Entry, entries, listed_name
from fedglass.core.scale import scale_of

OWN = {
    "models": "called with what it takes of shape and classes, returns a torch.nn.Module",
    "datasets": (
        "called with what it takes of split, size and path (named as package.module:name:PATH), returns a "
        "fedglass.data.dataset.Dataset"
    ),
    "metrics": "a fedglass.Metric",
}
"""What `package.module:name` must name; of the other kinds a function or a class that makes the part."""
NAMED = tuple(name for name, kind in KINDS.items() if kind.in_plans)
CONFIGURED = ("attacks", "defences", "rules", "behaviours", "refinements")
"""Kinds whose tables in a plan hold options; the others are given all that they take."""


@dataclass(frozen=True)
class Listed:
    """One name, what it stands for, and more about it by heading; what is empty is not shown."""

    name: str
    summary: str
    facts: Sequence[tuple[str, str]] = ()


def registered(kind: str) -> list[Listed]:
    """The parts of a kind, built in and of installed packages, and how to name one's own."""
    noun = KINDS[kind].noun
    own = Listed("package.module:name", f"your own: {OWN.get(kind, f'a function or a class that makes the {noun}')}")
    return [*(_listed(entry) for entry in entries(kind)), own]


def _listed(entry: Entry) -> Listed:
    problem, facts = entry.problem, []
    try:
        facts = [] if problem else _facts(entry)
    except UsageError as error:
        problem = str(error)
    name = entry.name if problem else listed_name(entry)
    shown = [*facts, ("paper", entry.paper), ("from", entry.origin), ("can not be used", problem)]
    return Listed(name, entry.summary, shown)


def _facts(entry: Entry) -> list[tuple[str, str]]:
    from fedglass.plan.options import defaults_in_words

    if entry.kind == "metrics":
        return _reading(entry.name)
    return [("options", defaults_in_words(entry.value))] if entry.kind in CONFIGURED else []


def _reading(name: str) -> list[tuple[str, str]]:
    scale = scale_of(name)
    return [("unit", scale.unit), ("reading", f"{'higher' if scale.higher_leaks else 'lower'} leaks more")]


def parts() -> list[Listed]:
    from fedglass.attack.defaults import inventory

    return [
        Listed(p.name, f"{p.kind}: {p.summary}", [("cites", "; ".join(p.papers)), ("module", p.module)])
        for p in inventory()
    ]


def partitions() -> list[Listed]:
    return [
        Listed("iid", "shuffled and dealt out evenly"),
        Listed("dirichlet", "each class in Dirichlet(alpha) shares; small alpha: few clients hold most of it"),
        Listed("writers", "one writer per client, for datasets that name them"),
    ]


def views() -> list[Listed]:
    return [
        Listed("server", "the update of a client, as a curious server does"),
        Listed("aggregate", "only the aggregate of all clients, as a server behind secure aggregation does"),
        Listed("peer", "two global models in a row, as a curious client does, which knows its own update"),
    ]


OTHERS: dict[str, Callable[[], list[Listed]]] = {"partitions": partitions, "views": views, "parts": parts}


@click.command(name="list", short_help="List attacks, models, datasets and all else that a plan can name.")
@click.argument("kind", type=click.Choice([*NAMED, *OTHERS]), required=False)
@answering
def list_known(kind: str | None, output: Output) -> None:
    """List what a plan can name, with one line about each and where it comes from; without KIND, everything.

    `parts` are what attacks are composed of, for recipes of your own in Python. With -q the names alone are printed.

    \b
    Examples:
      fedglass list attacks
      fedglass list models
      fedglass list defences -q
    """
    chosen = [kind] if kind else [*NAMED, *OTHERS]
    found = {each: OTHERS[each]() if each in OTHERS else registered(each) for each in chosen}
    if output.as_json:
        output.answer({each: [_value(listed) for listed in known] for each, known in found.items()})
        return
    for number, (each, known) in enumerate(found.items()):
        if output.quiet:
            _show_names(known)
            continue
        if not kind:
            click.echo(("\n" if number else "") + each.upper())
        _show(known)


def _value(listed: Listed) -> dict[str, object]:
    facts = {heading.replace(" ", "_"): text for heading, text in listed.facts if text}
    return {"name": listed.name, "summary": listed.summary, **facts}


def _show_names(known: Sequence[Listed]) -> None:
    from fedglass.cli.options import plain

    for listed in known:
        click.echo(plain(listed.name))


def _show(known: Sequence[Listed]) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from fedglass.cli.options import plain

    # An entry of a few lines instead of a row: citations in a narrow column can not be read.
    console = Console(highlight=False, soft_wrap=False)
    for listed in known:
        console.print(Text(plain(listed.name), style="bold"))
        console.print(Padding(Text(plain(listed.summary)), (0, 0, 0, 4)))
        for heading, text in listed.facts:
            if text:
                console.print(Padding(Text(f"{heading}: {plain(text)}", style="dim"), (0, 0, 0, 4)))
