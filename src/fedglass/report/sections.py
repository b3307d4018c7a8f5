"""The parts of an audit's page as plain values, computed from the records alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedglass.core.scale import Scale
from fedglass.core.text import AFTER_ROUND
from fedglass.report.charts import Dot, energy_chart, interval_plot, sweep_chart, trade_off
from fedglass.report.glossary import Label
from fedglass.report.page import Cell, Names, Table, by_text, message_name, some
from fedglass.verdict.doubts import Kind
from fedglass.verdict.flags import flags_of
from fedglass.verdict.gate import Gate, is_mute
from fedglass.verdict.images import ImageScores
from fedglass.verdict.records import Record
from fedglass.verdict.summary import Case, Group, Interval
from fedglass.verdict.texts import count, percent

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


# What exact attacks read: they solve equations of the message instead of searching.


def read_exactly(found: Record | Case) -> str:
    """Return by which method something was read, and whether that was verified."""
    return f"read by {found.method}" + ("; verified: it explains the message" if found.explains else "; not verified")


def exact_lines(records: Sequence[Record], gate: Gate, names: Names) -> list[tuple[str, str]]:
    """Return what exact attacks read from each message, or why they read nothing."""
    told = [(text, message_name(record, names)) for record in records for text in _told(record, gate)]
    return by_text(told)


def _told(record: Record, gate: Gate) -> list[str]:
    if record.method:
        return [f"{count(len(record.labels_recovered), 'image')} {read_exactly(record)}."]
    return [flag.text for flag in flags_of(record, gate) if flag.kind is Kind.NO_EXACT_METHOD]


# What attacks reach over a number that the plan sweeps, beside the best blind guess.


ROUND = "round"


def sweep_figures(records: Sequence[Record], gate: Gate, scales: Scales) -> list[Figure]:
    """One chart for each swept option and metric, the gate's first; without a guess to compare with there is none.

    Rounds are swept wherever an audit looks at several.
    """
    found = []
    for option in dict.fromkeys((*(name for record in records for name in record.swept), *_rounds(records))):
        chosen = [record for record in records if option in _places(record) and record.status == "done"]
        metrics = dict.fromkeys(name for record in chosen for name in record.metrics if name in record.blind)
        for metric in sorted(metrics, key=lambda name: name != gate.metric):
            note = _read(chosen, option, gate) if metric == gate.metric else ""
            found.append(_figure(chosen, option, metric, scales, note))
    return found


def _places(record: Record) -> dict[str, float]:
    """Where a record stands on every axis that may be swept."""
    return {**record.swept, ROUND: float(record.round)}


def _rounds(records: Sequence[Record]) -> list[str]:
    return [ROUND] if len({record.round for record in records}) > 1 else []


def _figure(records: Sequence[Record], option: str, metric: str, scales: Scales, note: str) -> Figure:
    at = [_places(record)[option] for record in records]
    places = sorted(set(at))
    attacks = dict.fromkeys(record.attack for record in records)
    rows = list(zip(records, at, strict=True))
    series = {
        attack: [
            _finite_mean(
                v for r, where in rows if (r.attack, where) == (attack, place) for v in r.metrics.get(metric, ())
            )
            for place in places
        ]
        for attack in attacks
    }
    blind = [
        _finite_mean(v for r, where in rows if where == place for v in r.blind.get(metric, ())) for place in places
    ]
    axis, title = option.replace("_", " "), scales[metric].title
    svg = sweep_chart(f"{title} over {axis}", places, series, blind, f"{axis} (at equal distances)", title)
    side = "higher" if scales[metric].higher_leaks else "lower"
    return Figure(f"{title} over {axis} ({side} = more leaked)", svg, note)


def _finite_mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _read(records: Sequence[Record], option: str, gate: Gate) -> str:
    """How much is recovered at each value, and how good the model is there, in a sentence."""
    told = []
    for place in sorted({_places(record)[option] for record in records}):
        here = [record for record in records if _places(record)[option] == place]
        hits = [hit for record in here for hit in gate.hits(ImageScores.of(record))]
        accuracy = _finite_mean(record.utility.get(AFTER_ROUND) for record in here) if option == ROUND else None
        beside = "" if accuracy is None else f" (test accuracy {percent(accuracy)})"
        told.append(f"{place:g}: {sum(hits)} of {count(len(hits), 'image')}{beside}")
    return f"Recovered ({gate.rule}) at {'; '.join(told)}."


# Whose images came back, where the records say whose each image is.


COULD = {"server": "whoever reads the server", "aggregate": "whoever reads the server"}


def whose_images(records: Sequence[Record], gate: Gate, names: Names) -> Table | None:
    """By view, how many images of each client some attack recovered; None where no record says whose they are."""
    views: dict[str, list[Record]] = {}
    for record in records:
        if record.status == "done" and record.owners and not is_mute(record):
            views.setdefault(record.view, []).append(record)
    rows = [_row(names[view], group, gate) for view, group in views.items()]
    return Table(["view", "who could do this", "came back", "whose"], rows) if rows else None


def _row(name: str, records: Sequence[Record], gate: Gate) -> list[Cell | str]:
    owners, came = records[0].owners, _came_back(records, gate)
    each = [_of(client, owners, came) for client in dict.fromkeys(owners)]
    return [name, _could(records[0]), f"{len(came)} of {len(owners)}", ", ".join(some(each, 12))]


def _came_back(records: Sequence[Record], gate: Gate) -> set[int]:
    """The images that some attack recovered in some repeat."""
    return {i for record in records for i, hit in enumerate(gate.hits(ImageScores.of(record))) if hit}


def _of(client: str, owners: Sequence[str], came: set[int]) -> str:
    """
    >>> _of("a", ["a", "b", "a"], {1, 2})
    'a: 1 of 2'
    """
    own = [i for i, owner in enumerate(owners) if owner == client]
    return f"{client}: {len(came.intersection(own))} of {len(own)}"


def _could(record: Record) -> str:
    if record.standpoint == "peer" and record.participants:
        return f"any of the {len(record.participants)} participants"
    return COULD.get(record.standpoint, "not told")
