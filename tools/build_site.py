"""Build the documentation of mkdocs.yml with mkdocs, and refuse a site that loads anything from the network.

`make docs` runs it in `.venv-docs`; `python tools/build_site.py FOLDER` writes to another folder than `site`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REMOTE = re.compile(r"\s*(?:https?:)?//", re.IGNORECASE)
REMOTE_CSS = re.compile(r"(?:url\(|@import)\s*[\"']?\s*((?:https?:)?//[^\"')\s;]+)", re.IGNORECASE)
LOADED = ("src", "srcset", "poster", "data", "background")
"""Attributes that name a resource, of any element."""
NOT_LOADED = {"canonical", "next", "prev", "alternate", "author", "license"}
"""Relations of a `<link>` that a browser does not load."""


class _Resources(HTMLParser):
    """The addresses that a page loads when it is viewed."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attributes if value}
        self._in_style = tag == "style"
        self.addresses += [values[name] for name in LOADED if name in values]
        self.addresses += REMOTE_CSS.findall(values.get("style", ""))
        relations = set(values.get("rel", "").lower().split())
        if (tag == "link" and relations - NOT_LOADED) or tag in ("use", "image"):
            self.addresses += [values[name] for name in ("href", "xlink:href") if name in values]
        if "mermaid" in values.get("class", "").split():
            self.addresses.append("https://unpkg.com/mermaid")  # the theme's script loads it for such an element

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.addresses += REMOTE_CSS.findall(data)


def remote_resources(site: Path) -> Iterator[str]:
    """Yield `file: address` for everything that a page or a style sheet of the site loads from another host."""
    for path in sorted(site.rglob("*.html")):
        page = _Resources()
        page.feed(path.read_text(encoding="utf-8"))
        yield from (f"{path.relative_to(site)}: {a}" for a in page.addresses if any(map(REMOTE.match, a.split(","))))
    for path in sorted([*site.rglob("*.css"), *site.rglob("*.svg")]):
        text = path.read_text(encoding="utf-8")
        yield from (f"{path.relative_to(site)}: {address}" for address in REMOTE_CSS.findall(text))


def check_writable(site: Path) -> None:
    """Refuse a folder that cannot be written, in a sentence."""
    try:
        site.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=site):
            pass
    except OSError as error:
        raise SystemExit(f"Cannot write {site}: {error.strerror}. Make it writable, or name another folder.") from None


def main(site: Path) -> None:
    """Build the site in that folder."""
    check_writable(site)
    # Strict: a broken link, a missing anchor and a page outside of the navigation are errors.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    if subprocess.run(command, cwd=ROOT, env=quiet, check=False).returncode:
        raise SystemExit("The documentation was not built: mend what mkdocs names above.")
    remote = list(remote_resources(site))
    if remote:
        raise SystemExit("\n".join(["These pages load from the network; put the files into docs/ instead:", *remote]))
    sys.stdout.write(f"Wrote {site / 'index.html'}. With search: python3 -m http.server --directory {site}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site").absolute())
