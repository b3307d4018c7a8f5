"""The page of an advice: the setting to use, two charts, the best setting of each defence, and all settings."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from fedglass.advise.run import Advice
from fedglass.advise.tried import TriedSetting, distance_in_words, mean_accuracy, nearest_to_gate, pareto_front
from fedglass.report.charts import ChartPoint, front_chart
from fedglass.report.page import PageTable, TableCell, render, write_page
from fedglass.verdict.records import BASE_RATE
from fedglass.verdict.texts import LIMITS, TITLES, percent

REPORT = "report.html"
LOWEST = BASE_RATE / 2
"""Left end of the axis of leaks; smaller ones are drawn there."""
TONES = {"exposed": "leak"}
NO_CERTIFICATE = "none"
LEGEND = (
    "A point is the mean of one setting over its seeds, a bar its 95 % interval. The thin line joins settings that no "
    "other one beats in both. The ring marks the recommended setting. Shaded: more than the gate allows. Dotted: a "
    "blind guess among 1,000 records (0.1 %), accuracy without a defence, and accuracy of naming the commonest class."
)
READING = (
    "Measured leak: the share of records that a message names among 1,000 similar examples, or the share of images "
    "that an attack recovered, whichever is larger; of several messages the worst. It is what attacks reach at least.",
    "Certified leak: the largest share that any adversary can name, over all planned rounds. Only a certificate leads "
    "to CLEAR, and only a setting that is CLEAR is recommended. A low measured leak alone is not a protection.",
    "The attacks know the defence: the candidate game takes the declared noise into account and reads only the entries "
    "that pruning left, and one of the exact attacks is made for weak noise.",
    "Exact attacks and the game ran on every setting. The searches of the plan ran on the weakest and the strongest "
    "setting of each defence, and on the recommended one.",
)


@dataclass(frozen=True)
class FrontFigure:
    """A chart with its heading."""

    title: str
    svg: Markup
    note: str = ""


def write_advice(directory: Path, advice: Advice, plan_name: str) -> Path:
    """Write the page into the output directory; `plan_name` is the file of the recommended plan."""
    best = advice.recommended
    html = render(
        "advise.html",
        title=advice.title or "Which defence, at which strength?",
        state="inconclusive" if best is None else "clear",
        heading="No setting meets the gate" if best is None else "Recommended",
        lead=lead_of(advice),
        caveats=caveats_of(advice, plan_name),
        limits=() if best is None else LIMITS,
        facts=_facts(advice),
        legend=LEGEND,
        charts=_charts(advice),
        best=_best_of_chains(advice),
        settings=_all_settings(advice),
        reports=[(s.folder, s.name) for chain in advice.chains for s in advice.of_chain(chain)],
        reading=[*READING, compared(advice)],
    )
    return write_page(directory / REPORT, html)


def lead_of(advice: Advice) -> str:
    """Return the answer in a sentence."""
    best = advice.recommended
    if best is None:
        nearest = nearest_to_gate(advice.tried)
        return f"No setting meets the gate. The nearest is {nearest.name}: {distance_in_words(nearest, advice.gate)}."
    certified = "" if best.certified is None else f", certified leak {percent(best.certified)}"
    return f"Use {best.name}: accuracy {best.accuracy}{certified}."


def caveats_of(advice: Advice, plan_name: str) -> list[str]:
    """Return what was checked on other seeds, what to do next, and what is missing."""
    lines = []
    if advice.recommended is not None:
        again = advice.checked[-1]
        lines += [
            f"On {advice.seeds} other seeds, which had no part in the choice, it is CLEAR, accuracy {again.accuracy}.",
            f"The plan with this setting is {plan_name}: fedglass audit {plan_name} -o out.",
        ]
        if again.accuracy.low <= advice.chance:
            lines.append("Its accuracy cannot be told from naming the commonest class, so the model may be useless.")
    else:
        lines.append(
            "Only noise of known size has a certificate: compare dpsgd, or clip followed by gaussian_noise, "
            "or plan fewer rounds."
        )
    if advice.stopped:
        lines.append("The time was over before all settings were tried; run the same command again to continue.")
    return lines


def compared(advice: Advice) -> str:
    """Return a sentence about the number of settings that the choice is among."""
    return (
        f"{len(advice.tried)} settings of {len(advice.chains)} defences were compared, each on {advice.seeds} seeds. "
        "The best of many looks better than it is, so a setting is audited again on other seeds before it is "
        "recommended. A certificate holds for any number of settings; the game's limits do not correct for it."
    )


def _facts(advice: Advice) -> list[tuple[str, str]]:
    undefended = undefended_accuracy(advice)
    return [
        ("settings", f"{len(advice.tried)} of {len(advice.chains)} defences"),
        ("seeds", str(advice.seeds)),
        ("gate", f"at most {percent(advice.gate.max_success)} named among 1,000"),
        *([] if undefended is None else [("accuracy without a defence", percent(undefended))]),
        ("accuracy of the commonest class", percent(advice.chance)),
    ]


def undefended_accuracy(advice: Advice) -> float | None:
    """Return the mean accuracy without a defence."""
    values = [value for setting in advice.tried for value in setting.undefended]
    return statistics.fmean(values) if values else None


def _charts(advice: Advice) -> list[FrontFigure]:
    x_title, gate = "share of records named among 1,000", advice.gate
    return [
        _chart(advice, "Accuracy against measured leak", x_title, lambda s: s.measured, gate.max_singling_out),
        _chart(advice, "Accuracy against certified leak", x_title, lambda s: s.certified, gate.max_success),
    ]


def _chart(
    advice: Advice, title: str, x_title: str, leak: Callable[[TriedSetting], float | None], limit: float
) -> FrontFigure:
    series: dict[str, list[ChartPoint]] = {}
    for chain in advice.chains:
        for s in advice.of_chain(chain):
            if (x := leak(s)) is not None:
                marked = advice.recommended is not None and s.name == advice.recommended.name
                point = ChartPoint(max(x, LOWEST), s.accuracy.mean, s.accuracy.low, s.accuracy.high, marked)
                series.setdefault(chain.title, []).append(point)
    undefended = undefended_accuracy(advice)
    levels = {"commonest class": advice.chance, **({} if undefended is None else {"no defence": undefended})}
    front = pareto_front([(p.x, p.y) for points in series.values() for p in points])
    svg = front_chart(
        title, series, front, x_title, "test accuracy", span=(LOWEST, 1.0), limit=limit, blind=BASE_RATE, levels=levels
    )
    missing = sum(leak(s) is None for s in advice.tried)
    return FrontFigure(title, svg, f"{missing} settings have no such figure and are left out." if missing else "")


def _cells(setting: TriedSetting, advice: Advice) -> list[TableCell | str]:
    tone = TONES.get(setting.state, setting.state)
    recovered = f"{setting.recovered} of {setting.images} images recovered" if setting.recovered else ""
    return [
        TableCell("", badge=TITLES[setting.state], tone=tone),
        TableCell(
            percent(setting.accuracy.mean), f"{percent(setting.accuracy.low)} to {percent(setting.accuracy.high)}"
        ),
        TableCell("not measured" if setting.measured is None else percent(setting.measured), recovered),
        NO_CERTIFICATE if setting.certified is None else percent(setting.certified),
        distance_in_words(setting, advice.gate),
    ]


COLUMNS = ("verdict", "accuracy", "measured leak", "certified leak", "distance to the gate")


def _best_of_chains(advice: Advice) -> PageTable:
    """Return the cheapest setting that meets the gate of each chain, or the nearest."""
    rows: list[list[TableCell | str]] = []
    for chain in advice.chains:
        settings = advice.of_chain(chain)
        if settings:
            best = max(
                (s for s in settings if s.clear), key=lambda s: s.accuracy.mean, default=nearest_to_gate(settings)
            )
            rows.append([TableCell(chain.title, f"{best.option} {best.value:g}"), *_cells(best, advice)])
    return PageTable(["defence", *COLUMNS], rows)


def _all_settings(advice: Advice) -> PageTable:
    rows: list[list[TableCell | str]] = []
    for chain in advice.chains:
        for s in advice.of_chain(chain):
            badge = "recommended" if advice.recommended is not None and s.name == advice.recommended.name else ""
            rows.append([TableCell(f"{s.option} {s.value:g}", chain.title, badge, "clear"), *_cells(s, advice)])
    for s in advice.checked:
        rows.append([TableCell(f"{s.option} {s.value:g}", f"{s.title}, on other seeds"), *_cells(s, advice)])
    return PageTable(["setting", *COLUMNS], rows)


def advice_as_json(advice: Advice) -> dict[str, object]:
    """Return an advice as JSON."""
    best = advice.recommended
    return {
        "state": "none" if best is None else "recommended",
        "exit_code": advice.exit_code,
        "sentence": lead_of(advice),
        "complete": not advice.stopped,
        "chance_accuracy": advice.chance,
        "undefended_accuracy": undefended_accuracy(advice),
        "gate": {"max_success": advice.gate.max_success, "max_singling_out": advice.gate.max_singling_out},
        "recommended": None if best is None else _setting_as_json(best),
        "checked": [_setting_as_json(setting) for setting in advice.checked],
        "settings": [_setting_as_json(setting) for setting in advice.tried],
    }


def _setting_as_json(setting: TriedSetting) -> dict[str, object]:
    accuracy = mean_accuracy(setting.accuracies)
    return {
        "defence": setting.title,
        "option": setting.option,
        "value": setting.value,
        "folder": setting.folder,
        "verdict": setting.state,
        "accuracy": {"mean": accuracy.mean, "low": accuracy.low, "high": accuracy.high, "seeds": [*setting.accuracies]},
        "measured": setting.measured,
        "certified": setting.certified,
        "images": {"recovered": setting.recovered, "of": setting.images},
        "attacks": [*setting.attacks],
    }
