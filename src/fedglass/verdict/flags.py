"""Where metrics contradict each other about the same images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fedglass.core.scale import Scale
from fedglass.core.text import TAKEN_AS_DISTINCT
from fedglass.verdict.doubts import Doubt, Kind, doubt
from fedglass.verdict.gate import RARE, Gate, is_mute, known_scales
from fedglass.verdict.images import ImageScores, Values
from fedglass.verdict.records import BASE_RATE, Certificate, Game, Record
from fedglass.verdict.texts import Flag, Severity, flag


def _verdict(scale: Scale, value: float | None) -> bool | None:
    """Recovered, not recovered, or no say."""
    if value is None or scale.sure is None or math.isnan(value):
        return None
    no, yes = scale.sure
    if scale.beyond(value, yes):
        return True
    return None if scale.beyond(value, no) else False


def _outspoken(metrics: Iterable[str], scales: Mapping[str, Scale]) -> dict[str, Scale]:
    """The metrics that say from where on an image is recovered, and up to where it is certainly not."""
    return {name: scales[name] for name in metrics if scales[name].sure is not None}


def contradiction(metrics: Values, known: Mapping[str, Scale]) -> str | None:
    """The first image that one metric calls recovered and another certainly not."""
    scales = _outspoken(metrics, known)
    for i, values in enumerate(zip(*(metrics[name] for name in scales), strict=True)):
        said = {name: _verdict(scales[name], value) for name, value in zip(scales, values, strict=True)}
        yes = next((name for name in scales if said[name] is True), None)
        no = next((name for name in scales if said[name] is False), None)
        if yes and no:
            shown = [f"{scales[m].title} {scales[m].show(metrics[m][i])}" for m in (yes, no)]
            return f"image {i} looks recovered by {shown[0]} and not at all by {shown[1]}"
    return None


def opposite_order(metrics: Values, known: Mapping[str, Scale], least: int = 4) -> str | None:
    """A metric that ranks the images in the order opposite to the first one's; told only of `least` images or more."""
    scales = _outspoken(metrics, known)
    first, *others = scales or [""]
    for name in others:
        if min(len(metrics[first]), len(metrics[name])) >= least:
            sign = 1 if scales[name].higher_leaks == scales[first].higher_leaks else -1
            if sign * rank_correlation(metrics[first], metrics[name]) < 0:
                return f"{scales[first].title} and {scales[name].title} rank the images in opposite order"
    return None


def rank_correlation(left: Sequence[float | None], right: Sequence[float | None]) -> float:
    """Spearman's rank correlation; 0 where one side is constant.

    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 40.0, 90.0])
    1.0
    """
    known = [(x, y) for x, y in zip(left, right, strict=True) if x is not None and y is not None]
    a, b = _ranks([x for x, _ in known]), _ranks([y for _, y in known])
    mean = (len(a) - 1) / 2
    spread = math.sqrt(sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b))
    if spread == 0:
        return 0.0
    return sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True)) / spread


def _ranks(values: Sequence[float]) -> list[float]:
    """Positions in ascending order; ties share their mean position."""
    return [sum(v < x for v in values) + (sum(v == x for v in values) - 1) / 2 for x in values]


# The doubts of a record: those that were stored with it, and those that follow from its figures and the gate.


CLEARLY = 0.1
"""By which share the true data's energy must undercut the reconstruction's for the search to have failed."""
DISTINCT = 0.01
"""By which share it must undercut that of a grey image for the attack to see the true data at all."""
NOT_FINITE = "not finite"
ORDER: tuple[Severity, ...] = ("serious", "warning", "info")
DECLARED = (Kind.NOISE_NOT_TESTABLE, Kind.NO_TRUTH, Kind.NOT_REPLAYED)
"""Doubts of a certificate that rests on a declaration, which `gate.trust_declared` believes."""


def doubts_of(record: Record, gate: Gate) -> list[Doubt]:
    """Return all doubts of a record as this gate judges it."""
    if record.status == "failed":
        return []
    if record.kind == "certificate":
        return [*_of_declaration(record, gate), *gate.doubts_of_certificate(record)]
    if record.kind == "game" or is_mute(record):
        return list(record.doubts)
    return [*record.doubts, *_of_search(record, gate), *_of_pictures(record, gate)]


def with_refutations(records: Sequence[Record]) -> list[Record]:
    """Return the records, where a certificate that a game on the same message refutes carries that doubt."""
    games: dict[tuple[str, int], list[Game]] = {}
    for record in records:
        if record.game is not None:
            games.setdefault(record.message, []).append(record.game)
    return [_compared(record, games.get(record.message, [])) for record in records]


def _compared(record: Record, games: Sequence[Game]) -> Record:
    known = any(each.kind is Kind.CERTIFICATE_REFUTED for each in record.doubts)
    if record.certificate is None or not record.certificate.success or known:
        return record
    found = [each for game in games if (each := _refutation(record.certificate, game)) is not None]
    return record.model_copy(update={"doubts": [*record.doubts, *found[:1]]})


def _refutation(certificate: Certificate, game: Game) -> Doubt | None:
    """Compare the wins of a game with what the certificate allows: a binomial test, which the control must pass."""
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
        return doubt(Kind.CERTIFICATE_REFUTED, wins=wins, games=game.records, allowed=allowed)
    return None


def _rare(wins: int, games: int, allowed: float) -> bool:
    """Return whether so many wins are too many for this success: P[Bin(games, allowed) >= wins] < 1e-3."""
    from scipy.special import bdtrc

    return wins > 0 and allowed < 1 and bool(bdtrc(wins - 1, games, allowed) < RARE)


def _of_declaration(record: Record, gate: Gate) -> list[Doubt]:
    """Return the stored doubts of a message; where the gate trusts its declaration, that it does."""
    if not gate.trust_declared or record.certificate is None:
        return record.doubts
    kept = [each for each in record.doubts if each.kind not in DECLARED]
    return record.doubts if len(kept) == len(record.doubts) else [*kept, doubt(Kind.DECLARATION_TRUSTED)]


def flags_of(record: Record, gate: Gate) -> list[Flag]:
    """Return the doubts of a record in words, the serious ones first."""
    flags = [flag(each) for each in doubts_of(record, gate)]
    return sorted(flags, key=lambda each: ORDER.index(each.severity))


def _of_search(record: Record, gate: Gate) -> Iterator[Doubt]:
    """Say why a search did not find the images, as its energies tell."""
    hits = gate.hits(ImageScores.of(record))
    notes = record.extra.get("notes")
    if isinstance(notes, list) and "non-finite" in notes:
        yield doubt(Kind.NON_FINITE_STOP)
    if isinstance(notes, list) and TAKEN_AS_DISTINCT in notes and record.label_errors != 0:
        yield doubt(Kind.LABELS_TAKEN_AS_DISTINCT)
    if not hits or all(hits):
        return
    if record.label_errors:
        yield doubt(Kind.WRONG_LABELS, labels=record.label_errors)
    truth, blind, found = record.energy_truth, record.energy_blind, record.energy
    if truth is None or blind is None:
        return
    if not undercuts(truth, blind, DISTINCT):
        yield doubt(Kind.ATTACK_IS_BLIND, truth=truth, blind=blind)
    elif found is None or undercuts(truth, found, CLEARLY):
        yield doubt(Kind.SEARCH_FAILED, truth=truth, found=NOT_FINITE if found is None else found)
    else:
        yield doubt(Kind.OTHER_IMAGES_FIT, truth=truth, found=found)


def _of_pictures(record: Record, gate: Gate) -> Iterator[Doubt]:
    """Say where a number judges a picture wrongly, or a picture would."""
    scores = ImageScores.of(record)
    hits = gate.hits(scores)
    counts = {
        Kind.PARTLY_RECOGNISABLE: gate.partly(scores),
        Kind.SHOWN_OTHERWISE: sum(seen and not hit for seen, hit in zip(record.shown_otherwise, hits, strict=False)),
        Kind.FAILS_CONTROLS: gate.imagined(scores),
        Kind.BLEND: sum(map(bool, record.blends)),
    }
    for kind, images in counts.items():
        if images:
            yield doubt(kind, images=images)
    guessed = gate.guessed(scores)
    if guessed:
        names = [name for name in dict.fromkeys(record.blind_by.get(gate.metric, [])) if name]
        yield doubt(Kind.NO_BETTER_THAN_GUESS, images=guessed, guesses=names or ["such as the best flat colour"])
    yield from _of_refinement(record)
    scales = known_scales(record.metrics, gate.scales)
    how = contradiction(record.metrics, scales) or opposite_order(record.metrics, scales)
    if how is not None:
        yield doubt(Kind.METRICS_DISAGREE, how=how)


def _of_refinement(record: Record) -> Iterator[Doubt]:
    """Say where a refined image no longer explains the message: half of what the raw one explains must be left."""
    before, after, blind = record.energy, record.energy_refined, record.energy_blind
    if before is None or not record.metrics_raw:
        return
    limit = (before + blind) / 2 if blind is not None and blind > before else before + abs(before)
    if after is None or after > limit:
        yield doubt(Kind.REFINEMENT_UNEXPLAINED, before=before, after=NOT_FINITE if after is None else after)


def undercuts(lower: float, other: float, share: float) -> bool:
    """Return whether one energy lies below another by more than a share of it."""
    return other - lower > share * abs(other)
