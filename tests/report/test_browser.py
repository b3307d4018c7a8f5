"""The page in headless Chromium: it fetches nothing, logs no error and fits a phone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedglass.bounds.success import Game
from fedglass.report.audit_page import write_report
from fedglass.verdict.directory import RecordFile
from fedglass.verdict.doubts import DoubtKind, doubt
from fedglass.verdict.records import Certificate, KnownFact, Record

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path: install the package `chromium`"),
]
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--allow-file-access-from-files",
    "--enable-logging=stderr",
    "--v=0",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--dump-dom",
]
FRAME = """<!DOCTYPE html><body style="margin:0"><script>
function measure(frame) {
  const page = frame.contentDocument;
  page.querySelectorAll("details").forEach(item => { item.open = true; });
  const root = page.documentElement;
  document.title = JSON.stringify({
    scroll: root.scrollWidth, width: root.clientWidth,
    ground: frame.contentWindow.getComputedStyle(page.body).backgroundColor,
    unseen: [...page.images].filter(image => image.naturalWidth === 0).length,
    images: page.images.length,
    tight: [...page.querySelectorAll(".pair")].filter(item => item.scrollWidth > item.clientWidth).length,
  });
}
</script><iframe src="PAGE" onload="measure(this)"
 style="border:0;width:WIDTHpx;height:900px;color-scheme:SCHEME"></iframe>"""


@dataclass(frozen=True)
class Visit:
    """What a browser did with a page."""

    dom: str
    console: list[str]
    fetched: list[str]


def visit(path: Path, profile: Path) -> Visit:
    log = profile / "net.json"
    profile.mkdir()
    command = [str(CHROMIUM), *OPTIONS, f"--user-data-dir={profile}", f"--log-net-log={log}", path.as_uri()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    events = json.loads(log.read_text())["events"]
    requests = [e["params"] for e in events if "initiator" in e.get("params", {})]
    # Requests of the browser itself (its clock, its updates) have no origin; a page's always do.
    fetched = [p["url"] for p in requests if p["initiator"] != "not an origin" and "://" in p.get("url", "")]
    return Visit(run.stdout, re.findall(r"CONSOLE.*", run.stderr), fetched)


def measure(page: Path, width: int, scheme: str, folder: Path) -> dict[str, Any]:
    frame = folder / f"frame-{width}-{scheme}.html"
    text = FRAME.replace("PAGE", page.as_uri()).replace("WIDTH", str(width)).replace("SCHEME", scheme)
    frame.write_text(text)
    title = re.search(r"<title>(.*?)</title>", visit(frame, folder / frame.stem).dom)
    assert title is not None
    found: dict[str, Any] = json.loads(title[1])
    return found


def test_nothing_is_fetched_and_nothing_is_logged(audit_directory: Path, tmp_path: Path) -> None:
    seen = visit(write_report(audit_directory), tmp_path / "profile")
    assert "Leak found" in seen.dom
    assert seen.fetched == []
    assert seen.console == []


def test_the_check_itself_sees_requests_and_errors(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<img src="http://fedglass.invalid/x.png"><script>console.error("boom")</script>')
    seen = visit(page, tmp_path / "profile")
    assert seen.fetched == ["http://fedglass.invalid/x.png"]
    assert "boom" in seen.console[0]


def test_the_policy_blocks_what_slips_in(audit_directory: Path, tmp_path: Path) -> None:
    path = write_report(audit_directory)
    slip = '<img src="http://fedglass.invalid/x.png"><script>document.title = "owned"</script></main>'
    path.write_text(path.read_text().replace("</main>", slip))
    seen = visit(path, tmp_path / "profile")
    assert seen.fetched == []
    assert "<title>owned" not in seen.dom
    assert len(seen.console) == 2


def test_it_fits_every_width_with_everything_open(
    audit_directory: Path,
    tmp_path: Path,
    make_case: Callable[..., Record],
    make_evidence: Callable[..., Record],
    make_game: Callable[..., Game],
    make_certificate: Callable[..., Certificate],
) -> None:
    long = "unbroken" * 30
    said = [doubt(DoubtKind.NOT_AS_DECLARED, found=long), doubt(DoubtKind.OTHER_DOMAIN)]
    record = make_case(
        audit_directory,
        long,
        0,
        0,
        key="long",
        view=long,
        attack_repr=long,
        doubts=said,
        knows={long: KnownFact(text=long)},
    )
    told = {"view": long, "doubts": said}
    evidence = [
        make_evidence("game", **told, game=make_game(statistic=long)),
        make_evidence("game", 1, view=long, doubts=[doubt(DoubtKind.GAME_NOT_PLAYED, why=long)]),
        make_evidence("certificate", 2, **told, certificate=make_certificate(assumptions={long: long})),
        make_evidence("certificate", 3, **told),
    ]
    exact = make_case(audit_directory, "dlg", 1, 0, key="exact", metrics={"psnr": [100.0] * 4, "ssim": [1.0] * 4})
    for one in (record, exact, *evidence):
        RecordFile(audit_directory / "records.jsonl").append(one)
    page = write_report(audit_directory)
    for width in (390, 1280):
        found = measure(page, width, "light", tmp_path)
        assert found["width"] == width
        assert found["scroll"] <= width
        assert found["images"] > 0
        assert found["unseen"] == 0
        assert found["tight"] == 0


def test_the_check_itself_sees_what_overflows(tmp_path: Path) -> None:
    page = tmp_path / "wide.html"
    page.write_text('<!DOCTYPE html><div style="width:700px;height:9px"></div>')
    assert measure(page, 390, "light", tmp_path)["scroll"] >= 700


def test_dark_is_dark(audit_directory: Path, tmp_path: Path) -> None:
    page = write_report(audit_directory)
    light, dark = (measure(page, 390, scheme, tmp_path)["ground"] for scheme in ("light", "dark"))
    brightness = [sum(map(int, re.findall(r"\d+", colour))) for colour in (light, dark)]
    assert brightness[0] > 700
    assert brightness[1] < 120
