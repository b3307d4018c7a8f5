"""The parts of an audit's page as plain values, computed from the records alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedglass.core.scale import Scale
from fedglass.ledger.records import Record, Severity
from fedglass.report.charts import Dot, energy_chart, interval_plot, trade_off
from fedglass.report.page import Cell, Table
from fedglass.verdict.gate import Gate
from fedglass.verdict.summary import Group, Interval

Scales = Mapping[str, Scale]
"""How each metric of the records reads."""

CHARTS = 12
"""Energy charts in one page, the attacks that leaked most first."""
MOST_ROUNDS = 12
"""Rounds of which the page says whose updates got through."""
TONES: dict[Severity, str] = {"serious": "leak", "warning": "inconclusive", "info": ""}


@dataclass(frozen=True)
class ThreatModel:
    """What one kind of adversary sees and knows, and which attacks it played."""

    attacks: Sequence[str]
    sees: Sequence[str]
    knows: Sequence[tuple[str, Cell]]
    """Facts that not all adversaries of the audit share."""


@dataclass(frozen=True)
class FlagGroup:
    """A flag, its explanations, and how many cases carry it."""

    name: str
    severity: Severity
    tone: str
    texts: Sequence[str]
    cases: str
    attacks: Sequence[str]


@dataclass(frozen=True)
class Figure:
    """A chart and what is written above and below it."""

    title: str
    svg: Markup
    note: str = ""


def common_knowledge(records: Sequence[Record]) -> Table:
    """The facts that every adversary of the audit was given."""
    return Table(["", ""], [_fact(*item) for item in _common(records).items()])


def threat_models(records: Sequence[Record]) -> list[ThreatModel]:
    """One for each distinct set of facts that an adversary was given, with what is not common to all."""
    groups: dict[tuple[tuple[str, str], ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record.knows.items()), []).append(record)
    common = _common(records)
    return [
        ThreatModel(
            attacks=list(dict.fromkeys(r.attack for r in group)),
            sees=_some([r.view for r in group]),
            knows=[_fact(name, words) for name, words in facts if name not in common],
        )
        for facts, group in groups.items()
    ]


def defences(records: Sequence[Record]) -> list[tuple[str, Sequence[str]]]:
    """What protects the messages, and in which views where those differ; nothing where nobody knows."""
    found: dict[tuple[str, ...], list[str]] = {}
    for record in records:
        if record.defences is not None:
            found.setdefault(tuple(record.defences) or ("No defence.",), []).append(record.view)
    together = len(found) == 1 and all(record.defences is not None for record in records)
    return [("" if together else "; ".join(_some(views)), lines) for lines, views in found.items()]


def got_through(records: Sequence[Record]) -> list[str]:
    """Whose updates the aggregation rule let through in each audited round, and what poisoners did there."""
    rounds = dict.fromkeys((r.round, tuple(r.participants), tuple(r.kept)) for r in records if r.participants)
    lines = [_got_through(*facts) for facts in sorted(rounds)]
    return _some([*lines, *(line for record in records for line in record.behaviours)], MOST_ROUNDS)


def _got_through(index: int, participants: Sequence[str], kept: Sequence[str]) -> str:
    """One round in a sentence.

    >>> _got_through(3, ("a", "b", "c"), ("b",))
    'Round 3: 1 of 3 updates got through the aggregation rule (b); not those of a, c.'
    """
    lost = [name for name in participants if name not in kept]
    if not lost:
        return f"Round {index}: all {len(participants)} updates got through the aggregation rule."
    named = f" ({', '.join(_some(kept))})" if kept else ""
    return (
        f"Round {index}: {len(kept)} of {len(participants)} updates got through the aggregation rule{named}; not those "
        f"of {', '.join(_some(lost))}."
    )


def figures_table(groups: Sequence[Group], gate: Gate, scales: Scales) -> Table:
    """Counts, share recovered and every metric, with intervals."""
    metrics = metric_names(groups, gate)
    named = "attack" if all(g.view is None for g in groups) else "attack and view"
    titles = [scales[m].title + (" ↑" if scales[m].higher_leaks else " ↓") for m in metrics]
    columns = [named, "cases", "recovered", *titles, "labels wrong", "time per case"]
    return Table(columns, [_figures_row(group, metrics, scales) for group in groups])


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


def energy_figures(records: Sequence[Record], groups: Sequence[Group]) -> tuple[list[Figure], int]:
    """Energy curves by attack and view, and how many charts were left out."""
    order = {group.attack: place for place, group in enumerate(groups)}
    parts: dict[tuple[str, str], list[Record]] = {}
    for record in sorted((r for r in records if r.trace), key=lambda r: order.get(r.attack, len(order))):
        parts.setdefault((record.attack, record.view), []).append(record)
    figures = [_energy(attack, view, chosen) for (attack, view), chosen in list(parts.items())[:CHARTS]]
    return figures, len(parts) - len(figures)


def utility_table(groups: Sequence[Group], gate: Gate) -> tuple[Table | None, Figure | None]:
    """How good the model is beside what it gave away; a plot where the models differ."""
    names = list(dict.fromkeys(name for group in groups for name in group.utility))
    if not names:
        return None, None
    title = gate.scale.title
    rows: list[list[Cell | str]] = [
        [_name(g), *(_plain(g.utility.get(n)) for n in names), _share(g), _mean(g, gate.metric, gate.scale)]
        for g in groups
    ]
    series: dict[str, list[tuple[float, float]]] = {}
    for g in groups:
        if names[0] in g.utility and gate.metric in g.metrics:
            series.setdefault(g.attack, []).append((g.utility[names[0]], g.metrics[gate.metric].mean))
    plot = None
    if len({x for points in series.values() for x, _ in points}) > 1:
        plot = Figure(f"{title} against {names[0]}", trade_off("Utility and leakage", series, names[0], title))
    return Table(["attack", *names, "recovered", title], rows), plot


def flag_groups(records: Sequence[Record]) -> list[FlagGroup]:
    """The flags of all records, the serious ones first."""
    groups: dict[tuple[str, Severity], list[tuple[str, Record]]] = {}
    for record in records:
        for flag in record.flags:
            groups.setdefault((flag.name, flag.severity), []).append((flag.text, record))
    order = list(TONES)
    return [
        FlagGroup(
            name=name,
            severity=severity,
            tone=TONES[severity],
            texts=_some([text for text, _ in found]),
            cases=f"{len({r.key for _, r in found})} of {len(records)} cases",
            attacks=list(dict.fromkeys(r.attack for _, r in found)),
        )
        for (name, severity), found in sorted(groups.items(), key=lambda item: order.index(item[0][1]))
    ]


def next_step(records: Sequence[Record]) -> str:
    """What to do about the first serious flag, which is what its text ends with; empty without one.

    >>> _last_sentence("The search failed (0.1 and 0.2). Give the attack more iterations.")
    'Give the attack more iterations.'
    """
    texts = [flag.text for record in records for flag in record.flags if flag.severity == "serious"]
    return _last_sentence(texts[0]) if texts else ""


def _last_sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", text.strip())[-1]


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


def _figures_row(group: Group, metrics: Sequence[str], scales: Scales) -> list[Cell | str]:
    cases = f"{group.cases}" + (f" ({group.failed} failed)" if group.failed else "")
    labels = "n/a" if group.label_errors is None else f"{group.label_errors} of {group.labels}"
    means = [_mean(group, metric, scales[metric]) for metric in metrics]
    return [_name(group), cases, _share(group), *means, labels, f"{group.seconds:.1f} s"]


def _name(group: Group) -> Cell:
    return Cell(group.attack, note=group.view or "", badge="oracle" if group.oracle else "", tone="inconclusive")


def _share(group: Group) -> Cell:
    if group.share is None:
        return Cell("n/a")
    low, high = group.share.low or 0.0, 1.0 if group.share.high is None else group.share.high
    return Cell(f"{group.recovered} of {group.images}", note=f"{low:.0%} to {high:.0%}")


def _mean(group: Group, metric: str, scale: Scale) -> Cell:
    found = group.metrics.get(metric)
    if found is None:
        return Cell("n/a")
    if found.low is None or found.high is None:
        return Cell(scale.show(found.mean), note="one image, no interval")
    star = "*" if found.resampled == "images" else ""
    return Cell(scale.show(found.mean), note=f"{found.low:.{scale.digits}f} to {found.high:.{scale.digits}f}{star}")


def _dot(group: Group, found: Interval, text: str) -> Dot:
    label = group.attack if group.view is None else f"{group.attack}, {group.view}"
    return Dot(label, text, found.mean, found.low, found.high)


def _energy(attack: str, view: str, records: Sequence[Record]) -> Figure:
    truth = [r.energy_truth for r in records if r.energy_truth is not None]
    blind = [r.energy_blind for r in records if r.energy_blind is not None]
    known = [r.iterations for r in records if r.iterations is not None]
    curves = [r.trace for r in records]
    svg = energy_chart(f"Energy of {attack}", curves, truth, blind, max(known) if known else None)
    return Figure(attack, svg, view)


def _common(records: Sequence[Record]) -> dict[str, str]:
    """Facts that all records share, word for word."""
    first = records[0].knows if records else {}
    return {name: words for name, words in first.items() if all(r.knows.get(name) == words for r in records)}


def _fact(name: str, words: str) -> tuple[str, Cell]:
    oracle = "oracle" in words.lower() or "oracle" in name.lower()
    plain = words.replace("(oracle)", "").strip()
    return name.replace("_", " "), Cell(plain, badge="oracle" if oracle else "", tone="inconclusive")


def _plain(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3g}"


def _some(texts: Sequence[str], limit: int = 6) -> list[str]:
    """Distinct texts in order, the rest counted."""
    distinct = list(dict.fromkeys(texts))
    left = len(distinct) - limit
    return distinct if left <= 0 else [*distinct[:limit], f"and {left} more of this kind"]
