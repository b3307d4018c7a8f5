"""`fedglass list` prints the names that a plan can use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


Listed = dict[str, str]
"""One name with its summary, and further facts by heading, as `--json` prints them."""


def _listed(name: str, summary: str, **facts: str) -> Listed:
    return {"name": name, "summary": summary, **{heading: text for heading, text in facts.items() if text}}


def registered(kind: str) -> list[Listed]:
    """Return the parts of a kind, built in or from installed packages, and how to name your own."""
    needed = OWN_CODE.get(kind, f"a function or a class that makes the {KINDS[kind].noun}")
    return [*map(_registered, entries(kind)), _listed("package.module:name", f"your own: {needed}")]


def _registered(entry: Entry) -> Listed:
    problem, facts = entry.problem, dict[str, str]()
    try:
        facts = {} if problem else _facts(entry)
    except UsageError as error:
        problem = str(error)
    facts |= {"paper": entry.paper, "from": entry.origin, "not_usable": problem}
    return _listed(entry.name if problem else listed_name(entry), entry.summary, **facts)


def _facts(entry: Entry) -> dict[str, str]:
    from fedglass.plan.options import defaults_in_words

    if entry.kind == "metrics":
        scale = scale_of(entry.name)
        return {"unit": scale.unit, "reading": f"{'higher' if scale.higher_leaks else 'lower'} leaks more"}
    return {"options": defaults_in_words(entry.value)} if entry.kind in CONFIGURED else {}


def parts() -> list[Listed]:
    from fedglass.attack.defaults import inventory

    return [_listed(p.name, f"{p.kind}: {p.summary}", cites="; ".join(p.papers), module=p.module) for p in inventory()]


PARTITIONS = [
    _listed("iid", "shuffled and split evenly"),
    _listed("dirichlet", "each class in Dirichlet(alpha) shares; small alpha: few clients hold most of it"),
    _listed("writers", "one writer per client, for datasets that name them"),
]
VIEWS = [
    _listed("server", "a curious server that sees the update of each client"),
    _listed("aggregate", "a server behind secure aggregation that sees only the aggregate of all clients"),
    _listed("peer", "a curious client that sees the global model before and after a round; it knows its own update"),
]
UNREGISTERED: dict[str, Callable[[], list[Listed]]] = {
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
        output.answer(by_kind)
        return
    for number, (name, listed) in enumerate(by_kind.items()):
        if output.quiet:
            for entry in listed:
                click.echo(plain(entry["name"]))
            continue
        if not kind:
            click.echo(("\n" if number else "") + name.upper())
        _show(listed)


def _show(listed: Sequence[Listed]) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    # An entry of a few lines instead of a row: citations in a narrow column cannot be read.
    console = Console(highlight=False, soft_wrap=False)
    for entry in listed:
        _, _, *facts = entry.items()
        console.print(Text(plain(entry["name"]), style="bold"))
        console.print(Padding(Text(plain(entry["summary"])), (0, 0, 0, 4)))
        for heading, text in facts:
            line = f"{heading.replace('_', ' ')}: {plain(text)}"
            console.print(Padding(Text(line, style="dim"), (0, 0, 0, 4)))
