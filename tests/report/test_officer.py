"""What somebody reads who does not know the field: one threat model, short names, each flag once, a glossary."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from fedglass.report.audit_page import _origin, audit_page, ended
from fedglass.report.charts import ChartRow, interval_plot
from fedglass.report.glossary import TERMS, Glossary, doubts_by_question, merged
from fedglass.report.overview import HEIGHT, WIDTH, drawing, threat_section
from fedglass.report.page import message_name, short_names
from fedglass.report.sections import images_by_owner
from fedglass.verdict.directory import RecordFile
from fedglass.verdict.doubts import DoubtKind, doubt
from fedglass.verdict.gate import Gate
from fedglass.verdict.outcomes import read_audit
from fedglass.verdict.records import STANDPOINTS, Record

Make = Callable[..., Record]
PEOPLE = ["client 0", "client 1", "client 2", "client 3"]
PEER = {
    "view": "client 3, a participant, sees the global models before and after round 1",
    "view_name": "peer 3",
    "standpoint": "peer",
    "participants": PEOPLE,
    "accepted": PEOPLE,
    "contributors": PEOPLE[:3],
    "owners": ["client 0", "client 0", "client 1", "client 2"],
}
SERVER = {"view_name": "server, client 0", "standpoint": "server", "participants": PEOPLE, "contributors": ["client 0"]}
SUM = {"view": "the aggregate", "view_name": "aggregate", "standpoint": "aggregate", "contributors": PEOPLE}


def written(directory: Path, *records: Record) -> str:
    for record in records:
        RecordFile(directory / "records.jsonl").append(record)
    return audit_page(read_audit(directory))


def section(html: str, name: str) -> str:
    return html.split(f'<section id="{name}">')[1].split("</section>")[0]


def test_title_and_date_are_on_top(tmp_path: Path, make_case: Make) -> None:
    (tmp_path / "plan.toml").write_text('title = "Wards <b>"\n')
    first = make_case(tmp_path, "dlg", 0, 0, finished="2026-03-04T05:06:07+00:00")
    html = written(tmp_path, first, make_case(tmp_path, "dlg", 1, 0, finished="2026-03-03T05:06:07+00:00"))
    head = html.split("<main")[1].split('class="verdict')[0]
    assert "<h1>Wards &lt;b&gt;</h1>" in head
    assert "2026-03-04 05:06 UTC" in head


@pytest.mark.parametrize("when", [None, "yesterday", "0001-01-01T00:00:00+23:00"])
def test_a_record_without_a_sound_date_takes_that_of_the_file(
    tmp_path: Path, make_case: Make, when: str | None
) -> None:
    record = make_case(tmp_path, "dlg", 0, 0, finished=when)
    RecordFile(tmp_path / "records.jsonl").append(record)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d UTC", ended(tmp_path, [record]))


def test_the_contents_lead_to_every_section(audit_directory: Path) -> None:
    html = audit_page(read_audit(audit_directory))
    listed = re.findall(r'<li><a href="#(\w+)">', html)
    assert listed == re.findall(r'<section id="(\w+)">', html)


def test_one_threat_model_with_what_differs_in_a_table(tmp_path: Path, make_case: Make) -> None:
    html = written(tmp_path, make_case(tmp_path, "dlg", 0, 0, **SERVER), make_case(tmp_path, "idlg", 1, 0, **PEER))
    box = section(html, "threat")
    assert html.count('class="threat"') == 1
    assert box.count("<svg") == 2
    assert box.count("3 x 32 x 32") == 1  # a fact that both share
    assert "Differences between them" not in box
    oracle = make_case(tmp_path, "inverting_gradients", 1, 0, **PEER)
    differs = section(written(tmp_path, oracle), "threat").split("Differences between them")[1]
    assert "the true labels" in differs
    assert "unknown" in differs


def test_who_could_do_it_and_who_is_behind(tmp_path: Path, make_case: Make) -> None:
    records = [make_case(tmp_path, "dlg", 0, 0, **PEER), make_case(tmp_path, "dlg", 1, 0, **SUM)]
    peer, aggregate = threat_section(records, short_names(records))["adversaries"]
    assert "Any of the 4 participants could do this" in peer["lines"][0]
    assert "images of 3 other clients, 4 images in all" in peer["lines"][1]
    assert "images of 4 clients, 4 images in all" in aggregate["lines"][0]


def test_whose_images_came_back_by_any_attack(tmp_path: Path, make_case: Make) -> None:
    gate = Gate()
    one = make_case(tmp_path, "dlg", 0, 0, metrics={"psnr": [30.0, 9.0, 9.0, 9.0]}, **PEER)
    other = make_case(tmp_path, "idlg", 0, 0, metrics={"psnr": [31.0, 9.0, 9.0, 40.0]}, **PEER)
    found = images_by_owner([one, other], gate, short_names([one, other]))
    assert found is not None
    assert found.rows == [
        ["peer 3", "Any of the 4 participants", "2 of 4", "client 0: 1 of 2, client 1: 0 of 1, client 2: 1 of 1"]
    ]
    old = one.model_copy(update={"owners": []})
    assert images_by_owner([old], gate, short_names([old])) is None


def test_short_names_are_told_apart(tmp_path: Path, make_case: Make) -> None:
    def named(view: str, name: str, number: int = 1, **more: object) -> Record:
        return make_case(tmp_path, "dlg", 0, 0, view=view, view_name=name, round=number, **more)

    cases = [named("a", "peer 1"), named("b", "peer 1", 2), named("c", "x"), named("d", "x"), named("e", "")]
    together = named("f", "aggregate", standpoint="aggregate", contributors=["p", "q", "r", "s"])
    assert short_names([*cases, together]) == {
        "a": "peer 1, round 1",
        "b": "peer 1, round 2",
        "c": "c",  # not even the round tells these two apart
        "d": "d",
        "e": "e",
        "f": "aggregate of 4",
    }


def test_a_message_is_named_with_its_round_once(tmp_path: Path, make_case: Make) -> None:
    facts = SERVER | {"view": "a", "view_name": "server, round robin"}
    plain = make_case(tmp_path, "dlg", 0, 0, **facts)
    joint = make_case(tmp_path, "dlg", 0, 0, **facts, extra={"rounds": 3})
    assert message_name(plain, short_names([plain])) == "server, round robin, round 1"
    assert message_name(joint, short_names([joint])) == "server, round robin"
    later = plain.model_copy(update={"view": "b", "round": 2})
    names = short_names([plain, later])
    assert [message_name(record, names) for record in (plain, later)] == list(names.values())


def test_the_owner_of_an_image_is_named_unless_the_message_is_named_after_it(tmp_path: Path, make_case: Make) -> None:
    peer = make_case(tmp_path, "dlg", 0, 0, **(PEER | {"owners": ["3"] * 4}))
    assert _origin(peer, "3", {peer.view: "peer 3"}) == ["dlg", "peer 3, round 1", "3"]
    server = make_case(tmp_path, "dlg", 0, 0, **SERVER)
    assert _origin(server, None, short_names([server])) == ["dlg", "server, client 0, round 1"]


def test_a_doubt_is_explained_once_and_labelled_at_each_case(tmp_path: Path, make_case: Make) -> None:
    figures = [{"found": found, "truth": 0.01} for found in (0.3, 0.1, 0.2)]
    records = [
        make_case(
            tmp_path, "dlg", 0, n, doubts=[doubt(DoubtKind.SEARCH_FAILED, **told)], energy_truth=None, label_errors=0
        )
        for n, told in enumerate(figures)
    ]
    html = written(tmp_path, *records)
    assert html.count("than the images that the search found") == 1
    assert "(energy 0.01) than the images that the search found (0.1 to 0.3)" in html
    assert section(html, "evidence").count('href="#doubt-search-failed">search failed</a>') == 3


def test_doubts_stand_under_their_questions_the_serious_first(tmp_path: Path, make_case: Make) -> None:
    said = [
        DoubtKind.NO_TRUTH,
        DoubtKind.LOW_POWER,
        DoubtKind.NO_NOISE,
        DoubtKind.DECLARATION_TRUSTED,
        DoubtKind.ZERO_UPDATE,
        DoubtKind.NO_CONTROL,
    ]
    records = [make_case(tmp_path, "dlg", 0, 0, doubts=[doubt(kind) for kind in said], metrics={})]
    asked = doubts_by_question(records, Gate())
    assert [(question, [flag.kind for flag, _, _ in groups]) for question, groups in asked] == [
        ("Is the message what was declared?", [DoubtKind.ZERO_UPDATE]),
        (
            "Is the protection as declared, and is it strong enough?",
            [DoubtKind.NO_NOISE, DoubtKind.DECLARATION_TRUSTED],
        ),
        ("Does the message single out its records?", [DoubtKind.LOW_POWER, DoubtKind.NO_CONTROL]),
        ("What do the pictures show?", [DoubtKind.NO_TRUTH]),
    ]
    html = section(written(tmp_path, *records), "doubts")
    places = [html.index(question) for question, _ in asked]
    assert places == sorted(places)


def test_doubts_of_one_kind_are_told_together() -> None:
    def merge(*values: object) -> object:
        return merged([doubt(DoubtKind.NOT_REPLAYED, why=value) for value in values]).details["why"]

    assert merge(3, 1, 2) == "1 to 3"
    assert merge(0.5, 0.5) == 0.5
    assert merge(["a", "b"], ["b", "c"]) == ["a", "b", "c"]
    assert merge("Too long.", "Too long.", "No order.") == "Too long. No order."
    assert merge("a", "b", "c", "d", "e") == "a; b; c; (2 more.)"
    assert merge(0.5, "not finite") == "0.5; not finite"


def test_every_word_of_the_glossary_is_linked_once_from_above(audit_directory: Path) -> None:
    html = audit_page(read_audit(audit_directory))
    above, glossary = html.split('<section id="glossary">')
    linked = re.findall(r'class="term" href="#([\w-]+)"', above)
    assert len(linked) == len(set(linked))
    explained = re.findall(r'<div id="([\w-]+)">', glossary)
    assert set(linked) <= set(explained)
    for word in ("psnr", "ssim", "energy", "gate", "blind-guess", "certificate", "oracle"):
        assert f"term-{word}" in linked
    assert "term-rmse" not in explained  # which no record of this audit has
    assert {f"term-{word}" for word in ("lpips", "inconclusive")} <= set(explained)


def test_a_word_is_linked_whole_and_never_inside_another() -> None:
    words = Glossary(TERMS)
    assert words.link("investigate gate-keepers & PSNRs") == "investigate gate-keepers &amp; PSNRs"
    assert words.link("Energies & energy").count("<a ") == 1
    assert words.link("energy") == "energy"
    assert words.link("gate.threshold") == "gate.threshold"
    assert "<a " in words.link("the gate.")


@pytest.mark.parametrize("standpoint", list(STANDPOINTS))
def test_drawings_are_well_formed_and_inside_their_frame(standpoint: str) -> None:
    svg = drawing(standpoint, '"<&')
    assert svg is not None
    for element in ET.fromstring(svg).iter():
        for name, most in (("x", WIDTH), ("x1", WIDTH), ("x2", WIDTH), ("y", HEIGHT), ("y1", HEIGHT), ("y2", HEIGHT)):
            assert 0 <= float(element.attrib.get(name, 0)) <= most
    assert drawing("elsewhere", "") is None


def test_the_threshold_does_not_run_through_names() -> None:
    dots = [ChartRow(f"attack {n}", "1", [10.0 * n]) for n in range(3)]
    svg = ET.fromstring(interval_plot("t", dots, 20.0, True))
    baselines = [float(e.attrib["y"]) for e in svg.iter("text") if e.attrib["class"] in ("name", "value")]
    upright = [e for e in svg.iter("line") if e.attrib["class"] in ("limit", "grid")]
    assert sum(e.attrib["class"] == "limit" for e in upright) == 3
    for line in upright:
        top, bottom = float(line.attrib["y1"]), float(line.attrib["y2"])
        # 12 pixels high above its baseline, 3 below.
        assert not any(top < y + 3 and y - 12 < bottom for y in baselines)


def test_the_first_screen_says_what_was_seen_of_whom_and_what_to_do(tmp_path: Path, make_case: Make) -> None:
    one = make_case(tmp_path, "dlg", 0, 0, metrics={"psnr": [30.0, 9.0, 9.0, 9.0]}, **PEER)
    screen = section_of_class(written(tmp_path, one), "overview")
    assert "Who could have done it" in screen
    assert "Any of the 4 participants." in screen
    assert re.search(r"client 0</span>|client 0", screen)
    assert "1 of 2 images recovered (peer 3, round 1)" in screen
    assert "Do not release such messages" in screen
    assert screen.count("<figure") == 3


def test_a_page_without_pictures_has_none(tmp_path: Path, make_case: Make) -> None:
    records = [make_case(tmp_path, "dlg", 0, 0, **PEER)]
    (tmp_path / "records.jsonl").write_text(records[0].model_dump_json() + "\n")
    assert "data:image/png" in audit_page(read_audit(tmp_path, records=records)).split("<main")[1]
    assert "data:image/png" not in audit_page(read_audit(tmp_path, records=records), pictures=False).split("<main")[1]


def test_figures_of_the_first_screen_count_each_image_once(tmp_path: Path, make_case: Make) -> None:
    scores = {"psnr": [30.0, 31.0, 9.0, 9.0]}
    pictures = make_case(tmp_path, "dlg", 0, 0, **PEER).pictures
    records = [
        make_case(tmp_path, attack, 0, 0, metrics=scores, **PEER).model_copy(update={"pictures": pictures})
        for attack in ("dlg", "idlg")
    ]
    facts = written(tmp_path, *records).split("<dl>")[1].split("</dl>")[0]
    assert "<dd>2 of 4</dd>" in facts


def section_of_class(html: str, name: str) -> str:
    return html.split(f'class="{name}">')[1].split("</section>")[0]
