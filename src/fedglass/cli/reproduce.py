"""`fedglass reproduce`: re-create the published tables and figures."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedglass.cli.audit import cores, warm_up
from fedglass.core.errors import AuditError, UsageError
from fedglass.reproduce.tables import Figure, Table, choose_rows, figure, names, table

if TYPE_CHECKING:
    from fedglass.reproduce.cases import Cell

LIST = "list"
STRUCTURE = "dlfa-table5"
SHARED = "FEDGLASS_SHARED"
CLIENTS = 3


@click.command(short_help="Re-create a table or figure of the papers.")
@click.argument("name")
@click.argument("of", required=False)
@click.option(
    "--clients", type=int, help="Clients in each row; the papers have 100 or 20.  [default: 3, or the table's own]"
)
@click.option("--rows", multiple=True, help="Such as 1,3-4 or dataset=FEMNIST,epochs=10.  [default: all]")
@click.option(
    "--methods",
    multiple=True,
    help="Names of `list TABLE`, separated by commas.  [default: the paper's, or the table's own]",
)
@click.option(
    "--data", multiple=True, help="LEAF's json files, CIFAR, or celeba=folder:PATH and such; may be repeated."
)
@click.option(
    "--stand-ins",
    type=click.Path(path_type=Path),
    help=f"A folder of files for data that are not given.  [default: ${SHARED}, or embedded images]",
)
@click.option(
    "--own-labels",
    is_flag=True,
    help="Stand-ins keep their own labels, which repeat more than those drawn from as many classes as the paper has.",
)
@click.option(
    "--iterations",
    type=click.IntRange(1),
    help="The option `iterations` of each recipe, beside which warm-up and finishing stages keep their own; of c2f: of "
    "all stages together.  [default: the release's; c2f: an hour on 2 cores]",
)
@click.option("--restarts", type=click.IntRange(1), default=1, show_default=True, help="Of each attack (c2f).")
@click.option("--size", type=click.Choice(["96", "224"]), default="96", show_default=True, help="Of photographs (c2f).")
@click.option("--weights", multiple=True, help="Trained networks (c2f), such as transfer=FILE or 50=FILE.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("reproduced"), show_default=True)
@click.option("--workers", type=click.IntRange(1), help="Worker processes.  [default: one per core]")
@click.option("--dry-run", is_flag=True, help="Say what would be run and how long it would take.")
def reproduce(
    name: str,
    of: str | None,
    clients: int | None,
    rows: tuple[str, ...],
    methods: tuple[str, ...],
    data: tuple[str, ...],
    stand_ins: Path | None,
    own_labels: bool,
    iterations: int | None,
    restarts: int,
    size: str,
    weights: tuple[str, ...],
    seed: int,
    output: Path,
    workers: int | None,
    dry_run: bool,
) -> None:
    """Re-create NAME, a published table or figure, and print the paper's numbers beside the measured ones.

    `fedglass reproduce list` names all of them, `fedglass reproduce list NAME` the rows and methods of one.
    The directory keeps a record of every run, and NAME.html with the pictures; whatever is finished there is
    not run again, also where another table asks for the same.

    \b
    Examples:
      fedglass reproduce dlfa-table1 --clients 3 --rows 4 --methods prior,fedsgd
      fedglass reproduce sme-table2 --data leaf:femnist/data --data cifar100:cifar-100-binary
      fedglass reproduce c2f-table3 --rows dataset=CIFAR-10 --clients 4 --iterations 1000
    """
    if name == LIST:
        return _list(of)
    if of is not None:
        raise UsageError(f"Expected one table or figure, got {name!r} and {of!r}.")
    if clients is not None and clients < 1:
        raise UsageError(f"clients must be at least 1, got {clients}.")
    asked = figure(name)
    printed = table(asked.table)
    if printed.name == STRUCTURE:
        return _structure(printed)
    chosen = rows or (",".join(map(str, asked.rows)),) * bool(asked.rows)
    wanted = [m.strip() for given in methods for m in given.split(",")] or list(asked.methods)
    count = clients or printed.default.get("clients", CLIENTS)
    options = {"iterations": iterations or printed.default.get("iterations"), "restarts": restarts, "side": int(size)}
    _refuse_options(printed, restarts, weights)
    request = {**options, "weights": named(weights), "own_labels": own_labels}
    if not dry_run:
        warm_up(workers, "auto", "fedglass.reproduce.play")
    cells, absent = _cells(printed, chosen, wanted, count, data, stand_ins, request, seed)
    return _run(asked, printed, cells, absent, output, workers, dry_run)


def _cells(
    of: Table,
    rows: Sequence[str],
    methods: Sequence[str],
    clients: int,
    data: Sequence[str],
    stand_ins: Path | None,
    options: dict[str, Any],
    seed: int,
) -> tuple[list[Cell], list[str]]:
    """What is to be run, and in words what is left out of it."""
    from fedglass.reproduce.before import check_networks, left_out, refuse_weights
    from fedglass.reproduce.cases import cells, choose_methods, data_kinds
    from fedglass.reproduce.populations import populations
    from fedglass.reproduce.request import Request

    selected, used = choose_rows(of, rows), choose_methods(of, methods)
    folder = stand_ins or (Path(os.environ[SHARED]) if os.environ.get(SHARED) else None)
    request = Request(**options)
    refuse_weights(of, request.weights)
    found = populations(data_kinds(of, selected, used, request), data, folder, seed, request.own_labels)
    planned = cells(of, selected, used, clients, found, request, seed)
    check_networks(planned, seed)
    return planned, left_out(of, selected, request)


def named(weights: Sequence[str]) -> dict[str, str]:
    """Files by the name in front of them.

    >>> named([f"50={__file__}"]) == {"50": __file__}
    True
    """
    pairs = [given.partition("=")[::2] for given in weights]
    for given, (name, path) in zip(weights, pairs, strict=True):
        if not name or not Path(path).is_file():
            raise UsageError(f"--weights must be NAME=FILE with a file that exists, got {given!r}.")
    return dict(pairs)


def _refuse_options(of: Table, restarts: int, weights: Sequence[str]) -> None:
    if not of.default and (restarts != 1 or weights):
        raise UsageError(f"--restarts and --weights are for the tables of coarse-to-fine, not for {of.name}.")


def _run(
    asked: Figure,
    of: Table,
    cells: Sequence[Cell],
    absent: Sequence[str],
    output: Path,
    workers: int | None,
    dry_run: bool,
) -> None:
    from fedglass.audit.executors.processes import executor_for
    from fedglass.cli.reproduced import RecreationScreen, say_before, say_plan, say_table
    from fedglass.reproduce.compare import lines
    from fedglass.reproduce.page import write_recreation
    from fedglass.reproduce.play import device_of
    from fedglass.reproduce.run import run

    # Processes that share one accelerator only get in each other's way.
    alone = any(device_of(cell.experiment.probe).type != "cpu" for cell in cells)
    count = workers or (1 if alone else cores())
    say_before(asked, cells, output, count, absent)
    if dry_run:
        say_plan(of, cells)
        return
    with RecreationScreen() as screen:
        records = run(cells, output, executor_for(count), screen)
    found = lines(of, cells, records)
    say_table(of, cells, found, records)
    click.echo(f"Page: {write_recreation(output, asked, of, cells, records, _command())}")
    if failed := sum(line.failed for line in found):
        raise AuditError(f"{failed} of {sum(line.planned for line in found)} runs failed; the page says why.")


def _list(name: str | None) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    from fedglass.reproduce.compare import number, shown

    console = Console(highlight=False)
    if name is None:
        width = max(map(len, names()))
        for known, title in names().items():
            console.print(f"{known:<{width}}  {title}", markup=False, soft_wrap=True)
        return
    asked = figure(name)
    of = table(asked.table)
    console.print(f"{of.name}: {of.title}\n{of.source}", markup=False, soft_wrap=True)
    grid = Grid("row", *of.columns.values(), "method", *(measure.title for measure in of.measures.values()))
    for row in of.rows:
        for method, values in row.values.items():
            setting = [shown(row.setting[field]) for field in of.columns]
            texts = [number(values[key], measure.digits) for key, measure in of.measures.items()]
            grid.add_row(str(row.number), *setting, method, *texts)
    console.print(grid)
    if of.name != STRUCTURE:
        from fedglass.reproduce.cases import known_methods

        for method, title in known_methods(of).items():
            published = "" if method in of.methods else " (not in the paper)"
            console.print(f"--methods {method}: {title}{published}", markup=False, soft_wrap=True)


def _structure(of: Table) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    from fedglass.reproduce.structure import compare_layers

    console = Console(highlight=False)
    console.print(f"{of.name}: {of.title}\n{of.source}", markup=False, soft_wrap=True)
    grid = Grid("data set", "layer", "paper", "here", "")
    for layer in compare_layers(of):
        grid.add_row(of.methods[layer.data], str(layer.number), layer.published, layer.built, "" if layer.same else "*")
    console.print(grid)
    for note in of.notes:
        console.print(note, markup=False, soft_wrap=True)


def _command() -> str:
    """The command line as it was given, for the page."""
    import sys

    return shlex.join(["fedglass", *sys.argv[1:]])
