"""`fedglass reproduce` re-creates published tables and figures, and lists them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedglass.cli.options import COUNT, PATH, ExecutorOptions, Output, executor_options, output_options
from fedglass.core.errors import AuditError, UsageError
from fedglass.reproduce.tables import REDUCED, Figure, Printed, Request, Table, choose_rows, figure, names, table

if TYPE_CHECKING:
    from fedglass.reproduce.cases import Cell


def of_printed(value: Printed | str | None) -> Any:
    """Return a published or measured value as JSON: a mean and its spread, a text, or null."""
    return {"mean": value.mean, "spread": value.spread} if isinstance(value, Printed) else value


def of_table(of: Table) -> dict[str, Any]:
    """Return name, title and source of a table as JSON."""
    return {"name": of.name, "title": of.title, "source": of.source}


def say_known(name: str | None, output: Output) -> None:
    """Print all tables and figures, or the rows and methods of one."""
    if name is not None:
        return _say_one(table(figure(name).table), output)
    titles = names()
    output.answer({"tables": [{"name": key, "title": title} for key, title in titles.items()]})
    if not output.as_json:
        width = max(map(len, titles))
        for key, title in titles.items():
            # Quiet output still has the names, as in `fedglass list`.
            click.echo(key if output.quiet else f"{key:<{width}}  {title}")
    return None


def _say_one(of: Table, output: Output) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    from fedglass.reproduce.cases import method_titles
    from fedglass.reproduce.paper import paper_of
    from fedglass.reproduce.tables import number, setting_text

    methods = method_titles(of) if of.name in paper_of(of).tables else {}
    if output.as_json:
        rows = [
            {
                "row": row.number,
                "setting": dict(row.setting),
                "paper": {key: {m: of_printed(values[m]) for m in of.measures} for key, values in row.values.items()},
            }
            for row in of.rows
        ]
        listed = [{"name": key, "title": title, "published": key in of.methods} for key, title in methods.items()]
        measures = {name: measure.title for name, measure in of.measures.items()}
        output.answer({**of_table(of), "measures": measures, "rows": rows, "methods": listed})
        return
    if output.quiet:
        for method in methods:
            click.echo(method)
        return
    console = Console(highlight=False)
    console.print(f"{of.name}: {of.title}\n{of.source}", markup=False, soft_wrap=True)
    grid = Grid("row", *of.columns.values(), "method", *(measure.title for measure in of.measures.values()))
    for row in of.rows:
        for method, values in row.values.items():
            setting = [setting_text(row.setting[field]) for field in of.columns]
            texts = [number(values[key], measure.digits) for key, measure in of.measures.items()]
            grid.add_row(str(row.number), *setting, method, *texts)
    console.print(grid)
    for method, title in methods.items():
        published = "" if method in of.methods else " (not in the paper)"
        console.print(f"--methods {method}: {title}{published}", markup=False, soft_wrap=True)


def say_comparison(of: Table, output: Output) -> bool:
    """Print a table that is compared without a run; return False for any other table."""
    from rich.console import Console
    from rich.table import Table as Grid

    from fedglass.reproduce.paper import paper_of

    compare = paper_of(of).compared.get(of.name)
    if compare is None:
        return False
    comparison = compare(of)
    heads = [*comparison.heads, "paper", "here"]
    lines = [dict(zip(heads, line, strict=True)) for line in comparison.lines] if output.as_json else []
    output.answer({**of_table(of), "lines": lines, "remarks": list(of.notes)})
    if output.in_words:
        console = Console(highlight=False)
        console.print(f"{of.name}: {of.title}\n{of.source}", markup=False, soft_wrap=True)
        grid = Grid(*heads, "")
        for line in comparison.lines:
            grid.add_row(*line, "" if line[-1] == line[-2] else "*")
        console.print(grid)
        for note in of.notes:
            console.print(note, markup=False, soft_wrap=True)
    return True


LIST = "list"
SHARED = "FEDGLASS_SHARED"
CLIENTS = 3


def run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of its data, seed, output directory and executor, `--dry-run` and those of output."""
    options = (
        click.option(
            "--data",
            multiple=True,
            help="Data of the paper: LEAF's json files, CIFAR, or NAME=SOURCE such as celeba=folder:PATH; may be "
            "repeated.",
        ),
        click.option(
            "--stand-ins",
            type=PATH,
            envvar=SHARED,
            help=f"Folder with stand-ins for missing data.  [default: ${SHARED}, or embedded images]",
        ),
        click.option("--seed", type=int, default=0, show_default=True),
        click.option("-o", "--output", "place", type=PATH, default=Path("reproduced"), show_default=True),
        executor_options,
        click.option("--dry-run", is_flag=True, help="Print what would run and how long it would take."),
        output_options,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(short_help="Re-create a table or figure of the papers.")
@click.argument("name")
@click.argument("of", required=False)
@click.option(
    "--clients", type=int, help="Clients per row; the papers have 100 or 20.  [default: 3, or the table's own]"
)
@click.option("--rows", multiple=True, help="Rows to run, such as 1,3-4 or dataset=FEMNIST,epochs=10.  [default: all]")
@click.option(
    "--methods",
    multiple=True,
    help="Methods to run, as in `list TABLE`, separated by commas.  [default: the paper's, or the table's own]",
)
@click.option(
    "--own-labels",
    is_flag=True,
    help="Keep the labels of stand-ins, instead of drawing labels from as many classes as the paper has.",
)
@click.option(
    "--iterations",
    type=COUNT,
    help="Iterations of each recipe. Warm-up and finishing stages keep their own unless the page says otherwise.  "
    "[default: as in the authors' code, or the table's own: an hour on 2 cores]",
)
@click.option(
    "--restarts", type=COUNT, default=1, show_default=True, help="Restarts of each attack whose paper uses restarts."
)
@click.option(
    "--size",
    type=click.Choice(["32", "64", "96", "128", "224"]),
    help="Side of photographs in pixels; 224 or 128 in papers.  [default: 96, or the table's own]",
)
@click.option(
    "--images",
    type=COUNT,
    help="Images per client (curious client: 16; other sizes scale with it).  [default: the table's own]",
)
@click.option(
    "--rounds", type=COUNT, help="Training rounds, if the paper does not specify them.  [default: the table's own]"
)
@click.option(
    "--weights",
    multiple=True,
    help="Trained network that rows start from, as NAME=FILE such as transfer=FILE or 50=FILE; may be repeated.",
)
@run_options
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
    size: str | None,
    images: int | None,
    rounds: int | None,
    weights: tuple[str, ...],
    seed: int,
    place: Path,
    execution: ExecutorOptions,
    dry_run: bool,
    output: Output,
) -> None:
    """Re-create NAME, a published table or figure, and print the paper's numbers next to the measured ones.

    `fedglass reproduce list` prints all names, `fedglass reproduce list NAME` the rows and methods of one. The output
    directory receives a record of every run, and NAME.html with the pictures. Finished runs are not repeated, even
    for another table that needs the same run.

    \b
    Examples:
      fedglass reproduce dlfa-table1 --clients 3 --rows 4 --methods prior,fedsgd
      fedglass reproduce sme-table2 --data leaf:femnist/data --data cifar100:cifar-100-binary
      fedglass reproduce c2f-table3 --rows dataset=CIFAR-10 --clients 4 --iterations 1000
      fedglass reproduce sme-table2 --rows 1 --json
    """
    if name == LIST:
        return say_known(of, output)
    if of is not None:
        raise UsageError(f"Expected one table or figure, got {name!r} and {of!r}.")
    if clients is not None and clients < 1:
        raise UsageError(f"clients must be at least 1, got {clients}.")
    chosen_figure = figure(name)
    printed = table(chosen_figure.table)
    side = printed.default.get("side", REDUCED) if size is None else int(size)
    request = Request(
        iterations or printed.default.get("iterations"),
        restarts,
        side,
        named(weights),
        images or printed.default.get("images"),
        own_labels,
        rounds or printed.default.get("rounds"),
    )
    chosen = rows or (",".join(map(str, chosen_figure.rows)),) * bool(chosen_figure.rows)
    wanted = [m.strip() for option in methods for m in option.split(",")] or list(chosen_figure.methods)
    if not dry_run:
        execution.warm_up("auto")
    if say_comparison(printed, output):
        return None
    from fedglass.reproduce.cases import cells, check_networks, check_options, choose_methods, data_kinds, skipped_rows
    from fedglass.reproduce.image_sources import populations

    selected, used = choose_rows(printed, chosen), choose_methods(printed, wanted)
    check_options(printed, request)
    kinds = data_kinds(printed, selected, used, request)
    data_sets = populations(kinds, data, stand_ins, seed, own_labels)
    count = clients or printed.default.get("clients", CLIENTS)
    planned = cells(printed, selected, used, count, data_sets, request, seed)
    check_networks(planned, seed)
    absent = skipped_rows(printed, selected, request, used)
    return _run(chosen_figure, printed, planned, absent, place, execution, dry_run, output)


def named(weights: Sequence[str]) -> dict[str, str]:
    """Return files by the name in front of them.

    >>> named([f"50={__file__}"]) == {"50": __file__}
    True
    """
    pairs = [option.partition("=")[::2] for option in weights]
    for option, (name, path) in zip(weights, pairs, strict=True):
        if not name or not path or not Path(path).exists():
            raise UsageError(f"--weights must be NAME=FILE with a file or folder that exists, got {option!r}.")
    return dict(pairs)


def _run(
    chosen_figure: Figure,
    of: Table,
    cells: Sequence[Cell],
    absent: Sequence[str],
    place: Path,
    execution: ExecutorOptions,
    dry_run: bool,
    output: Output,
) -> None:
    from fedglass.cli.progress import Screen
    from fedglass.cli.reproduced import answer_of, answer_of_plan, measures_in_words, say_before, say_plan, say_table
    from fedglass.execution.machine import device_named
    from fedglass.reproduce.charts import write_recreation
    from fedglass.reproduce.compare import compare_cells
    from fedglass.reproduce.run import run

    shared = device_named("auto").type != "cpu" and any(cell.experiment.probe.accelerated for cell in cells)
    count, executor = execution.count(shared), execution.executor(shared)
    if not output.quiet:
        say_before(chosen_figure, cells, place, count, absent)
    if dry_run:
        if not output.quiet:
            say_plan(of, cells, place)
        output.answer(answer_of_plan(chosen_figure, of, cells, place, count, absent))
        return
    with Screen("runs", measures_in_words, output.quiet) as screen:
        records = run(cells, place, executor, screen)
    measured = compare_cells(of, cells, records)
    command = shlex.join(["fedglass", *sys.argv[1:]])
    page = write_recreation(place, chosen_figure, of, cells, records, command)
    if output.in_words:
        say_table(of, cells, measured, records)
    output.say(f"Page: {page}")
    output.answer(answer_of(chosen_figure, of, cells, measured, records, place, page))
    if failed := sum(line.failed for line in measured):
        raise AuditError(f"{failed} of {sum(line.planned for line in measured)} runs failed; the page says why.")


RESULTS = Path("docs/reproduction/results")
results_option = click.option(
    "--results",
    type=PATH,
    default=RESULTS,
    show_default=True,
    help="Folder of results: one JSON line for each run, one file for each paper.",
)


@click.command("reproduce campaign", short_help="Run the missing rows of all papers, for some hours.")
@click.option("--hours", type=float, required=True, help="Time that the campaign may take.")
@click.option("--only", multiple=True, metavar="TABLE", help="Tables to run; may be repeated.  [default: all]")
@results_option
@click.option("--weights", multiple=True, help="Trained networks as NAME=FILE; methods that lack theirs are left out.")
@run_options
def campaign(
    hours: float,
    only: tuple[str, ...],
    results: Path,
    stand_ins: Path | None,
    data: tuple[str, ...],
    weights: tuple[str, ...],
    seed: int,
    place: Path,
    execution: ExecutorOptions,
    dry_run: bool,
    output: Output,
) -> None:
    """Run rows of the published tables that have no result yet, the most telling first, until the hours are over.

    Every finished run appends a line to the results. The same command continues where the last one stopped. An attack
    of more than an hour stores its state every ten minutes, and continues from it.

    \b
    Examples:
      fedglass reproduce campaign --hours 8 --dry-run
      fedglass reproduce campaign --hours 8 --workers 1 --stand-ins data/
      fedglass reproduce page -o docs/reproduction.md
    """
    if not hours > 0:
        raise UsageError(f"--hours must be more than 0, got {hours:g}.")
    if not dry_run:
        execution.warm_up("auto")
    from fedglass.cli.progress import Screen
    from fedglass.cli.reproduced import answer_of_campaign, count_remaining, measures_in_words, say_campaign
    from fedglass.reproduce.campaign import append_computed, cheapest_first, entries, plan_campaign, run_campaign
    from fedglass.reproduce.results import places_of, read_results

    stored = read_results(results, output.note)
    chosen = entries(only)
    planned = plan_campaign(chosen, stand_ins, data, seed, named(weights))
    if dry_run:
        say_campaign(planned, stored, output)
        return
    computed = append_computed(chosen, results)
    with Screen("runs", measures_in_words, output.quiet) as screen:
        written = run_campaign(
            cheapest_first(planned), place, results, execution.executor(), execution.count(), hours, screen
        )
    remaining = count_remaining(planned, places_of(read_results(results)))
    output.say(
        f"{written.written + computed} results were added to {results}; {remaining} runs of the campaign are left."
    )
    output.answer(answer_of_campaign(planned, written.written + computed, written.failed, remaining))
    if written.failed:
        raise AuditError(f"{written.failed} runs failed; {place} has their records, which say why.")


@click.command("reproduce page", short_help="Write the page of all measured tables.")
@results_option
@click.option("--findings", type=PATH, help="Folder of texts, one for each paper.")
@click.option("-o", "--output", "file", type=PATH, default=Path("reproduction.md"))
@output_options
def results_page(results: Path, findings: Path | None, file: Path, output: Output) -> None:
    """Write the page that puts all results next to the published values, as Markdown."""
    from fedglass.core.files import write_atomic
    from fedglass.reproduce.results import read_results
    from fedglass.reproduce.results_page import page, read_findings

    problems = list[str]()
    stored = read_results(results, problems.append)
    for problem in problems:
        output.note(problem)
    write_atomic(file, page(stored, read_findings(findings or results.parent / "findings")))
    output.say(f"Page: {file}")
    output.answer({"page": str(file), "results": len(stored), "skipped": problems})
