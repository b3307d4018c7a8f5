"""`fedglass list`: what can be named in a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click


@dataclass(frozen=True)
class Listing:
    """A table of names."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def attacks() -> Listing:
    from fedglass.plan.options import defaults_in_words
    from fedglass.recipes.catalogue import RECIPES

    rows = [[name, r.summary, defaults_in_words(r.make), r.paper] for name, r in RECIPES.items()]
    return Listing(["attack", "what it does", "options", "paper"], rows)


def defences() -> Listing:
    from fedglass.defend.catalogue import DEFENCES
    from fedglass.plan.options import defaults_in_words

    rows = [[name, d.summary, defaults_in_words(d.make), d.paper] for name, d in DEFENCES.items()]
    return Listing(["defence", "what it does", "options", "paper"], rows)


def labels() -> Listing:
    from fedglass.attack.labels.catalogue import LABELS

    rows = [[name, entry.summary, entry.paper] for name, entry in LABELS.items()]
    return Listing(["labels", "how they are found", "paper"], rows)


def models() -> Listing:
    from fedglass.models.catalogue import names

    own = ["package.module:factory", "your own: called with shape and classes, returns a torch.nn.Module"]
    return Listing(["model", "what it is"], [*map(list, names().items()), own])


def datasets() -> Listing:
    from fedglass.data.catalogue import names

    return Listing(["dataset", "what it is"], [list(item) for item in names().items()])


def initialisations() -> Listing:
    from fedglass.models.init_names import names

    return Listing(["initialisation", "what it is"], [list(item) for item in names().items()])


def metrics() -> Listing:
    from fedglass.metrics.catalogue import METRICS

    rows = [[m.name, m.title, m.unit, f"{m.leaks.value} leaks more", m.paper] for m in METRICS.values()]
    return Listing(["metric", "what it is", "unit", "reading", "paper"], rows)


def parts() -> Listing:
    from fedglass.attack.inventory import inventory

    rows = [[p.name, f"{p.kind}: {p.summary}", "; ".join(p.papers), p.module] for p in inventory()]
    return Listing(["part", "what it is", "cites", "module"], rows)


def partitions() -> Listing:
    return Listing(
        ["partition", "what it is"],
        [
            ["iid", "shuffled and dealt out evenly"],
            ["dirichlet", "each class in Dirichlet(alpha) shares; small alpha: few clients hold most of it"],
            ["writers", "one writer per client, for datasets that name them"],
        ],
    )


def views() -> Listing:
    return Listing(
        ["view", "what the adversary sees"],
        [
            ["server", "the update of a client, as a curious server does"],
            ["aggregate", "only the aggregate of all clients, as a server behind secure aggregation does"],
        ],
    )


KINDS: dict[str, Callable[[], Listing]] = {
    "attacks": attacks,
    "defences": defences,
    "labels": labels,
    "models": models,
    "datasets": datasets,
    "initialisations": initialisations,
    "partitions": partitions,
    "views": views,
    "metrics": metrics,
    "parts": parts,
}


@click.command(name="list", short_help="List attacks, models, datasets and all else that a plan can name.")
@click.argument("kind", type=click.Choice(list(KINDS)), required=False)
def list_known(kind: str | None) -> None:
    """List what a plan can name, with one line about each and where it comes from; without KIND, everything.

    `parts` are what attacks are composed of, for recipes of your own in Python.

    \b
    Examples:
      fedglass list attacks
      fedglass list models
    """
    if kind:
        _show(kind)
        return
    for number, each in enumerate(KINDS):
        click.echo(("\n" if number else "") + each.upper())
        _show(each)


def _show(kind: str) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    found = KINDS[kind]()
    if not found.rows:
        click.echo(f"No {kind} are known to this version.")
        return
    # An entry of a few lines instead of a row: citations in a narrow column can not be read.
    console = Console(highlight=False, soft_wrap=False)
    for name, summary, *rest in found.rows:
        console.print(Text(name, style="bold"))
        console.print(Padding(Text(summary), (0, 0, 0, 4)))
        for column, text in zip(found.columns[2:], rest, strict=True):
            if text:
                console.print(Padding(Text(f"{column}: {text}", style="dim"), (0, 0, 0, 4)))
