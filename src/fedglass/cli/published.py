"""What `fedglass reproduce` tells without a run: its tables and figures, and a few beside what is built."""

from __future__ import annotations

from typing import Any

import click

from fedglass.cli.output import Output
from fedglass.reproduce.tables import Printed, Table, figure, names, table


def of_printed(value: Printed | str | None) -> Any:
    """A published or measured value as JSON has it: a mean and its spread, words, or null."""
    return {"mean": value.mean, "spread": value.spread} if isinstance(value, Printed) else value


def of_table(of: Table) -> dict[str, Any]:
    """Which table it is."""
    return {"name": of.name, "title": of.title, "source": of.source}


def say_known(name: str | None, output: Output) -> None:
    """All tables and figures, or the rows and methods of one."""
    if name is not None:
        return _say_one(table(figure(name).table), output)
    known = names()
    output.answer({"tables": [{"name": key, "title": title} for key, title in known.items()]})
    if not output.as_json:
        width = max(map(len, known))
        for key, title in known.items():
            # The names alone are what a program that asks for silence still needs, as of `fedglass list`.
            click.echo(key if output.quiet else f"{key:<{width}}  {title}")
    return None


def _say_one(of: Table, output: Output) -> None:
    from fedglass.reproduce.cases import known_methods
    from fedglass.reproduce.paper import paper_of

    methods = known_methods(of) if of.name in paper_of(of).tables else {}
    if output.as_json:
        told = [{"name": key, "title": title, "published": key in of.methods} for key, title in methods.items()]
        output.answer({**of_table(of), "measures": _measures(of), "rows": _rows(of), "methods": told})
    elif output.quiet:
        for method in methods:
            click.echo(method)
    else:
        _print_one(of, methods)


def _print_one(of: Table, methods: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    from fedglass.reproduce.compare import number, shown

    console = Console(highlight=False)
    console.print(f"{of.name}: {of.title}\n{of.source}", markup=False, soft_wrap=True)
    grid = Grid("row", *of.columns.values(), "method", *(measure.title for measure in of.measures.values()))
    for row in of.rows:
        for method, values in row.values.items():
            setting = [shown(row.setting[field]) for field in of.columns]
            texts = [number(values[key], measure.digits) for key, measure in of.measures.items()]
            grid.add_row(str(row.number), *setting, method, *texts)
    console.print(grid)
    for method, title in methods.items():
        published = "" if method in of.methods else " (not in the paper)"
        console.print(f"--methods {method}: {title}{published}", markup=False, soft_wrap=True)


def say_comparison(of: Table, output: Output) -> bool:
    """Tell the table beside what is built, where it is one of those that are compared without a run."""
    from rich.console import Console
    from rich.table import Table as Grid

    from fedglass.reproduce.paper import paper_of

    made = paper_of(of).compared.get(of.name)
    if made is None:
        return False
    comparison = made(of)
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


def _measures(of: Table) -> dict[str, str]:
    return {name: measure.title for name, measure in of.measures.items()}


def _rows(of: Table) -> list[dict[str, Any]]:
    return [
        {
            "row": row.number,
            "setting": dict(row.setting),
            "paper": {method: {m: of_printed(known[m]) for m in of.measures} for method, known in row.values.items()},
        }
        for row in of.rows
    ]
