"""The page on singling out, certificates and exact attacks: a privacy officer reads what the records say."""

from __future__ import annotations

import html as markup
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedglass.bounds.success import Game
from fedglass.report.audit_page import write_report
from fedglass.report.evidence import certificates_of, games_of
from fedglass.report.page import short_names
from fedglass.report.sections import CHARTS
from fedglass.verdict.directory import RecordFile
from fedglass.verdict.doubts import DoubtKind, doubt
from fedglass.verdict.gate import Gate
from fedglass.verdict.judge import judge
from fedglass.verdict.records import Certificate, Record
from fedglass.verdict.summary import summarise
from fedglass.verdict.texts import LIMITS

Make = Callable[..., Any]


def page(directory: Path, *records: Record) -> str:
    """The page of these records, all of the audit."""
    for record in records:
        RecordFile(directory / "records.jsonl").append(record)
    summarise(records, Gate()).write(directory / "summary.json")
    return write_report(directory).read_text()


def text_of(html: str) -> str:
    """Without tags, in single spaces."""
    return " ".join(markup.unescape(re.sub(r"<[^>]+>", " ", html)).replace("\u00a0", " ").split())


def section(html: str, name: str) -> str:
    return html.split(f'<section id="{name}">')[1].split("</section>")[0]


def verdict_box(html: str) -> str:
    return text_of(html.split('aria-label="Verdict">')[1].split("<nav ")[0])


@pytest.fixture
def four(
    tmp_path: Path,
    make_case: Callable[..., Record],
    make_evidence: Callable[..., Record],
    make_game: Callable[..., Game],
    make_certificate: Callable[..., Certificate],
    build_evidence_audit: Callable[..., Path],
) -> dict[str, Path]:
    """One audit of each state."""
    none = make_evidence("certificate", doubts=[doubt(DoubtKind.NO_NOISE)])
    bound = make_evidence("certificate", certificate=make_certificate())
    exposed, harmless = (make_evidence("game", game=make_game(rate)) for rate in (0.90625, 0.0))
    low = {"metrics": {"psnr": [9.0] * 4}}
    audits = {"leak": [none, exposed], "exposed": [none, exposed], "clear": [bound, harmless], "inconclusive": [none]}
    found = {}
    for state, records in audits.items():
        place = tmp_path / state
        place.mkdir()
        attack = make_case(place, "idlg", 0, 0, **({"metrics": {"psnr": [25.0] * 4}} if state == "leak" else low))
        found[state] = build_evidence_audit(place, attack, *records)
    return found


@pytest.mark.parametrize("state", ["leak", "exposed", "clear", "inconclusive"])
def test_interval_step_and_limits_stand_with_the_verdict(four: dict[str, Path], state: str) -> None:
    verdict = judge(RecordFile(four[state] / "records.jsonl").read(), Gate())
    assert verdict.state == state
    html = write_report(four[state]).read_text()
    assert f'<section class="verdict {state}"' in html
    box = verdict_box(html)
    # Links to the glossary put spaces before punctuation.
    plain = re.sub(r" (?=[);:.,])|(?<=\() ", "", box)
    order = [verdict.title, verdict.lead, verdict.interval, *verdict.limits, verdict.step]
    places = [plain.index(words) for words in order if words]
    assert places == sorted(places)
    assert ("What this does not say" in box) is (state == "clear")
    assert (verdict.limits == LIMITS) is (state == "clear")


def test_the_section_on_singling_out_is_there_only_with_games(four: dict[str, Path]) -> None:
    pages = {state: write_report(place).read_text() for state, place in four.items()}
    assert {state for state, html in pages.items() if 'id="games"' in html} == {"leak", "exposed", "clear"}
    for html in pages.values():
        assert ('href="#games"' in html) is ('id="games"' in html)


def test_a_game_is_told_in_one_sentence_with_a_chart_and_both_rates(four: dict[str, Path]) -> None:
    part = section(write_report(four["exposed"]).read_text(), "games")
    text = text_of(part)
    assert (
        "Given this message and 1,000 similar images, an adversary names the one that was trained on in 90.6 % of the "
        "cases; images that were not trained on in 0 %."
    ) in text
    assert "European data-protection authorities call success singling out" in text
    assert "Article 29 Working Party, Opinion 05/2014" in text
    assert "90.6 % (75.6 % to 98.6 %)" in text
    assert "0 % (0 % to 10 %)" in text
    assert part.count("<svg") == 1
    assert part.count("<circle") == 32 + 32 + 21
    assert "exposed" in text


def test_games_that_were_not_played_or_decide_nothing_say_why(
    tmp_path: Path, make_evidence: Make, make_game: Make
) -> None:
    unplayed = [make_evidence("game", n, doubts=[doubt(DoubtKind.NO_CANDIDATES, found=3, least=200)]) for n in range(2)]
    other = make_evidence(
        "game",
        2,
        game=make_game(control="", control_top1=None, control_low=None, control_high=None, control_scores=[]),
        doubts=[doubt(DoubtKind.NO_CONTROL, why="")],
    )
    part = section(page(tmp_path, *unplayed, other), "games")
    text = text_of(part)
    assert text.count("needs at least 200 other examples, and there are 3") == 1
    assert "the server sees client 0's update, round 1; the server sees client 1's update, round 1" in text
    assert 'href="#doubt-no-control">no control</a>' in part
    assert "images that were not trained on" not in text
    assert part.count("exposed") == 0


def test_of_many_games_the_worst_are_drawn(make_evidence: Make, make_game: Make) -> None:
    records = [make_evidence("game", n, game=make_game(n / 32)) for n in range(CHARTS + 5)]
    found = games_of(records, Gate(), short_names(records))
    assert found is not None
    assert found["table"] is not None
    assert len(found["table"].rows) == CHARTS + 5
    assert [figure.title for figure in found["details"][:2]] == [
        f"the server sees client {n}'s update, round 1" for n in (CHARTS + 4, CHARTS + 3)
    ]
    assert len(found["details"]) == CHARTS
    assert games_of([make_evidence("certificate")], Gate(), {}) is None


def test_a_certificate_states_all_its_figures_and_assumptions(four: dict[str, Path]) -> None:
    text = text_of(section(write_report(four["clear"]).read_text(), "certificates"))
    for words in (
        "demands at most 5 % for every record",
        "at most 1.83 % (without the message 0.1 %; advantage 38.3 %)",
        "worst 1.83 %, median 0.9 %, of 3",
        "all records of a client at once at most 13.8 %",
        "worst of 3 records; simulated adversary 1.66 % among 1,000",
        "holds for 1 round; at the planned 4 rounds it is 4.5 %",
        "Gaussian noise, and how far each record moves the message.",
        "4.38 at delta 1e-05",
        "69 % among 2, 34 % among 10, 7 % among 100, 1.66 % among 1,000 candidates; for information only",
        "11.2 dB for an adversary without a prior. It does not bound an adversary that knows what such",
        "noise tested: the message is consistent with it",
        "training by construction: fedglass itself does this",
        "unpredictable noise declared: not tested",
        "certified",
    ):
        assert words in text, words


def test_a_certificate_with_little_to_say_says_only_that(make_evidence: Make) -> None:
    bare = Certificate(method="accountant", accounting="pld", success=[0.02])
    records = [make_evidence("certificate", certificate=bare)]
    found = certificates_of(records, Gate(), short_names(records))
    assert found is not None
    (stated,) = found["details"]
    assert [row[0] for row in stated["facts"].rows] == [
        "success in naming a record",
        "single records",
        "rounds",
        "accounting",
    ]
    assert stated["assumptions"].rows == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"planned": None, "success_planned": None}, "holds for 1 round"),
        ({"success_planned": None}, "holds for 1 round; nothing bounds the planned 4 rounds"),
        ({"accounting": "composed_gaussian"}, "Shuffled batches are not Poisson samples, so sampling adds no privacy."),
        ({"accounting": "pld"}, "privacy-loss distribution of DP-SGD on Poisson samples."),
        (
            {"accounting": "poisson_not_counted"},
            "sampling is not computed: pip install fedglass[pld].",
        ),
        ({"accounting": "identical"}, "no noise; the message is bit-identical for every record."),
    ],
)
def test_how_long_and_by_what_a_certificate_holds(
    make_evidence: Make, make_certificate: Make, changes: dict[str, Any], words: str
) -> None:
    records = [make_evidence("certificate", certificate=make_certificate(**changes))]
    found = certificates_of(records, Gate(), short_names(records))
    assert found is not None
    assert found["table"] is not None
    told = [row[1] for row in found["details"][0]["facts"].rows]
    assert words in told or any(str(each).endswith(words) for each in told)
    planned = "" if changes.get("planned", 4) is None else "4 planned: "
    assert str(getattr(found["table"].rows[0][4], "note", "")).startswith(planned)


def test_without_a_certificate_one_sentence_says_why(
    tmp_path: Path, make_evidence: Make, make_certificate: Make, make_game: Make
) -> None:
    unbounded = [doubt(DoubtKind.NO_NOISE), doubt(DoubtKind.STATISTICS_SENT)]
    records = [
        *(make_evidence("certificate", n, doubts=unbounded) for n in range(2)),
        make_evidence("certificate", 2, certificate=make_certificate(success=[0.2])),
        make_evidence("certificate", 3, certificate=make_certificate(), doubts=[doubt(DoubtKind.NOISE_REFUTED)]),
        make_evidence("certificate", 4, certificate=make_certificate(success_planned=None)),
        make_evidence("game", 4, game=make_game()),
        make_evidence("certificate", 5),
    ]
    html = page(tmp_path, *records)
    part = section(html, "certificates")
    text = text_of(part)
    assert text.count("These running statistics are sent with the update") == 1
    assert "nothing adds noise" not in text  # one reason is enough, the others are among the doubts
    assert "nothing adds noise" in text_of(section(html, "doubts"))
    assert "No certificate was computed for this message." in text
    for name in ("certificate too weak", "noise not as declared", "certificate refuted"):
        assert f">{name}</a>" in part
    assert "certified" not in text
    assert 'id="doubt-certificate-refuted"' in html


def test_trust_is_told_where_the_certificate_rests_on_it(
    tmp_path: Path, make_evidence: Make, make_certificate: Make, build_evidence_audit: Make
) -> None:
    record = make_evidence("certificate", certificate=make_certificate(), doubts=[doubt(DoubtKind.NO_TRUTH)])
    trusting = build_evidence_audit(tmp_path / "a", record, gate=Gate(trust_declared=True))
    text = verdict_box(write_report(trusting).read_text())
    assert "No leak: certified" in text
    assert "gate.trust_declared = true" in text
    strict = verdict_box(write_report(build_evidence_audit(tmp_path / "b", record)).read_text())
    assert "Inconclusive" in strict
    assert "recording.truth" in strict


def test_exact_attacks_say_by_which_method_they_read_or_why_they_did_not(
    tmp_path: Path, make_case: Callable[..., Record]
) -> None:
    read = make_case(tmp_path, "exact", 0, 0, method="division", explains=True, metrics={"psnr": [99.0] * 4})
    unsure = make_case(tmp_path, "exact", 1, 0, method="spear", explains=False)
    nothing = make_case(
        tmp_path,
        "exact",
        2,
        0,
        metrics={},
        pictures=[],
        labels_recovered=[],
        doubts=[doubt(DoubtKind.NO_EXACT_METHOD, reasons="division: no dense layer sees the images")],
    )
    html = page(tmp_path, read, unsure, nothing)
    text = text_of(section(html, "figures"))
    assert "4 images read by division; verified: it explains the message." in text
    assert "4 images read by spear; not verified." in text
    assert "No exact method can read this message: division: no dense layer sees the images." in text
    assert "read by division; verified: it explains the message" in text_of(section(html, "worst"))
    assert "PSNR is missing" not in verdict_box(html)


def test_what_is_not_an_attack_is_not_listed_among_the_attacks(four: dict[str, Path]) -> None:
    html = write_report(four["exposed"]).read_text()
    assert "Attacks: idlg." in text_of(section(html, "threat"))
    assert "singling_out" not in section(html, "figures")
    cases = section(html, "evidence")
    assert all(name in cases for name in ("idlg", "singling_out", "certificate", "29 of 32 records named"))


def test_an_audit_of_certificates_alone_has_a_page(tmp_path: Path, make_evidence: Make) -> None:
    html = page(tmp_path, make_evidence("certificate", doubts=[doubt(DoubtKind.NO_NOISE)]))
    assert "No attack was run." in verdict_box(html)
    assert "3 x 32 x 32" in section(html, "threat")
