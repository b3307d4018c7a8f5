"""What attacks reach over a number that the plan sweeps, beside the best blind guess."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from fedglass.core.notes import AFTER_ROUND
from fedglass.ledger.records import Record
from fedglass.report.charts import sweep_chart
from fedglass.report.sections import Figure, Scales
from fedglass.verdict.gate import Gate
from fedglass.verdict.images import ImageScores
from fedglass.verdict.texts import count, percent

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
            _mean(v for r, where in rows if (r.attack, where) == (attack, place) for v in r.metrics.get(metric, ()))
            for place in places
        ]
        for attack in attacks
    }
    blind = [_mean(v for r, where in rows if where == place for v in r.blind.get(metric, ())) for place in places]
    axis, title = option.replace("_", " "), scales[metric].title
    svg = sweep_chart(f"{title} over {axis}", places, series, blind, f"{axis} (at equal distances)", title)
    side = "higher" if scales[metric].higher_leaks else "lower"
    return Figure(f"{title} over {axis} ({side} = more leaked)", svg, note)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _read(records: Sequence[Record], option: str, gate: Gate) -> str:
    """How much is recovered at each value, and how good the model is there, in a sentence."""
    told = []
    for place in sorted({_places(record)[option] for record in records}):
        here = [record for record in records if _places(record)[option] == place]
        hits = [hit for record in here for hit in gate.hits(ImageScores.of(record))]
        accuracy = _mean(record.utility.get(AFTER_ROUND) for record in here) if option == ROUND else None
        beside = "" if accuracy is None else f" (test accuracy {percent(accuracy)})"
        told.append(f"{place:g}: {sum(hits)} of {count(len(hits), 'image')}{beside}")
    return f"Recovered ({gate.rule}) at {'; '.join(told)}."
