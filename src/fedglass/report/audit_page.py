"""`report.html`: one self-contained page that says what leaked, how sure that is, and how to repeat it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedglass.core.files import open_file, parse_toml
from fedglass.report import sections
from fedglass.report.evidence import certificate_facts, certificates_of, game_facts, games_of
from fedglass.report.glossary import Glossary, doubts_by_question
from fedglass.report.overview import overview, threat_section
from fedglass.report.page import Album, Names, PageTable, Pair, TableCell, message_name, render, short_names, write_page
from fedglass.report.sections import Scales, exact_lines, images_by_owner, read_exactly, sweep_figures
from fedglass.verdict.collect_doubts import flags_of
from fedglass.verdict.directory import PLAN, RECORDS, REPORT, claimed_digest
from fedglass.verdict.doubts import DoubtKind
from fedglass.verdict.gate import Gate, attacks_in
from fedglass.verdict.images import ImageScores
from fedglass.verdict.judge import reads, serious_doubts
from fedglass.verdict.outcomes import NO_BASELINE, FindingBaseline, JudgedAudit, read_audit
from fedglass.verdict.records import Picture, Record, grouped
from fedglass.verdict.summary import ScoredImage, by_attack, by_view, rank, scales_of
from fedglass.verdict.texts import count, percent

LONGEST_PLAN = 2**20


def plan_text(directory: Path) -> str | None:
    """Return the plan that is stored with the records, or None."""
    try:
        with open_file(directory / PLAN) as file:
            return file.read(LONGEST_PLAN).decode("utf-8", errors="replace")
    except OSError:
        return None


def title_of(plan: str | None) -> str:
    """Return the plan's title; empty if it has none, or is not a plan.

    >>> title_of('title = "Pilot"'), title_of("<oops>"), title_of(None)
    ('Pilot', '', '')
    """
    try:
        title = parse_toml(plan or "").get("title", "")
    except ValueError:
        return ""
    return title.strip() if isinstance(title, str) else ""


def ended(directory: Path, records: Sequence[Record]) -> str:
    """Return the end of the last case, or the time of the record file.

    The page itself has no date, so that the same records give the same page.
    """
    ends = [when for record in records if (when := _instant(record.finished)) is not None]
    when = max(ends) if ends else datetime.fromtimestamp((directory / RECORDS).stat().st_mtime, UTC)
    return when.strftime("%Y-%m-%d %H:%M UTC")


def _instant(text: str | None) -> datetime | None:
    try:
        when = datetime.fromisoformat(text or "")
        return when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


SHOWN = 12
"""Images in the gallery, unless more were recovered or are partly recognisable."""
FIRST = 3
"""Images on the first screen."""
FILM = "steps of the refinement"


def write_report(directory: Path, output: Path | None = None, baseline: FindingBaseline = NO_BASELINE) -> Path:
    """Write the page of an audit directory, by default to `report.html` in it, and return its path.

    An audit that was stopped early can be reported too; its page says that it is incomplete.
    """
    return write_page(output or directory / REPORT, audit_page(read_audit(directory, baseline)))


def audit_page(audit: JudgedAudit, pictures: bool = True) -> str:
    """Return the page as text, with the private images or without."""
    directory, records, gate = audit.directory, audit.records, audit.gate
    scales, names, attacks = scales_of(records, audit.scales), short_names(records), attacks_in(records)
    groups = by_attack(records, gate)
    views, album = by_view(records, gate), Album(directory, shows=pictures)
    ranked = _distinct(rank(records, gate), album)
    record_by_key = {record.key: record for record in records}
    shown = [case for place, case in enumerate(ranked) if place < SHOWN or case.recovered or case.near]
    worst = [
        _pair(case, case.picture, gate, scales, album, _origin(record_by_key[case.key], case.owner, names))
        for case in shown
        if case.picture is not None
    ]
    unscored, more_unscored = _all_unscored(records, album, names)
    energies, more_energies = sections.energy_figures(records, groups, names)
    utility, utility_plot = sections.utility_table(views or groups, gate, names)
    plan = plan_text(directory)
    evidence = _all_evidence(records, gate, scales, album, names)
    glossary = Glossary.of(scales)
    reprs = dict.fromkeys((record.attack, record.attack_repr) for record in records)
    return render(
        "audit.html",
        title=title_of(plan),
        ended=ended(directory, records),
        verdict=audit.verdict,
        overview=overview(records, audit.verdict, gate, names),
        facts=_facts(records, gate, ranked, audit.missing),
        gate=gate,
        accepted=PageTable(
            ["finding", "record", "what it says", "reason", "accepted until"],
            [
                [f"{o.record.attack}: {o.title}", o.record.key, o.sentence, entry.reason, str(entry.expires)]
                for o, entry in audit.baseline.accepted(audit.outcomes)
            ],
        ),
        remarks_on_baseline=audit.baseline.remarks(audit.outcomes),
        worst=worst,
        first=(worst or unscored)[:FIRST],
        unscored=unscored,
        more_unscored=more_unscored,
        games=games_of(records, gate, names),
        certificates=certificates_of(records, gate, names),
        exact=exact_lines(attacks, gate, names),
        threat=threat_section(attacks or records, names),
        owners=images_by_owner(records, gate, names),
        table=sections.figures_table(groups, gate, scales, names),
        view_table=sections.figures_table(views, gate, scales, names) if views else None,
        starred=any(i.resampled == "images" for g in [*groups, *views] for i in g.metrics.values()),
        plots=sections.metric_plots(groups, gate, scales),
        sweeps=sweep_figures(attacks, gate, scales),
        skipped=sections.skipped_metrics(records, scales),
        refined=any(record.metrics_raw for record in records),
        utility=utility,
        utility_plot=utility_plot,
        energies=energies,
        more_energies=more_energies,
        doubts=doubts_by_question(records, gate),
        evidence=evidence,
        repeated=any(record.repeat for record in records),
        holes=album.holes,  # known when all pictures have been asked for
        attacks=PageTable(["attack", "exactly as played"], [list(pair) for pair in reprs]),
        versions=sections.versions_table(records),
        plan=plan,
        digest=claimed_digest(directory),
        glossary=glossary.terms,
        terms=glossary.link,
    )


def _facts(
    records: Sequence[Record], gate: Gate, ranked: Sequence[ScoredImage], missing: int | None
) -> list[tuple[str, str]]:
    """Return the counts below the verdict; images are counted once, however often they were attacked."""
    done = sum(record.status == "done" for record in records)
    planned = f"{len(records) + missing}" if missing is not None else "an unknown number"
    cut = sum(any(doubt.kind is DoubtKind.OUT_OF_TIME for doubt in record.doubts) for record in records)
    run = f"{done} of {planned}" + (f", {cut} of them stopped before the end" if cut else "")
    attacks, scored = {r.attack for r in attacks_in(records)}, {tally.attack for tally in gate.tally(records)}
    mute = len(attacks - scored)
    number = f"{len(attacks)}" + (f", {mute} of them without an image" if mute else "")
    facts = [("attacks", number), ("cases run", run)]
    if ranked:
        recovered = f"{sum(case.recovered for case in ranked)} of {len(ranked)}"
        facts.insert(0, ("different images recovered by any attack", recovered))
    near = sum(case.near for case in ranked)
    if near:
        facts.append(("partly recognisable", count(near, "image")))
    if not gate.inconclusive_fails:
        facts.append(("an inconclusive audit", "exits with 0: inconclusive_fails = false"))
    return facts


def _distinct(ranked: Sequence[ScoredImage], album: Album) -> list[ScoredImage]:
    """Return every private image once, by its closest reconstruction."""
    by_original: dict[bytes | str, ScoredImage] = {}
    for case in ranked:
        if case.picture is not None:
            by_original.setdefault(album.content(case.picture.original) or case.picture.original, case)
    return list(by_original.values())


def _origin(record: Record, owner: str | None, names: Names) -> list[str]:
    """Return the attack, the message and the client of an image; a server's message is named after its client."""
    named = bool(record.view_name) and record.standpoint in ("server", "malicious_server")
    return [record.attack, message_name(record, names), *([] if named else [owner or record.client])]


def _pair(case: ScoredImage, picture: Picture, gate: Gate, scales: Scales, album: Album, lines: Sequence[str]) -> Pair:
    """Return one image of a record; `lines` name its origin."""
    scores = {name: scales[name].show(value) for name, value in case.scores.items()}
    first = [name for name in dict.fromkeys([gate.metric, "psnr", "ssim"]) if name in scores][:2]
    label = [] if picture.label is None else [f"label {picture.label}"]
    raw = [f"{scales[name].title} {scales[name].show(case.scores_raw.get(name))}" for name in first]
    blind, guess = case.blind.get(gate.metric), case.blind_guess.get(gate.metric, "")
    return Pair(
        original=album.inline(picture.original, "private original"),
        reconstruction=album.inline(picture.reconstruction, f"reconstruction by {case.attack}"),
        scores=[f"{scales[name].title} {scores[name]}" for name in first],
        lines=[
            *([f"raw: {', '.join(raw)}"] if case.scores_raw else []),
            *([f"judged: {case.judged}"] if case.judged else []),
            *([] if blind is None else [f"without the message: {gate.scale.show(blind)}{guess and f' ({guess})'}"]),
            *([read_exactly(case)] if case.method else []),
            *lines,
            *label,
        ],
        leaked=case.recovered,
        near=case.near,
        raw=None if picture.raw is None else album.inline(picture.raw, f"raw reconstruction by {case.attack}"),
        film=None if picture.film is None else album.inline(picture.film, FILM),
        film_caption=picture.film_caption,
    )


def _all_evidence(
    records: Sequence[Record], gate: Gate, scales: Scales, album: Album, names: Names
) -> list[dict[str, Any]]:
    """Return every record in full, the one with the most leaked image first, those without a score last."""
    cases = grouped(rank(records, gate), lambda case: case.key)
    order = {key: place for place, key in enumerate(cases)}
    ordered = sorted(records, key=lambda record: order.get(record.key, len(order)))
    evidence = []
    for record in ordered:
        score, tone = _score(record, gate)
        shown = [(c, c.picture) for c in cases.get(record.key, []) if c.picture is not None]
        pairs = [
            _pair(c, picture, gate, scales, album, [f"image {c.image}", *([c.owner] if c.owner else [])])
            for c, picture in shown
        ]
        case = {"record": record, "view": message_name(record, names), "score": score, "tone": tone}
        case |= {"flags": flags_of(record, gate), "facts": _record_facts(record)}
        evidence.append({**case, "pairs": pairs or _unscored(record, album)})
    return evidence


def _score(record: Record, gate: Gate) -> tuple[str, str]:
    """Return the result of a record as a short text, and its colour."""
    if record.status == "failed":
        return "failed", "incomplete"
    if record.game is not None:
        named = f"{round(record.game.top1 * record.game.records)} of {count(record.game.records, 'record')} named"
        return named, "leak" if gate.exposes(record) else ""
    if record.certificate is not None:
        tone = "inconclusive" if serious_doubts(record, gate) else "clear"
        return f"success at most {percent(gate.allowed(record))}", tone
    if record.kind != "attack":
        return ("not played", "") if record.kind == "game" else ("no certificate", "inconclusive")
    values = [v for v in gate.scores(record) if v is not None]
    if not values:
        return ("read, not scored", "leak") if reads(record) else ("not scored", "incomplete")
    hits = sum(gate.hits(ImageScores.of(record)))
    best = gate.scale.show(gate.best([record]))
    return f"{hits} of {len(values)} recovered, best {best}", "leak" if hits else "inconclusive"


def _all_unscored(records: Sequence[Record], album: Album, names: Names) -> tuple[list[Pair], int]:
    """Return the first reconstructions without a true image, and the number of further ones."""
    number = sum(len(_unscored_paths(record)) for record in records)
    pairs: list[Pair] = []
    for record in records:
        if len(pairs) < SHOWN:
            pairs += _unscored(record, album, [record.attack, names[record.view]], SHOWN - len(pairs))
    return pairs, number - len(pairs)


def _unscored(record: Record, album: Album, lines: Sequence[str] = (), most: int | None = None) -> list[Pair]:
    """Return the reconstructions of a record that have no true image; `lines` name their origin."""
    raw, films = _unscored_paths(record, "pictures_raw"), _unscored_paths(record, "films")
    captions = _unscored_paths(record, "film_captions")
    return [
        Pair(
            original=None,
            reconstruction=album.inline(path, f"reconstruction by {record.attack}"),
            lines=[*lines, f"image {i}", *(f"recovered label {n}" for n in record.labels_recovered[i : i + 1])],
            raw=album.inline(raw[i], f"raw reconstruction by {record.attack}") if i < len(raw) else None,
            film=album.inline(films[i], FILM) if i < len(films) else None,
            film_caption=captions[i] if i < len(captions) else "",
        )
        for i, path in enumerate(_unscored_paths(record)[:most])
    ]


def _unscored_paths(record: Record, kind: str = "pictures") -> list[str]:
    paths = record.extra.get(kind)
    return [path for path in paths if isinstance(path, str)] if isinstance(paths, list) else []


def _record_facts(record: Record) -> PageTable:
    labels = {"labels, true": record.labels_true, "labels, recovered": record.labels_recovered}
    numbers = {
        "energy reached" if record.energy_refined is None else "energy of the raw images": record.energy,
        "energy of the refined images": record.energy_refined,
        "energy of the true data": record.energy_truth,
        "energy of a blind guess": record.energy_blind,
        "iterations": record.iterations,
        "peak memory (MiB)": record.peak_mib,
    }
    rows: list[list[TableCell | str]] = [["view", record.view], ["case", record.key], ["seed", str(record.seed)]]
    rows.append(["time", f"{record.seconds:.1f} s"])
    rows += [[name, f"{value:.6g}"] for name, value in numbers.items() if value is not None]
    rows += [[name, " ".join(map(str, values))] for name, values in labels.items() if values]
    rows += [["exact method", read_exactly(record)]] if record.method else []
    rows += [] if record.certificate is None else certificate_facts(record.certificate)
    rows += [] if record.game is None else game_facts(record.game)
    for control, figures in record.controls.items():
        measured = {name: [value for value in values if value is not None] for name, values in figures.items()}
        means = [f"{name} {sum(values) / len(values):.3g}" for name, values in measured.items() if values]
        rows.append([f"control: {control}", ", ".join(means)])
    if record.identity_preserved:
        preserved = f"{sum(record.identity_preserved)} of {len(record.identity_preserved)} refined images"
        rows.append(["still nearest to the same true image", preserved])
    return PageTable(["", ""], rows)
