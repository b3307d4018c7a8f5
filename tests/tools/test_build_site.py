"""A site that loads anything from another host is refused."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

import pytest

tool = run_path(str(Path(__file__).resolve().parents[2] / "tools" / "build_site.py"))

LOADING = [
    '<script src="https://cdn.example/x.js"></script>',
    '<img src="//cdn.example/x.png">',
    '<img srcset="a.png 1x, https://cdn.example/x.png 2x">',
    '<link rel="stylesheet" href="http://cdn.example/x.css">',
    '<link rel="preconnect" href="https://cdn.example">',
    '<div style="background: url(https://cdn.example/x.png)"></div>',
    "<style>@import 'https://cdn.example/x.css';</style>",
    '<iframe src="HTTPS://cdn.example"></iframe>',
    '<svg><use href="https://cdn.example/x.svg#a"/></svg>',
    '<pre class="mermaid">graph</pre>',
]
LINKING = [
    '<a href="https://arxiv.org/abs/1906.08935">a paper</a>',
    '<link rel="canonical" href="https://example.org/">',
    '<img src="assets/report.png">',
    "<p>url(https://example.org) is text</p>",
    '<meta name="source" content="https://example.org">',
]


@pytest.mark.parametrize("html", LOADING)
def test_what_a_page_loads_is_named(html: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(html)
    (address,) = tool["remote_resources"](tmp_path)
    assert address.startswith("page.html: ")


@pytest.mark.parametrize("html", LINKING)
def test_links_and_local_files_are_not(html: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(html)
    assert list(tool["remote_resources"](tmp_path)) == []


def test_style_sheets_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "x.css").write_text("@font-face { src: url('https://fonts.example/a.woff2') } a { b: url(c.png) }")
    assert list(tool["remote_resources"](tmp_path)) == ["x.css: https://fonts.example/a.woff2"]


def test_a_folder_that_cannot_be_written_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "site").touch()
    with pytest.raises(SystemExit, match=r"^Cannot write .*site: .* Make it writable, or name another folder\.$"):
        tool["main"](tmp_path / "site")
