"""The certificates and the candidate games of an audit, as tables and charts of the page.

A certificate bounds the success of any adversary in naming a record. A candidate game shows how often a message really
names the records that were trained on.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from fedglass.bounds.success import Game, eps_delta_success, gdp_success
from fedglass.report.charts import ChartRow, strip_chart
from fedglass.report.page import ChartFigure, Names, PageTable, TableCell, by_text, message_name, tone
from fedglass.report.sections import CHARTS
from fedglass.verdict.collect_doubts import flag, flags_of
from fedglass.verdict.gate import Gate
from fedglass.verdict.judge import serious_doubts
from fedglass.verdict.records import BASE_RATE, Certificate, Record
from fedglass.verdict.texts import UNCHECKED, count, percent

BASES = {
    "construction": "by construction: fedglass itself does this",
    "tested": "tested: the message is consistent with it",
    "declared": "declared: not tested",
}
"""Basis of an assumption -> its text."""
ACCOUNTINGS = {
    "gaussian": "Gaussian noise, and how far each record moves the message",
    "laplacian": "Laplacian noise, and how far each record moves the message",
    "composed_gaussian": "Gaussian noise of all local steps. Shuffled batches are not Poisson samples, so sampling "
    "adds no privacy",
    "pld": "privacy-loss distribution of DP-SGD on Poisson samples",
    "poisson_not_counted": "Gaussian noise of all local steps. The gain of Poisson sampling is not computed: pip "
    "install fedglass[pld]",
    "identical": "no noise; the message is bit-identical for every record",
}
"""Accounting of a certificate -> its text."""
NO_PRIOR = "It does not bound an adversary that knows what such pictures look like."


def certificates_of(records: Sequence[Record], gate: Gate, names: Names) -> dict[str, Any] | None:
    """Return a table of the certificates, the weakest first, and the first of them in full; None without a check.

    `remarks` are messages without a certificate, and the reason.
    """
    checked = [record for record in records if record.kind == "certificate" and record.status == "done"]
    if not checked:
        return None
    checked.sort(key=gate.allowed, reverse=True)
    certified = [(record, record.certificate) for record in checked if record.certificate is not None]
    columns = ["message", "success at most", "base rate", "advantage", "rounds", "epsilon"]
    rows = [_certificate_row(record, certificate, gate, names) for record, certificate in certified]
    details = [
        {
            "title": message_name(record, names),
            "labels": [flag(doubt) for doubt in serious_doubts(record, gate)],
            "facts": PageTable(["", ""], certificate_facts(certificate)),
            "assumptions": PageTable(
                ["assumption", "basis"], [[name, BASES.get(how, how)] for name, how in certificate.assumptions.items()]
            ),
        }
        for record, certificate in certified[:CHARTS]
    ]
    unchecked = UNCHECKED.format(messages="this message")
    why = [
        (next((flag(doubt).text for doubt in serious_doubts(record, gate)), unchecked), message_name(record, names))
        for record in checked
        if record.certificate is None
    ]
    return {"table": PageTable(columns, rows) if rows else None, "details": details, "remarks": by_text(why)}


def certificate_facts(certificate: Certificate) -> list[list[TableCell | str]]:
    """Return all figures of a certificate with their names."""
    worst, middle = max(certificate.success, default=1.0), statistics.median(certificate.success or [1.0])
    adversary = [f"{percent(rate)} among {int(size):,}" for size, rate in certificate.adversary.items()]
    clients = None if certificate.client_mu is None else percent(gdp_success(BASE_RATE, certificate.client_mu))
    psnr = certificate.expected_psnr
    advantage = "" if certificate.advantage is None else f"; advantage {percent(certificate.advantage)}"
    epsilon, delta = certificate.epsilon, certificate.delta
    by_epsilon = None
    if epsilon is not None and delta is not None:
        by_epsilon = percent(eps_delta_success(BASE_RATE, epsilon, delta))
    rows = {
        "success in naming a record": f"at most {percent(worst)} (without the message {percent(BASE_RATE)}{advantage})",
        "single records": f"worst {percent(worst)}, median {percent(middle)}, of {len(certificate.success)}",
        "all records of a client at once": clients and f"at most {clients}",
        "rounds": _rounds(certificate),
        "epsilon": None if epsilon is None else f"{epsilon:.3g}{'' if delta is None else f' at delta {delta:g}'}",
        "bound by epsilon alone": by_epsilon and f"success at most {by_epsilon}; a weaker bound for the same noise",
        "accounting": ACCOUNTINGS.get(certificate.accounting, certificate.accounting) + ".",
        "simulated best adversary": f"{', '.join(adversary)} candidates; for information only" if adversary else None,
        "expected PSNR": None if psnr is None else f"{psnr:.1f} dB for an adversary without a prior. {NO_PRIOR}",
    }
    return [[name, text] for name, text in rows.items() if text]


def _rounds(certificate: Certificate) -> str:
    """Describe the rounds for which the bound holds."""
    held = f"holds for {count(certificate.rounds, 'round')}"
    if certificate.planned is None:
        return held
    planned, later = count(certificate.planned, "round"), certificate.success_planned
    if later is None:
        return f"{held}; nothing bounds the planned {planned}"
    return f"{held}; at the planned {planned} it is {percent(later)}"


def _certificate_row(record: Record, certificate: Certificate, gate: Gate, names: Names) -> list[TableCell | str]:
    flags = [flag(doubt) for doubt in serious_doubts(record, gate)]
    planned, later = certificate.planned, certificate.success_planned
    notes = [f"worst of {count(len(certificate.success), 'record')}"]
    if certificate.adversary:
        size, rate = max(certificate.adversary.items(), key=lambda item: int(item[0]))
        notes.append(f"simulated adversary {percent(rate)} among {int(size):,}")
    badge, colour = (flags[0].name, tone(flags[0].severity)) if flags else ("certified", "clear")
    return [
        TableCell(message_name(record, names), badge=badge, tone=colour),
        TableCell(percent(max(certificate.success, default=1.0)), note="; ".join(notes)),
        percent(BASE_RATE),
        "n/a" if certificate.advantage is None else percent(certificate.advantage),
        TableCell(
            str(certificate.rounds),
            note="" if planned is None else f"{planned} planned: {'not bounded' if later is None else percent(later)}",
        ),
        TableCell(
            "n/a" if certificate.epsilon is None else f"{certificate.epsilon:.3g}",
            note="" if certificate.delta is None else f"delta {certificate.delta:g}",
        ),
    ]


def games_of(records: Sequence[Record], gate: Gate, names: Names) -> dict[str, Any] | None:
    """Return a table of the games, the one that names most first, and charts of the first; None if there are none.

    `remarks` are messages on which no game was played, and the reason.
    """
    game_records = [record for record in records if record.kind == "game" and record.status == "done"]
    if not game_records:
        return None
    games = [(record, record.game) for record in game_records if record.game is not None]
    games.sort(key=lambda pair: (not gate.exposes(pair[0]), -pair[1].low, -pair[1].top1))
    columns = ["message", "named, used in training", "named, not used (control)", "candidates"]
    rows = [_game_row(record, game, gate, names) for record, game in games]
    figures = [_figure(record, game, gate, names) for record, game in games[:CHARTS]]
    unplayed = [
        (" ".join(flag.advice for flag in flags_of(record, gate)), message_name(record, names))
        for record in game_records
        if record.game is None
    ]
    return {"table": PageTable(columns, rows) if rows else None, "details": figures, "remarks": by_text(unplayed)}


def sentence(game: Game) -> str:
    """Describe the result of a game for a reader who does not know the field.

    >>> sentence(Game(records=32, candidates=1000, top1=0.9, low=0.75, high=0.97, control="held_out", control_top1=0.0))
    'Given this message and 1,000 similar images, an adversary names the one that was trained on in 90 % of the cases; \
images that were not trained on in 0 %.'
    """
    text = (
        f"Given this message and {game.candidates:,} similar images, an adversary names the one that was trained on in "
        f"{percent(game.top1)} of the cases"
    )
    if game.control_top1 is None:
        return f"{text}."
    return f"{text}; images that were not trained on in {percent(game.control_top1)}."


def game_facts(game: Game) -> list[list[TableCell | str]]:
    """Return the settings of a game with their names."""
    rows = {
        "statistic": game.statistic,
        "public gradients": f"{game.public}, with {game.directions} common directions removed" if game.public else "",
        "control": game.control.replace("_", " "),
    }
    return [[name, text] for name, text in rows.items() if text]


def _game_row(record: Record, game: Game, gate: Gate, names: Names) -> list[TableCell | str]:
    exposed, rate = gate.exposes(record), game.control_top1
    return [
        TableCell(message_name(record, names), badge="exposed" if exposed else "", tone="leak"),
        TableCell(f"{round(game.top1 * game.records)} of {game.records}", note=_limits(game.low, game.high)),
        TableCell("none" if rate is None else percent(rate), note=_limits(game.control_low, game.control_high)),
        f"{game.candidates:,}",
    ]


def _limits(low: float | None, high: float | None) -> str:
    """
    >>> _limits(0.8, 0.97), _limits(None, None)
    ('80 % to 97 %', '')
    """
    return "" if low is None or high is None else f"{percent(low)} to {percent(high)}"


def _figure(record: Record, game: Game, gate: Gate, names: Names) -> ChartFigure:
    title = message_name(record, names)
    control = "" if game.control_top1 is None else percent(game.control_top1)
    limits, control_limits = _limits(game.low, game.high), _limits(game.control_low, game.control_high)
    named = percent(game.top1) + (f" ({limits})" if limits else "")
    control += f" ({control_limits})" if control and control_limits else ""
    rows = [
        ChartRow("used in training", named, game.scores),
        ChartRow("not used (control)", control, game.control_scores, "c2"),
        ChartRow("candidates (quantiles)", f"{game.candidates:,} each", game.candidate_quantiles, "c1"),
    ]
    shown = [row for row in rows if row.values]
    svg = strip_chart(f"Scores of the records of {title}", shown, "score: how well a record fits the message")
    return ChartFigure(title, svg, sentence(game), flags_of(record, gate))
