"""`fedglass list` prints the names that a plan can use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from fedglass.cli.options import Output, output_options, plain
from fedglass.core.errors import UsageError
from fedglass.core.registry import KINDS, Entry, entries, listed_name
from fedglass.core.scale import scale_of

OWN_CODE = {
    "models": "a function of shape and classes, as far as it takes them, that returns a torch.nn.Module",
    "datasets": (
        "a function of split, size and path (written as package.module:name:PATH), as far as it takes them, that "
        "returns a fedglass.data.dataset.Dataset"
    ),
    "metrics": "a fedglass.Metric",
}
"""Kind -> what `package.module:name` must be; for other kinds a function or a class that makes the part."""
NAMED = tuple(name for name, kind in KINDS.items() if kind.in_plans)
CONFIGURED = ("attacks", "defences", "rules", "behaviours", "refinements")
"""Kinds with options in a plan; fedglass itself gives the other kinds all that they need."""


@dataclass(frozen=True)
class ListEntry:
    """One name with its summary, and further facts by heading; empty facts are not shown."""

    name: str
    summary: str
    facts: Sequence[tuple[str, str]] = ()


def registered(kind: str) -> list[ListEntry]:
    """Return the parts of a kind, built in or from installed packages, and how to name your own."""
    needed = OWN_CODE.get(kind, f"a function or a class that makes the {KINDS[kind].noun}")
    own_code = ListEntry("package.module:name", f"your own: {needed}")
    return [*(_listed(entry) for entry in entries(kind)), own_code]


def _listed(entry: Entry) -> ListEntry:
    problem, facts = entry.problem, []
    try:
        facts = [] if problem else _facts(entry)
    except UsageError as error:
        problem = str(error)
    name = entry.name if problem else listed_name(entry)
    shown = [*facts, ("paper", entry.paper), ("from", entry.origin), ("not usable", problem)]
    return ListEntry(name, entry.summary, shown)


def _facts(entry: Entry) -> list[tuple[str, str]]:
    from fedglass.plan.options import defaults_in_words

    if entry.kind == "metrics":
        scale = scale_of(entry.name)
        return [("unit", scale.unit), ("reading", f"{'higher' if scale.higher_leaks else 'lower'} leaks more")]
    return [("options", defaults_in_words(entry.value))] if entry.kind in CONFIGURED else []


def parts() -> list[ListEntry]:
    from fedglass.attack.defaults import inventory

    return [
        ListEntry(p.name, f"{p.kind}: {p.summary}", [("cites", p.paper), ("module", p.value.__module__)])
        for p in inventory()
    ]


PARTITIONS = [
    ListEntry("iid", "shuffled and split evenly"),
    ListEntry("dirichlet", "each class in Dirichlet(alpha) shares; small alpha: few clients hold most of it"),
    ListEntry("writers", "one writer per client, for datasets that name them"),
]
VIEWS = [
    ListEntry("server", "a curious server that sees the update of each client"),
    ListEntry("aggregate", "a server behind secure aggregation that sees only the aggregate of all clients"),
    ListEntry("peer", "a curious client that sees the global model before and after a round; it knows its own update"),
]
UNREGISTERED: dict[str, Callable[[], list[ListEntry]]] = {
    "partitions": lambda: PARTITIONS,
    "views": lambda: VIEWS,
    "parts": parts,
}


@click.command(name="list", short_help="List attacks, models, datasets and other names for a plan.")
@click.argument("kind", type=click.Choice([*NAMED, *UNREGISTERED]), required=False)
@output_options
def list_known(kind: str | None, output: Output) -> None:
    """List the names that a plan can use, with a summary and the source of each; without KIND, all of them.

    `parts` are the building blocks of attacks, for your own recipes in Python. With -q only the names are printed.

    \b
    Examples:
      fedglass list attacks
      fedglass list models
      fedglass list defences -q
    """
    chosen = [kind] if kind else [*NAMED, *UNREGISTERED]
    by_kind = {name: UNREGISTERED[name]() if name in UNREGISTERED else registered(name) for name in chosen}
    if output.as_json:
        output.answer({name: [_value(entry) for entry in listed] for name, listed in by_kind.items()})
        return
    for number, (name, listed) in enumerate(by_kind.items()):
        if output.quiet:
            for entry in listed:
                click.echo(plain(entry.name))
            continue
        if not kind:
            click.echo(("\n" if number else "") + name.upper())
        _show(listed)


def _value(entry: ListEntry) -> dict[str, object]:
    facts = {heading.replace(" ", "_"): text for heading, text in entry.facts if text}
    return {"name": entry.name, "summary": entry.summary, **facts}


def _show(listed: Sequence[ListEntry]) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    # An entry of a few lines instead of a row: citations in a narrow column cannot be read.
    console = Console(highlight=False, soft_wrap=False)
    for entry in listed:
        console.print(Text(plain(entry.name), style="bold"))
        console.print(Padding(Text(plain(entry.summary)), (0, 0, 0, 4)))
        for heading, text in entry.facts:
            if text:
                console.print(Padding(Text(f"{heading}: {plain(text)}", style="dim"), (0, 0, 0, 4)))
