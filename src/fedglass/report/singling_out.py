"""The candidate games of an audit: does a message name the records that were trained on?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedglass.ledger.records import Game, Record
from fedglass.report.charts import Strip, strip_chart
from fedglass.report.flags import flag_labels
from fedglass.report.names import Names, by_text, message_name
from fedglass.report.page import Cell, Table
from fedglass.report.sections import CHARTS, Figure
from fedglass.verdict.doubts import flags_of
from fedglass.verdict.gate import Gate
from fedglass.verdict.texts import percent


@dataclass(frozen=True)
class SinglingOut:
    """What the page says of all games."""

    table: Table | None
    figures: Sequence[Figure]
    unplayed: Sequence[tuple[str, str]]
    """Messages without a game, and why."""


def games_of(records: Sequence[Record], gate: Gate, names: Names) -> SinglingOut | None:
    """Return the games, the one that names most first; None where no record is about one."""
    asked = [record for record in records if record.kind == "game" and record.status == "done"]
    if not asked:
        return None
    games = [(record, record.game) for record in asked if record.game is not None]
    games.sort(key=lambda pair: (not gate.exposes(pair[0]), -pair[1].low, -pair[1].top1))
    columns = ["message", "named, used in training", "named, not used (control)", "candidates"]
    rows = [_row(record, game, gate, names) for record, game in games]
    figures = [_figure(record, game, gate, names) for record, game in games[:CHARTS]]
    unplayed = [
        (" ".join(flag.whole for flag in flags_of(record, gate)), message_name(record, names))
        for record in asked
        if record.game is None
    ]
    return SinglingOut(Table(columns, rows) if rows else None, figures, by_text(unplayed))


def sentence(game: Game) -> str:
    """Return what a game shows, for a reader who does not know the field.

    >>> sentence(Game(records=32, candidates=1000, top1=0.9, low=0.75, high=0.97, control="held_out", control_top1=0.0))
    'Given this message and 1,000 similar images, an adversary names the one that was trained on in 90 % of the cases; \
images that were not trained on in 0 %.'
    """
    said = (
        f"Given this message and {game.candidates:,} similar images, an adversary names the one that was trained on in "
        f"{percent(game.top1)} of the cases"
    )
    if game.control_top1 is None:
        return f"{said}."
    return f"{said}; images that were not trained on in {percent(game.control_top1)}."


def facts(game: Game) -> list[list[Cell | str]]:
    """Return how a game was played."""
    rows = {
        "statistic": game.statistic,
        "public gradients": f"{game.public}, with {game.directions} common directions left out" if game.public else "",
        "control": game.control.replace("_", " "),
    }
    return [[name, text] for name, text in rows.items() if text]


def _row(record: Record, game: Game, gate: Gate, names: Names) -> list[Cell | str]:
    exposed = gate.exposes(record)
    return [
        Cell(message_name(record, names), badge="exposed" if exposed else "", tone="leak"),
        Cell(f"{round(game.top1 * game.records)} of {game.records}", note=_limits(game.low, game.high)),
        _control(game),
        f"{game.candidates:,}",
    ]


def _control(game: Game) -> Cell:
    if game.control_top1 is None:
        return Cell("none")
    return Cell(percent(game.control_top1), note=_limits(game.control_low, game.control_high))


def _limits(low: float | None, high: float | None) -> str:
    """
    >>> _limits(0.8, 0.97), _limits(None, None)
    ('80 % to 97 %', '')
    """
    return "" if low is None or high is None else f"{percent(low)} to {percent(high)}"


def _figure(record: Record, game: Game, gate: Gate, names: Names) -> Figure:
    title = message_name(record, names)
    control = "" if game.control_top1 is None else percent(game.control_top1)
    strips = [
        Strip("used in training", _named(percent(game.top1), _limits(game.low, game.high)), game.scores),
        Strip(
            "not used (control)",
            _named(control, _limits(game.control_low, game.control_high)),
            game.control_scores,
            "c2",
        ),
        Strip("candidates (quantiles)", f"{game.candidates:,} each", game.candidate_quantiles, "c1"),
    ]
    shown = [strip for strip in strips if strip.values]
    svg = strip_chart(f"Scores of the records of {title}", shown, "score: how well a record fits the message")
    return Figure(title, svg, sentence(game), flag_labels(record, gate))


def _named(rate: str, limits: str) -> str:
    return f"{rate} ({limits})" if rate and limits else rate
