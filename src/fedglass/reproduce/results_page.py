"""The page of all measured tables: findings, and results next to the published values, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

from fedglass.core.files import read_file
from fedglass.core.metric_scale import Scale
from fedglass.core.text import ranges, values_by_key
from fedglass.reproduce.results import MeasuredLine, Result, lines_of, printed_lines, tally
from fedglass.reproduce.tables import Printed, Table, figure, names, number, paper_name, setting_text, table

PAPERS = {
    "dlfa": "Data Leakage in Federated Averaging [Dimitrov et al., 2022]",
    "sme": "Surrogate Model Extension [Zhu, Yao, Blaschko, 2023]",
    "c2f": "Coarse-to-fine inversion [K. Zhu et al., 2025]",
    "curious": "The curious client [Wilson et al., 2024]",
    "malicious": "The maliciously curious client [Yue et al., 2025]",
}
HEAD = (resources.files("fedglass.reproduce") / "published" / "page.md").read_text(encoding="utf-8")
"""The beginning of the page: how it is made, and what its words mean."""
MISSING = "–"
ALSO_SHOWN = {"psnr": Scale("PSNR", digits=1), "ssim": Scale("SSIM"), "lpips": Scale("LPIPS")}
"""Measures that a table shows where they were measured, although the paper's has no such column."""
LARGEST_TEXT = 1 << 20


def read_findings(folder: Path) -> dict[str, str]:
    """Return the findings of each paper, as far as the folder has them."""
    files = {name: folder / f"{name}.md" for name in PAPERS}
    return {name: read_file(f, LARGEST_TEXT).decode().strip() for name, f in files.items() if f.is_file()}


def page(results: Sequence[Result], findings: Mapping[str, str]) -> str:
    """Return the page."""
    tables = {name: [table(t) for t in tables_of(name)] for name in PAPERS}
    parts = [HEAD, _summary(tables, results)]
    for name, title in PAPERS.items():
        parts += [f"## {title}\n", findings.get(name, "No findings yet.") + "\n"]
        parts += [text for of in tables[name] if (text := "\n".join(_section(of, results)))]
    return "\n".join(parts).rstrip() + "\n"


def tables_of(paper: str) -> list[str]:
    """Return the names of the tables of a paper; figures that show runs of a table are not among them."""
    return [name for name in names() if paper_name(name) == paper and figure(name).table == name]


def _summary(tables: Mapping[str, Sequence[Table]], results: Sequence[Result]) -> str:
    lines = ["| paper | lines printed | measured | met | beaten | missed | not run |", "|---|---|---|---|---|---|---|"]
    for name, title in PAPERS.items():
        counts = [tally(of, results) for of in tables[name]]
        met, beaten, missed, absent = (sum(c[w] for c in counts) for w in ("met", "beaten", "missed", "not run"))
        printed, measured = met + beaten + missed + absent, met + beaten + missed
        lines.append(f"| {title} | {printed} | {measured} | {met} | {beaten} | {missed} | {absent} |")
    return "\n".join(lines) + "\n"


def _section(of: Table, results: Sequence[Result]) -> Iterator[str]:
    """Yield the lines of one table: what was measured, and which printed lines were not run."""
    lines = lines_of(of, results)
    known = {**ALSO_SHOWN, **of.measures}
    names_in_order = [*of.measures, *(name for name in ALSO_SHOWN if name not in of.measures)]
    measures = {name: known[name] for name in names_in_order if any(line.value(name) is not None for line in lines)}
    yield f"### {of.name}: {of.title}\n"
    if lines:
        heads = [f"{measure.title}: paper | measured | blind guess" for measure in measures.values()]
        columns = ["row", "setting", "method", *heads, "runs", "size", ""]
        yield "| " + " | ".join(columns) + " |"
        yield "|---" * (len(columns) + 2 * len(measures)) + "|"
        for line in lines:
            yield _line(of, line, measures)
        yield ""
    measured = {(line.row.number, line.method) for line in lines if line.is_measured}
    absent = [entry for entry in printed_lines(of) if entry not in measured]
    if absent:
        yield f"Not run: {_listed(absent, len(of.rows))}.\n"
    elif not lines:
        yield "Not run. The paper prints no numbers here.\n"


def _line(of: Table, line: MeasuredLine, measures: Mapping[str, Scale]) -> str:
    printed = line.row.values.get(line.method, {})
    cells = [str(line.row.number), _setting(of, line), of.methods.get(line.method, f"`{line.method}` (not printed)")]
    for name, measure in measures.items():
        guess = line.guess(name)
        blind = None if guess is None else Printed(guess.mean)
        values = printed.get(name), line.value(name, of.deviation), blind
        cells += [number(value, measure.digits) if value is not None else MISSING for value in values]
    verdict = line.verdict(of) if line.is_measured else "older page"
    runs = f"{line.runs} of {of.clients}" if of.clients else str(line.runs)
    return "| " + " | ".join([*cells, runs, line.size() or MISSING, verdict or MISSING]) + " |"


def _setting(of: Table, line: MeasuredLine) -> str:
    fields = [f"{title} {setting_text(line.row.setting[name])}" for name, title in of.columns.items()]
    part = next((result.part for result in line.results if result.part), "")
    return ", ".join(fields).replace("|", "/") + (f" ({part})" if part and len(line.results) == 1 else "")


def _listed(entries: Sequence[tuple[int, str]], rows: int) -> str:
    """Return rows by method, in ranges.

    >>> _listed([(1, "sme"), (2, "sme"), (3, "sme"), (2, "ig")], 4)
    'sme rows 1 to 3; ig row 2'
    """
    texts = []
    for method, missing in values_by_key((method, row) for row, method in entries).items():
        listed = f"row{'s' if len(missing) > 1 else ''} {ranges(missing)}"
        texts.append(f"{method} all rows" if len(missing) == rows > 1 else f"{method} {listed}")
    return "; ".join(texts)
