"""The page says what the records say, is self-contained, and lets nothing through unescaped."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedglass.bounds.success import Game
from fedglass.core.errors import UsageError
from fedglass.report.audit_page import FIRST, SHOWN, audit_page, write_report
from fedglass.report.page import Album, PageTable, environment, render
from fedglass.verdict.directory import RecordFile
from fedglass.verdict.doubts import DoubtKind, doubt
from fedglass.verdict.gate import Gate
from fedglass.verdict.judge import judge
from fedglass.verdict.outcomes import read_audit
from fedglass.verdict.records import Certificate, KnownFact, Picture, Record
from fedglass.verdict.summary import summarise

NASTY = "<script>alert(1)</script>"
VOID = {"br", "meta", "link", "img", "line", "rect", "circle", "polyline", "polygon", "path"}


class Page(HTMLParser):
    """Tags, attributes and text of a page; complains where tags do not nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page(directory: Path) -> Page:
    return Page(write_report(directory).read_text(encoding="utf-8"))


def test_the_verdict_comes_first_and_is_that_of_the_gate(audit_directory: Path) -> None:
    found = page(audit_directory)
    verdict = judge(RecordFile(audit_directory / "records.jsonl").read(), Gate())
    text = " ".join(found.text.replace("\u00a0", " ").split())
    order = [
        "Leak found",
        verdict.lead,
        verdict.interval,
        verdict.step,
        "The worst case in pictures",
        "Certificate",
        "Threat model",
        "What each attack recovered",
        "Utility and leakage",
        "Energy curves",
        "Doubts",
        "Every case",
        "Plan and versions",
        "Repeat and cite",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_it_is_complete_in_itself(audit_directory: Path) -> None:
    found = page(audit_directory)
    assert "script" not in found.tags
    links = [value for _, name, value in found.attributes if name in ("src", "href", "srcset", "action")]
    assert links
    within = {link for link in links if not link.startswith("data:image/png;base64,")}
    assert within <= {f"#{value}" for _, name, value in found.attributes if name == "id"}
    assert not [n for _, n, _ in found.attributes if n.startswith("on")]
    html = (audit_directory / "report.html").read_text()
    assert not re.search(r"url\(|@import|https?://", html)
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert ("meta", "content", policy) in found.attributes


def test_pictures_are_the_very_files(audit_directory: Path) -> None:
    found = page(audit_directory)
    inlined = {base64.b64decode(v.split(",")[1]) for t, n, v in found.attributes if (t, n) == ("img", "src")}
    assert inlined == {path.read_bytes() for path in audit_directory.glob("pictures/*/*.png")}


def test_the_worst_pictures_are_sorted_and_shown_once(audit_directory: Path) -> None:
    html = write_report(audit_directory).read_text()
    section = html.split('id="worst"')[1].split("</section>")[0]
    scores = [float(v) for v in re.findall(r"PSNR ([\d.]+) dB</b>", section)]
    assert len(scores) == 8  # two clients of four images, however often they were attacked
    assert scores == sorted(scores, reverse=True)


def test_everything_is_escaped(
    audit_directory: Path,
    make_case: Callable[..., Record],
    make_evidence: Callable[..., Record],
    make_game: Callable[..., Game],
    make_certificate: Callable[..., Certificate],
) -> None:
    directory = audit_directory / NASTY.replace("/", "_")
    (directory / "pictures").mkdir(parents=True)
    odd = "pictures/<script>alert(1)<script>.png"
    record = make_case(
        directory,
        NASTY,
        0,
        0,
        key="k",
        attack_repr=NASTY,
        view=NASTY,
        doubts=[doubt(DoubtKind.NOT_REPLAYED, why=NASTY), doubt(DoubtKind.NO_EXACT_METHOD, reasons=NASTY)],
        method=NASTY,
        knows={NASTY: KnownFact(text=NASTY, oracle=True)},
        versions={NASTY: NASTY},
        utility={NASTY: 0.5},
        defences=[NASTY],
        skipped_metrics={NASTY: NASTY},
        pictures=[Picture(original=odd, reconstruction=odd, label=NASTY)],
    )
    failed = make_case(directory, NASTY, 1, 0, key="f", status="failed", error=NASTY, utility={NASTY: 0.9})
    told = {"assumptions": {NASTY: NASTY}, "accounting": NASTY}
    bound = make_evidence("certificate", view=NASTY, certificate=make_certificate(**told), doubts=record.doubts)
    none = make_evidence("certificate", 1, view=NASTY, doubts=record.doubts)
    played = make_evidence("game", view=NASTY, game=make_game(statistic=NASTY, control=NASTY))
    idle = make_evidence("game", 1, view=NASTY, doubts=[doubt(DoubtKind.GAME_NOT_PLAYED, why=NASTY)])
    for item in (record.model_copy(update={"client": NASTY}), failed, bound, none, played, idle):
        RecordFile(directory / "records.jsonl").append(item)
    (directory / "plan.toml").write_text(NASTY)
    (directory / "audit.json").write_text('{"schema_version": 3, "plan_digest": "<script>"}')
    found = page(directory)
    assert "script" not in found.tags
    assert found.text.count(NASTY) > 40
    assert found.text.count("missing: pictures/<script>") == 7


@pytest.mark.parametrize("trick", ["link", "absent", "text", "torn", "directory"])
def test_bad_pictures_leave_a_hole(audit_directory: Path, tmp_path: Path, trick: str) -> None:
    path = next(audit_directory.glob("pictures/*/original-0.png"))
    whole = path.read_bytes()
    path.unlink()
    secret = tmp_path / "secret.png"
    secret.write_bytes(whole)
    if trick == "link":
        path.symlink_to(secret)
    elif trick == "text":
        path.write_text("root:x:0:0")
    elif trick == "torn":
        path.write_bytes(whole[: len(whole) // 2])
    elif trick == "directory":
        path.mkdir()
    name = str(path.relative_to(audit_directory))
    image = Album(audit_directory).inline(name, "original")
    assert image.uri is None
    assert name in image.missing
    assert name in page(audit_directory).text


def test_a_budget_keeps_the_page_small(audit_directory: Path) -> None:
    paths = sorted(str(p.relative_to(audit_directory)) for p in audit_directory.glob("pictures/*/*.png"))
    sizes = [(audit_directory / path).stat().st_size for path in paths]
    album = Album(audit_directory, budget=sum(sizes[:3]))
    assert [album.inline(path, "").uri is not None for path in paths[:5]] == [True] * 3 + [False] * 2


def test_an_audit_that_was_stopped_never_looks_like_a_pass(tmp_path: Path, build_audit: Callable[..., Path]) -> None:
    directory = build_audit(tmp_path / "audit", attacks=("dlg",))
    assert "Inconclusive" in page(directory).text
    assert "badge clear" not in (directory / "report.html").read_text()  # nor does any case
    (directory / "summary.json").unlink()
    assert "Audit incomplete" in page(directory).text


def test_cases_beyond_those_run_make_it_incomplete(audit_directory: Path) -> None:
    records = RecordFile(audit_directory / "records.jsonl").read()
    summarise(records, Gate(threshold=60.0), planned=len(records) + 1).write(audit_directory / "summary.json")
    found = page(audit_directory).text
    assert "Audit incomplete" in found
    assert "1 planned case not run yet" in found


def test_no_records_at_all(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").touch()
    assert "no case has run" in page(tmp_path).text
    (tmp_path / "records.jsonl").unlink()
    with pytest.raises(UsageError, match="not an audit directory"):
        write_report(tmp_path)


def test_records_without_scores_or_pictures(tmp_path: Path, make_case: Callable[..., Record]) -> None:
    bare = make_case(tmp_path, "dlg", 0, 0, metrics={}, pictures=[], knows={}, trace=[], utility={})
    other = make_case(tmp_path, "idlg", 0, 0, metrics={"new": [1.0, None]}, energy_truth=None)
    for record in (bare, other):
        RecordFile(tmp_path / "records.jsonl").append(record)
    text = page(tmp_path).text
    assert "not scored" in text
    assert "PSNR is missing in 2 of 2 cases" in text


def test_reconstructions_without_a_truth_are_shown(tmp_path: Path, make_case: Callable[..., Record]) -> None:
    scored = make_case(tmp_path, "dlg", 0, 0)
    shown = [picture.reconstruction for picture in scored.pictures]
    extra = {"pictures": [*shown, "../../outside.png", 7]}
    bare = make_case(tmp_path, "idlg", 0, 0, metrics={}, pictures=[], extra=extra, labels_recovered=[3])
    RecordFile(tmp_path / "records.jsonl").append(bare)
    text = page(tmp_path).text
    assert "What the attacks found" in text
    assert "recovered label 3" in text
    assert "refused, not a regular file inside the audit directory" in text
    html = write_report(tmp_path).read_text()
    for place, path in enumerate(shown):
        # In the gallery and again in its case; the first ones are on the first screen, too.
        expected = 3 if place < FIRST else 2
        assert html.count(base64.b64encode((tmp_path / path).read_bytes()).decode()) == expected


def test_only_some_of_many_unscored_images_are_at_the_top(tmp_path: Path, make_case: Callable[..., Record]) -> None:
    (path, *_) = (picture.reconstruction for picture in make_case(tmp_path, "dlg", 0, 0).pictures)
    extra = {"pictures": [path] * (SHOWN + 3)}
    bare = make_case(tmp_path, "idlg", 0, 0, metrics={}, pictures=[], extra=extra)
    RecordFile(tmp_path / "records.jsonl").append(bare)
    assert "3 more images are below" in page(tmp_path).text


@pytest.mark.parametrize("gate", [Gate("ssim", 0.5), Gate("rmse", 0.1, max_share=0.5)])
def test_other_gates(tmp_path: Path, build_audit: Callable[..., Path], gate: Gate) -> None:
    assert gate.rule in page(build_audit(tmp_path / "audit", gate=gate)).text.replace("\u00a0", " ")


def test_the_page_can_be_made_again(audit_directory: Path, tmp_path: Path) -> None:
    first = write_report(audit_directory).read_bytes()
    other = write_report(audit_directory, tmp_path / "other.html")
    assert other == tmp_path / "other.html"
    assert other.read_bytes() == first


def test_an_output_that_can_not_be_written(audit_directory: Path) -> None:
    with pytest.raises(UsageError, match="Cannot write the report"):
        write_report(audit_directory, audit_directory / "none" / "report.html")


def test_other_pages_can_be_built_from_the_base() -> None:
    source = '{% extends "base.html" %}{% import "macros.html" as m %}'
    source += "{% block main %}{{ m.table(t) }}{% endblock %}"
    html = environment().from_string(source).render(fedglass_version="1", t=PageTable(["a", "b"], [[NASTY, "2"]]))
    assert NASTY in Page(html).text
    assert "script" not in Page(html).tags
    assert "<title>fedglass</title>" in render("base.html")


def test_pictures_that_can_not_be_shown_are_named_at_the_end(audit_directory: Path) -> None:
    whole = page(audit_directory).text
    assert "could not be shown" not in whole
    first, second, third = sorted((audit_directory / "pictures").rglob("*.png"))[:3]
    first.unlink()
    second.write_bytes(second.read_bytes()[:60])
    third.write_text("nonsense")
    end = page(audit_directory).text.partition("Pictures that could not be shown")[2]
    assert "3 picture files of this audit are missing or damaged" in end
    for reason, path in (("missing", first), ("not a picture", second), ("not a picture", third)):
        assert f"{reason}: {path.relative_to(audit_directory)}" in end


def test_many_holes_are_counted(audit_directory: Path) -> None:
    for path in (audit_directory / "pictures").rglob("*.png"):
        path.unlink()
    text = page(audit_directory).text
    assert "96 picture files of this audit" in text
    assert "; and 46 more. Restore them" in text


def test_imports_no_torch() -> None:
    code = "import sys, fedglass.report.audit_page; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_defences_are_named_and_told_apart(tmp_path: Path, make_case: Callable[..., Record]) -> None:
    (tmp_path / "pictures").mkdir()
    shown: dict[str, object] = {"metrics": {}, "pictures": [], "knows": {}, "trace": [], "utility": {}}
    records = RecordFile(tmp_path / "records.jsonl")
    records.append(make_case(tmp_path, "dlg", 0, 0, view="first", defences=["Defended by Clip(norm=1.0)."], **shown))
    assert "Defended by Clip(norm=1.0)." in page(tmp_path).text
    assert "first:" not in page(tmp_path).text  # one kind of protection needs no telling apart
    records.append(make_case(tmp_path, "dlg", 1, 0, view="second", defences=[], **shown))
    assert all(text in page(tmp_path).text for text in ("first:", "second:", "No defence."))


def test_the_page_says_whose_updates_got_through_and_who_poisoned(audit_directory: Path) -> None:
    told: dict[str, object] = {
        "participants": ["client 0", "client 1", "<b>client 2</b>"],
        "accepted": ["client 1"],
        "behaviours": ["<b>client 2</b> sends its update with the sign flipped, times 1."],
        "defences": [],
    }
    page = rewritten(audit_directory, told)
    assert "Round 1: the aggregation rule accepted 1 of 3 updates (client 1) and rejected those of client 0" in page
    assert "&lt;b&gt;client 2&lt;/b&gt; sends its update with the sign flipped" in page
    assert "<b>client 2</b>" not in page
    assert "Defended by" not in page


def rewritten(directory: Path, told: dict[str, object]) -> str:
    """The page of the same audit with other facts in its records."""
    file = RecordFile(directory / "records.jsonl")
    records = [record.model_copy(update=told) for record in file.read()]
    file.path.unlink()
    for record in records:
        file.append(record)
    return audit_page(read_audit(directory))


def test_a_refined_image_is_shown_beside_the_raw_one_with_both_scores_and_energies(
    tmp_path: Path, build_audit: Callable[..., Path], make_case: Callable[..., Record]
) -> None:
    directory = build_audit(tmp_path, ("idlg",))
    plain = page(directory)
    assert "refined" not in plain.text
    record = make_case(directory, "dlg", 0, 0)
    pictures = [p.model_copy(update={"raw": p.original}) for p in record.pictures]
    raw = {"psnr": [31.25, 8.0, 7.0, 6.0], "ssim": [0.875, 0.1, 0.1, 0.1]}
    refined = record.model_copy(
        update={"pictures": pictures, "metrics_raw": raw, "energy": 0.125, "energy_refined": 0.75}
    )
    RecordFile(directory / "records.jsonl").append(refined)
    found = page(directory)
    for words in (
        "raw: PSNR 31.2 dB, SSIM 0.88",
        "energy of the raw images",
        "0.125",
        "energy of the refined images",
        "is invented",
    ):
        assert words in found.text
    assert found.text.count("energy reached") == 4  # those that were not refined
    alternatives = [value for tag, name, value in found.attributes if (tag, name) == ("img", "alt")]
    assert alternatives.count("raw reconstruction by dlg") >= 4
    assert ("div", "class", "two three") in found.attributes
    assert "1 of 4 recovered, best 31.2 dB" in found.text


def test_a_refined_image_without_a_truth_is_shown_beside_the_raw_one(
    tmp_path: Path, build_audit: Callable[..., Path], make_case: Callable[..., Record]
) -> None:
    directory = build_audit(tmp_path, ("idlg",))
    record = make_case(directory, "dlg", 0, 0)
    paths: dict[str, object] = {
        "pictures": [p.reconstruction for p in record.pictures],
        "pictures_raw": [p.original for p in record.pictures],
    }
    unscored = record.model_copy(update={"pictures": [], "metrics": {}, "extra": paths})
    RecordFile(directory / "records.jsonl").append(unscored)
    alternatives = [value for tag, name, value in page(directory).attributes if (tag, name) == ("img", "alt")]
    assert "raw reconstruction by dlg" in alternatives
