"""The sections of an audit's page about attacks: figures, energies, utility, sweeps, exact reads, and owners of images.

Each is a plain value, computed from the records alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from fedglass.core.metric_scale import Scale
from fedglass.core.text import AFTER_ROUND, TEST_ACCURACY, values_by_key
from fedglass.report.charts import ChartRow, energy_chart, interval_plot, sweep_chart, trade_off
from fedglass.report.overview import reader, recovered_by_client
from fedglass.report.page import ChartFigure, Names, PageTable, TableCell, by_text, message_name, some
from fedglass.verdict.collect_doubts import flags_of
from fedglass.verdict.doubts import DoubtKind
from fedglass.verdict.gate import Gate, attacks_in
from fedglass.verdict.images import ImageScores
from fedglass.verdict.records import Record, grouped
from fedglass.verdict.summary import AttackFigures, ScoredImage
from fedglass.verdict.texts import count, percent

Scales = Mapping[str, Scale]
"""Metric -> its scale."""

CHARTS = 12
"""Largest number of charts of one kind in a page, those that leaked most first."""


def figures_table(groups: Sequence[AttackFigures], gate: Gate, scales: Scales, names: Names) -> PageTable:
    """Return counts, shares recovered and every metric, with intervals."""
    metrics = metric_names(groups, gate)
    named = "attack" if all(g.view is None for g in groups) else "attack and view"
    titles = [scales[m].title + (" ↑" if scales[m].higher_leaks else " ↓") for m in metrics]
    columns = [named, "cases", "recovered", *titles, "labels wrong", "time per case"]
    rows = list[list[TableCell | str]]()
    for g in groups:
        cases = f"{g.cases}" + (f" ({g.failed} failed)" if g.failed else "")
        labels = "n/a" if g.label_errors is None else f"{g.label_errors} of {g.labels}"
        means = [_mean(g, metric, scales[metric]) for metric in metrics]
        rows.append([_name(g, names), cases, _share(g), *means, labels, f"{g.seconds:.1f} s"])
    return PageTable(columns, rows)


def metric_plots(groups: Sequence[AttackFigures], gate: Gate, scales: Scales) -> list[ChartFigure]:
    """Return one interval plot per metric, the gate's first."""
    plots = []
    for metric in metric_names(groups, gate):
        scale, means = scales[metric], {g.attack: g.metrics[metric] for g in groups if metric in g.metrics}
        rows = [ChartRow(a, scale.show(m.mean), [m.mean], low=m.low, high=m.high) for a, m in means.items()]
        limit = gate.threshold if metric == gate.metric else None
        note = f"Shaded: recovered ({gate.rule})." if limit is not None else ""
        side = "higher" if scale.higher_leaks else "lower"
        svg = interval_plot(f"Mean {scale.title} of each attack", rows, limit, scale.higher_leaks)
        plots.append(ChartFigure(f"{scale.title} ({side} = more leaked)", svg, note))
    return plots


def energy_figures(
    records: Sequence[Record], groups: Sequence[AttackFigures], names: Names
) -> tuple[list[ChartFigure], int]:
    """Return energy curves by attack and view, and the number of omitted charts."""
    order = {group.attack: place for place, group in enumerate(groups)}
    traced = sorted((r for r in records if r.trace), key=lambda r: order.get(r.attack, len(order)))
    parts = grouped(traced, lambda record: (record.attack, record.view))
    figures = []
    for (attack, view), chosen in list(parts.items())[:CHARTS]:
        truth = [r.energy_truth for r in chosen if r.energy_truth is not None]
        blind = [r.energy_blind for r in chosen if r.energy_blind is not None]
        iterations = max((r.iterations for r in chosen if r.iterations is not None), default=None)
        svg = energy_chart(f"Energy of {attack}", [r.trace for r in chosen], truth, blind, iterations)
        figures.append(ChartFigure(attack, svg, names[view]))
    return figures, len(parts) - len(figures)


def utility_table(
    groups: Sequence[AttackFigures], gate: Gate, names: Names
) -> tuple[PageTable | None, ChartFigure | None]:
    """Return the quality of the model next to the leak, and a plot if the models differ."""
    kinds = list(dict.fromkeys(name for group in groups for name in group.utility))
    if not kinds:
        return None, None
    title = gate.scale.title
    rows: list[list[TableCell | str]] = [
        [
            _name(g, names),
            *(f"{g.utility[kind]:.3g}" if kind in g.utility else "n/a" for kind in kinds),
            _share(g),
            _mean(g, gate.metric, gate.scale),
        ]
        for g in groups
    ]
    measured = [g for g in groups if kinds[0] in g.utility and gate.metric in g.metrics]
    series = values_by_key((g.attack, (g.utility[kinds[0]], g.metrics[gate.metric].mean)) for g in measured)
    plot = None
    if len({x for points in series.values() for x, _ in points}) > 1:
        plot = ChartFigure(f"{title} against {kinds[0]}", trade_off("Utility and leakage", series, kinds[0], title))
    return PageTable(["attack", *kinds, "recovered", title], rows), plot


def versions_table(records: Sequence[Record]) -> PageTable:
    """Return the versions of all parts; several in a row mean that versions were mixed."""
    versions = values_by_key(dict.fromkeys(item for record in records for item in record.versions.items()))
    return PageTable(["part", "version"], [[name, ", ".join(values)] for name, values in versions.items()])


def metric_names(groups: Sequence[AttackFigures], gate: Gate) -> list[str]:
    """Return every metric of the groups, the gate's first."""
    names = dict.fromkeys(name for group in groups for name in group.metrics)
    return sorted(names, key=lambda name: name != gate.metric)


def skipped_metrics(records: Sequence[Record], scales: Scales) -> list[tuple[str, str]]:
    """Return the skipped metrics with the reason."""
    skipped = dict.fromkeys(item for record in records for item in record.skipped_metrics.items())
    return [(scales[name].title, why) for name, why in skipped]


def _name(group: AttackFigures, names: Names) -> TableCell:
    view = "" if group.view is None else names[group.view]
    return TableCell(group.attack, note=view, badge="oracle" if group.oracle else "", tone="inconclusive")


def _share(group: AttackFigures) -> TableCell:
    if group.share is None:
        return TableCell("n/a")
    low, high = group.share.low or 0.0, 1.0 if group.share.high is None else group.share.high
    return TableCell(
        f"{group.recovered} of {group.images}", note=f"{percent(round(low, 2))} to {percent(round(high, 2))}"
    )


def _mean(group: AttackFigures, metric: str, scale: Scale) -> TableCell:
    mean = group.metrics.get(metric)
    if mean is None:
        return TableCell("n/a")
    if mean.low is None or mean.high is None:
        return TableCell(scale.show(mean.mean), note="one image, no interval")
    star = "*" if mean.resampled == "images" else ""
    return TableCell(scale.show(mean.mean), note=f"{mean.low:.{scale.digits}f} to {mean.high:.{scale.digits}f}{star}")


def read_exactly(read: Record | ScoredImage) -> str:
    """Return the exact method that read an image, and whether the result was verified."""
    return f"read by {read.method}" + ("; verified: it explains the message" if read.explains else "; not verified")


def exact_lines(records: Sequence[Record], gate: Gate, names: Names) -> list[tuple[str, str]]:
    """Return what exact attacks read from each message, or why they read nothing."""
    lines = []
    for record in records:
        texts = [flag.text for flag in flags_of(record, gate) if flag.kind is DoubtKind.NO_EXACT_METHOD]
        if record.method:
            texts = [f"{count(len(record.labels_recovered), 'image')} {read_exactly(record)}."]
        lines += [(text, message_name(record, names)) for text in texts]
    return by_text(lines)


ROUND = "round"


def sweep_figures(records: Sequence[Record], gate: Gate, scales: Scales) -> list[ChartFigure]:
    """Return one chart for each swept option and metric that has a blind guess, the gate's metric first.

    Rounds count as swept if an audit looks at several.
    """
    figures = []
    swept = [name for record in records for name in record.swept]
    swept += [ROUND] if len({record.round for record in records}) > 1 else []
    for option in dict.fromkeys(swept):
        chosen = [record for record in records if option in _places(record) and record.status == "done"]
        metrics = dict.fromkeys(name for record in chosen for name in record.metrics if name in record.blind)
        for metric in sorted(metrics, key=lambda name: name != gate.metric):
            note = _recovered_note(chosen, option, gate) if metric == gate.metric else ""
            figures.append(_figure(chosen, option, metric, scales, note))
    return figures


def _places(record: Record) -> dict[str, float]:
    """Return the value of a record on every axis that may be swept."""
    return {**record.swept, ROUND: float(record.round)}


def _figure(records: Sequence[Record], option: str, metric: str, scales: Scales, note: str) -> ChartFigure:
    rows = [(record, _places(record)[option]) for record in records]
    places = sorted({place for _, place in rows})

    def means(
        values: Callable[[Record], Mapping[str, Sequence[float | None]]], attack: str | None = None
    ) -> list[float | None]:
        chosen = [(values(record).get(metric, ()), at) for record, at in rows if attack in (None, record.attack)]
        return [_finite_mean(v for figures, at in chosen if at == place for v in figures) for place in places]

    series = {attack: means(lambda r: r.metrics, attack) for attack in dict.fromkeys(r.attack for r in records)}
    blind = means(lambda r: r.blind)
    axis, title = option.replace("_", " "), scales[metric].title
    accuracy = [_finite_mean(r.utility.get(TEST_ACCURACY) for r, at in rows if at == place) for place in places]
    shown = ["" if value is None else percent(round(value, 3)) for value in accuracy]
    x_title = f"{axis} (at equal distances){'; below: test accuracy' if any(shown) else ''}"
    svg = sweep_chart(f"{title} over {axis}", places, series, blind, x_title, title, shown if any(shown) else ())
    side = "higher" if scales[metric].higher_leaks else "lower"
    return ChartFigure(f"{title} over {axis} ({side} = more leaked)", svg, note)


def _finite_mean(values: Iterable[float | None]) -> float | None:
    finite = [value for value in values if value is not None]
    return statistics.fmean(finite) if finite else None


def _recovered_note(records: Sequence[Record], option: str, gate: Gate) -> str:
    """Return a sentence with the images recovered at each value, and the accuracy of the model there."""
    texts = []
    for place in sorted({_places(record)[option] for record in records}):
        records_there = [record for record in records if _places(record)[option] == place]
        hits = [hit for record in records_there for hit in gate.hits(ImageScores.of(record))]
        accuracy = _finite_mean(r.utility.get(AFTER_ROUND) for r in records_there) if option == ROUND else None
        note = "" if accuracy is None else f" (test accuracy {percent(accuracy)})"
        texts.append(f"{place:g}: {sum(hits)} of {count(len(hits), 'image')}{note}")
    return f"Recovered ({gate.rule}) at {'; '.join(texts)}."


def images_by_owner(records: Sequence[Record], gate: Gate, names: Names) -> PageTable | None:
    """Return, for each view, how many images of each client were recovered; None if the owners are unknown."""
    rows = []
    for view, group in grouped(attacks_in(records), lambda record: record.view).items():
        by_client = recovered_by_client(group, gate)
        if by_client:
            hits, images = (sum(column) for column in zip(*by_client.values(), strict=True))
            texts = [f"{client}: {some_hits} of {total}" for client, (some_hits, total) in by_client.items()]
            rows.append([names[view], reader(group[0]), f"{hits} of {images}", ", ".join(some(texts, 12))])
    return PageTable(["view", "who could do this", "recovered", "by client"], rows) if rows else None
