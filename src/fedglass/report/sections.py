"""The parts of an audit's page as plain values, computed from the records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedglass.core.scale import Scale
from fedglass.ledger.records import Record
from fedglass.report.charts import Dot, energy_chart, interval_plot, trade_off
from fedglass.report.flags import Label
from fedglass.report.names import Names
from fedglass.report.page import Cell, Table
from fedglass.verdict.gate import Gate
from fedglass.verdict.summary import Group, Interval
from fedglass.verdict.texts import percent

Scales = Mapping[str, Scale]
"""How each metric of the records reads."""

CHARTS = 12
"""Charts of one kind in a page, those that leaked most first."""


@dataclass(frozen=True)
class Figure:
    """A chart and what is written above and below it."""

    title: str
    svg: Markup
    note: str = ""
    labels: Sequence[Label] = ()
    """Doubts of what it shows."""


def figures_table(groups: Sequence[Group], gate: Gate, scales: Scales, names: Names) -> Table:
    """Counts, share recovered and every metric, with intervals."""
    metrics = metric_names(groups, gate)
    named = "attack" if all(g.view is None for g in groups) else "attack and view"
    titles = [scales[m].title + (" ↑" if scales[m].higher_leaks else " ↓") for m in metrics]
    columns = [named, "cases", "recovered", *titles, "labels wrong", "time per case"]
    return Table(columns, [_figures_row(group, metrics, scales, names) for group in groups])


def metric_plots(groups: Sequence[Group], gate: Gate, scales: Scales) -> list[Figure]:
    """One interval plot per metric, the gate's first."""
    plots = []
    for metric in metric_names(groups, gate):
        scale, shown = scales[metric], [g for g in groups if metric in g.metrics]
        dots = [_dot(g, g.metrics[metric], scale.show(g.metrics[metric].mean)) for g in shown]
        limit = gate.threshold if metric == gate.metric else None
        note = f"Shaded: recovered ({gate.rule})." if limit is not None else ""
        side = "higher" if scale.higher_leaks else "lower"
        svg = interval_plot(f"Mean {scale.title} of each attack", dots, limit, scale.higher_leaks)
        plots.append(Figure(f"{scale.title} ({side} = more leaked)", svg, note))
    return plots


def energy_figures(records: Sequence[Record], groups: Sequence[Group], names: Names) -> tuple[list[Figure], int]:
    """Energy curves by attack and view, and how many charts were left out."""
    order = {group.attack: place for place, group in enumerate(groups)}
    parts: dict[tuple[str, str], list[Record]] = {}
    for record in sorted((r for r in records if r.trace), key=lambda r: order.get(r.attack, len(order))):
        parts.setdefault((record.attack, record.view), []).append(record)
    figures = [_energy(attack, names[view], chosen) for (attack, view), chosen in list(parts.items())[:CHARTS]]
    return figures, len(parts) - len(figures)


def utility_table(groups: Sequence[Group], gate: Gate, names: Names) -> tuple[Table | None, Figure | None]:
    """How good the model is beside what it gave away; a plot where the models differ."""
    kinds = list(dict.fromkeys(name for group in groups for name in group.utility))
    if not kinds:
        return None, None
    title = gate.scale.title
    rows: list[list[Cell | str]] = [
        [
            _name(g, names),
            *(_plain(g.utility.get(kind)) for kind in kinds),
            _share(g),
            _mean(g, gate.metric, gate.scale),
        ]
        for g in groups
    ]
    series: dict[str, list[tuple[float, float]]] = {}
    for g in groups:
        if kinds[0] in g.utility and gate.metric in g.metrics:
            series.setdefault(g.attack, []).append((g.utility[kinds[0]], g.metrics[gate.metric].mean))
    plot = None
    if len({x for points in series.values() for x, _ in points}) > 1:
        plot = Figure(f"{title} against {kinds[0]}", trade_off("Utility and leakage", series, kinds[0], title))
    return Table(["attack", *kinds, "recovered", title], rows), plot


def versions_table(records: Sequence[Record]) -> Table:
    """Every version that a record was made with; more than one a row means a mixed audit."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        for name, version in record.versions.items():
            found.setdefault(name, {})[version] = None
    return Table(["part", "version"], [[name, ", ".join(values)] for name, values in found.items()])


def metric_names(groups: Sequence[Group], gate: Gate) -> list[str]:
    """Every metric that some group has, the gate's first."""
    names = dict.fromkeys(name for group in groups for name in group.metrics)
    return sorted(names, key=lambda name: name != gate.metric)


def skipped_metrics(records: Sequence[Record], scales: Scales) -> list[tuple[str, str]]:
    """Metrics that were left out, and why."""
    found = dict.fromkeys(item for record in records for item in record.skipped_metrics.items())
    return [(scales[name].title, why) for name, why in found]


def _figures_row(group: Group, metrics: Sequence[str], scales: Scales, names: Names) -> list[Cell | str]:
    cases = f"{group.cases}" + (f" ({group.failed} failed)" if group.failed else "")
    labels = "n/a" if group.label_errors is None else f"{group.label_errors} of {group.labels}"
    means = [_mean(group, metric, scales[metric]) for metric in metrics]
    return [_name(group, names), cases, _share(group), *means, labels, f"{group.seconds:.1f} s"]


def _name(group: Group, names: Names) -> Cell:
    view = "" if group.view is None else names[group.view]
    return Cell(group.attack, note=view, badge="oracle" if group.oracle else "", tone="inconclusive")


def _share(group: Group) -> Cell:
    if group.share is None:
        return Cell("n/a")
    low, high = group.share.low or 0.0, 1.0 if group.share.high is None else group.share.high
    return Cell(f"{group.recovered} of {group.images}", note=f"{percent(round(low, 2))} to {percent(round(high, 2))}")


def _mean(group: Group, metric: str, scale: Scale) -> Cell:
    found = group.metrics.get(metric)
    if found is None:
        return Cell("n/a")
    if found.low is None or found.high is None:
        return Cell(scale.show(found.mean), note="one image, no interval")
    star = "*" if found.resampled == "images" else ""
    return Cell(scale.show(found.mean), note=f"{found.low:.{scale.digits}f} to {found.high:.{scale.digits}f}{star}")


def _dot(group: Group, found: Interval, text: str) -> Dot:
    return Dot(group.attack, text, found.mean, found.low, found.high)


def _energy(attack: str, view: str, records: Sequence[Record]) -> Figure:
    truth = [r.energy_truth for r in records if r.energy_truth is not None]
    blind = [r.energy_blind for r in records if r.energy_blind is not None]
    known = [r.iterations for r in records if r.iterations is not None]
    curves = [r.trace for r in records]
    svg = energy_chart(f"Energy of {attack}", curves, truth, blind, max(known) if known else None)
    return Figure(attack, svg, view)


def _plain(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3g}"
