"""What attacks reach over a number that the plan sweeps, beside the best blind guess."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from fedglass.ledger.records import Record
from fedglass.report.charts import sweep_chart
from fedglass.report.names import count
from fedglass.report.sections import Figure, Scales
from fedglass.verdict.gate import Gate
from fedglass.verdict.images import ImageScores


def sweep_figures(records: Sequence[Record], gate: Gate, scales: Scales) -> list[Figure]:
    """One chart for each swept option and metric, the gate's first; without a guess to compare with there is none."""
    found = []
    for option in dict.fromkeys(name for record in records for name in record.swept):
        chosen = [record for record in records if option in record.swept and record.status == "done"]
        metrics = dict.fromkeys(name for record in chosen for name in record.metrics if name in record.blind)
        for metric in sorted(metrics, key=lambda name: name != gate.metric):
            note = _read(chosen, option, gate) if metric == gate.metric else ""
            found.append(_figure(chosen, option, metric, scales, note))
    return found


def _figure(records: Sequence[Record], option: str, metric: str, scales: Scales, note: str) -> Figure:
    places = sorted({record.swept[option] for record in records})
    attacks = dict.fromkeys(record.attack for record in records)
    series = {
        attack: [
            _mean(v for r in records if (r.attack, r.swept[option]) == (attack, place) for v in r.metrics[metric])
            for place in places
        ]
        for attack in attacks
    }
    blind = [_mean(v for r in records if r.swept[option] == place for v in r.blind[metric]) for place in places]
    axis, title = option.replace("_", " "), scales[metric].title
    svg = sweep_chart(f"{title} over {axis}", places, series, blind, f"{axis} (at equal distances)", title)
    side = "higher" if scales[metric].higher_leaks else "lower"
    return Figure(f"{title} over {axis} ({side} = more leaked)", svg, note)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _read(records: Sequence[Record], option: str, gate: Gate) -> str:
    """How much is recovered at each value, in a sentence."""
    told = []
    for place in sorted({record.swept[option] for record in records}):
        hits = [hit for r in records if r.swept[option] == place for hit in gate.hits(ImageScores.of(r))]
        told.append(f"{place:g}: {sum(hits)} of {count(len(hits), 'image')}")
    return f"Recovered ({gate.rule}) at {'; '.join(told)}."
