"""The doubts of a record: those that were stored with it, and those that follow from its figures and the gate.

`doubts_of` collects them, and `flags_of` gives them their sentences from the table in `verdict.texts`.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fedglass.bounds.success import Game
from fedglass.core.metric_scale import Scale
from fedglass.core.text import NON_FINITE, TAKEN_AS_DISTINCT, some, values_by_key
from fedglass.verdict.doubts import Doubt, DoubtKind, Severity, doubt
from fedglass.verdict.gate import Gate, is_mute, known_scales
from fedglass.verdict.images import ImageScores, Values
from fedglass.verdict.records import BASE_RATE, Certificate, Record
from fedglass.verdict.texts import TABLE, Flag

NAMED = 3
"""Names of a list that a sentence spells out."""
CLEARLY = 0.1
"""A search has failed if the energy of the true data is lower by more than this share."""
DISTINCT = 0.01
"""An attack is blind unless the energy of the true data is lower than that of a grey image by more than this share."""
RARE = 1e-3
"""The level of the test whether a game refutes a certificate."""
RANKED = 4
"""Images whose order is compared, at least."""
NOT_FINITE = "not finite"
ORDER: tuple[Severity, ...] = ("serious", "warning", "info")
DECLARED = (DoubtKind.NOISE_NOT_TESTABLE, DoubtKind.NO_TRUTH, DoubtKind.NOT_REPLAYED)
"""Doubts about a declaration; `gate.trust_declared` accepts them."""


def flag(doubt: Doubt) -> Flag:
    """Return the text of a doubt, filled with its details; a missing detail becomes empty."""
    template, details = TABLE[doubt.kind], defaultdict(str, {name: _shown(v) for name, v in doubt.details.items()})
    for name in details:
        if f"{{{name}}}." in template.text:  # a detail may be a sentence, which the template ends
            details[name] = details[name].rstrip(".")
    return replace(
        template, text=template.text.format_map(details).strip(), step=template.step.format_map(details).strip()
    )


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return some([str(name) for name in value], NAMED)
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def doubts_of(record: Record, gate: Gate) -> list[Doubt]:
    """Return all doubts of a record under this gate."""
    if record.status == "failed":
        return []
    if record.kind == "certificate":
        return [*_of_declaration(record, gate), *gate.doubts_of_certificate(record)]
    if record.kind == "game" or is_mute(record):
        return list(record.doubts)
    return [*record.doubts, *_of_search(record, gate), *_of_pictures(record, gate)]


def with_refutations(records: Sequence[Record]) -> list[Record]:
    """Return the records; a certificate that a game on the same message refutes gets that doubt."""
    games = values_by_key((record.message, record.game) for record in records if record.game is not None)
    compared = []
    for record in records:
        certificate = record.certificate
        is_refuted = any(stored.kind is DoubtKind.CERTIFICATE_REFUTED for stored in record.doubts)
        if certificate is not None and certificate.success and not is_refuted:
            refutations = [_refutation(certificate, game) for game in games.get(record.message, [])]
            new = [refutation for refutation in refutations if refutation is not None][:1]
            record = record.model_copy(update={"doubts": [*record.doubts, *new]})
        compared.append(record)
    return compared


def _refutation(certificate: Certificate, game: Game) -> Doubt | None:
    """Test with a binomial test whether a game wins more often than the certificate allows and its control does not."""
    if not (game.same_source and game.control and game.candidates >= 2):
        return None
    allowed = certificate.worst
    if game.candidates < 1 / BASE_RATE:  # fewer candidates are easier to tell apart
        if not certificate.mu:
            return None
        from fedglass.bounds.success import gdp_success  # scipy is slow to import, and seldom needed

        allowed = gdp_success(1 / game.candidates, max(certificate.mu))
    wins, control = round(game.top1 * game.records), round((game.control_top1 or 0.0) * len(game.control_rank_p))
    if _rare(wins, game.records, allowed) and not _rare(control, len(game.control_rank_p), allowed):
        return doubt(DoubtKind.CERTIFICATE_REFUTED, wins=wins, games=game.records, allowed=allowed)
    return None


def _rare(wins: int, games: int, allowed: float) -> bool:
    """Return whether so many wins contradict this success: P[Bin(games, allowed) >= wins] < 1e-3."""
    from scipy.special import bdtrc

    return wins > 0 and allowed < 1 and bool(bdtrc(wins - 1, games, allowed) < RARE)


def _of_declaration(record: Record, gate: Gate) -> list[Doubt]:
    """Return the stored doubts of a message; trusted declarations are replaced by one warning."""
    if not gate.trust_declared or record.certificate is None:
        return record.doubts
    other_doubts = [stored for stored in record.doubts if stored.kind not in DECLARED]
    if len(other_doubts) == len(record.doubts):
        return record.doubts
    return [*other_doubts, doubt(DoubtKind.DECLARATION_TRUSTED)]


def flags_of(record: Record, gate: Gate) -> list[Flag]:
    """Return the doubts of a record as text, the serious ones first."""
    return sorted(map(flag, doubts_of(record, gate)), key=lambda text: ORDER.index(text.severity))


def _of_search(record: Record, gate: Gate) -> Iterator[Doubt]:
    """Yield the doubts that explain why a search did not find the images, judged by its energies."""
    hits = gate.hits(ImageScores.of(record))
    stored = record.extra.get("notes")
    notes = stored if isinstance(stored, list) else []
    if NON_FINITE in notes:
        yield doubt(DoubtKind.NON_FINITE_STOP)
    if TAKEN_AS_DISTINCT in notes and record.label_errors != 0:
        yield doubt(DoubtKind.LABELS_TAKEN_AS_DISTINCT)
    if not hits or all(hits):
        return
    if record.label_errors:
        yield doubt(DoubtKind.WRONG_LABELS, labels=record.label_errors)
    truth, blind, reached = record.energy_truth, record.energy_blind, record.energy
    if truth is None or blind is None:
        return
    if not undercuts(truth, blind, DISTINCT):
        yield doubt(DoubtKind.ATTACK_IS_BLIND, truth=truth, blind=blind)
    elif reached is None or undercuts(truth, reached, CLEARLY):
        yield doubt(DoubtKind.SEARCH_FAILED, truth=truth, found=NOT_FINITE if reached is None else reached)
    else:
        yield doubt(DoubtKind.OTHER_IMAGES_FIT, truth=truth, found=reached)


def _of_pictures(record: Record, gate: Gate) -> Iterator[Doubt]:
    """Yield the doubts about images that a number judges wrongly, or that a look at the picture would."""
    scores = ImageScores.of(record)
    hits = gate.hits(scores)
    counts = {
        DoubtKind.PARTLY_RECOGNISABLE: sum(gate.partly(scores)),
        DoubtKind.TRANSFORMED_MATCH: sum(
            matches and not hit for matches, hit in zip(record.transformed_match, hits, strict=False)
        ),
        DoubtKind.FAILS_CONTROLS: gate.imagined(scores),
        DoubtKind.BLEND: sum(map(bool, record.blends)),
    }
    for kind, images in counts.items():
        if images:
            yield doubt(kind, images=images)
    guessed = gate.guessed(scores)
    if guessed:
        names = [name for name in dict.fromkeys(record.blind_guess.get(gate.metric, [])) if name]
        yield doubt(DoubtKind.NO_BETTER_THAN_GUESS, images=guessed, guesses=names or ["such as the best flat colour"])
    yield from _of_refinement(record)
    scales = known_scales(record.metrics, gate.scales)
    how = contradiction(record.metrics, scales) or opposite_order(record.metrics, scales)
    if how is not None:
        yield doubt(DoubtKind.METRICS_DISAGREE, how=how)


def _of_refinement(record: Record) -> Iterator[Doubt]:
    """Yield a doubt if the refined images lost more than half of what the raw ones explain of the message."""
    before, after, blind = record.energy, record.energy_refined, record.energy_blind
    if before is None or not record.metrics_raw:
        return
    limit = (before + blind) / 2 if blind is not None and blind > before else before + abs(before)
    if after is None or after > limit:
        yield doubt(DoubtKind.REFINEMENT_UNEXPLAINED, before=before, after=NOT_FINITE if after is None else after)


def undercuts(lower: float, other: float, share: float) -> bool:
    """Return whether one energy is lower than another by more than a share of it."""
    return other - lower > share * abs(other)


def _is_recovered(scale: Scale, value: float | None) -> bool | None:
    """Return whether the metric calls an image recovered; None if it is undecided."""
    if value is None or scale.sure is None or math.isnan(value):
        return None
    no, yes = scale.sure
    if scale.beyond(value, yes):
        return True
    return None if scale.beyond(value, no) else False


def _decided(metrics: Iterable[str], scales: Mapping[str, Scale]) -> dict[str, Scale]:
    """Return the metrics that have a value for certainly recovered and one for certainly not."""
    return {name: scales[name] for name in metrics if scales[name].sure is not None}


def contradiction(metrics: Values, all_scales: Mapping[str, Scale]) -> str | None:
    """Describe the first image that one metric calls recovered and another certainly not."""
    scales = _decided(metrics, all_scales)
    for i, values in enumerate(zip(*(metrics[name] for name in scales), strict=True)):
        recovered = {name: _is_recovered(scales[name], value) for name, value in zip(scales, values, strict=True)}
        yes = next((name for name in scales if recovered[name] is True), None)
        no = next((name for name in scales if recovered[name] is False), None)
        if yes and no:
            shown = [f"{scales[m].title} {scales[m].show(metrics[m][i])}" for m in (yes, no)]
            return f"image {i} looks recovered by {shown[0]} and not at all by {shown[1]}"
    return None


def opposite_order(metrics: Values, all_scales: Mapping[str, Scale]) -> str | None:
    """Describe a metric that ranks enough images in the opposite order of the first metric."""
    scales = _decided(metrics, all_scales)
    first, *later = scales or [""]
    for name in later:
        if min(len(metrics[first]), len(metrics[name])) >= RANKED:
            sign = 1 if scales[name].higher_leaks == scales[first].higher_leaks else -1
            if sign * rank_correlation(metrics[first], metrics[name]) < 0:
                return f"{scales[first].title} and {scales[name].title} rank the images in opposite order"
    return None


def rank_correlation(xs: Sequence[float | None], ys: Sequence[float | None]) -> float:
    """Return Spearman's rank correlation; 0 if one side is constant.

    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 40.0, 90.0])
    1.0
    """
    pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if x is not None and y is not None]
    try:
        return statistics.correlation(_ranks([x for x, _ in pairs]), _ranks([y for _, y in pairs]))
    except statistics.StatisticsError:  # too few, or all alike
        return 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """Return positions in ascending order; ties share their mean position."""
    return [sum(v < x for v in values) + (sum(v == x for v in values) - 1) / 2 for x in values]
