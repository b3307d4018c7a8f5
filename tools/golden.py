"""Compares the numbers of the working tree with those of an older commit, to the last bit.

`python tools/golden.py COMMIT` lets `tools/golden_driver.py` make the goldens of both, and prints what differs.
Compared are numbers, states, kinds of doubt and the contents of pictures; neither texts nor times, versions or keys.
What was renamed on purpose stands in `docs/renamed.md`, whose table is applied to the older goldens first.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from golden_compare import Difference, Renamed, compared, joined, renames_in

ROOT = Path(__file__).resolve().parents[1]
DRIVER = ROOT / "tools" / "golden_driver.py"
RENAMED = "docs/renamed.md"
SHOWN = 60
"""Differences that are printed of each piece."""

ASKED = ("table", "command", "command option", "situation", "public name")
"""What the driver asks a tree for, by the names that the tree has."""


@dataclass(frozen=True)
class Maker:
    """Makes goldens of one tree, as many pieces at a time as there are jobs."""

    tree: Path
    kept: Path
    """Where goldens, and folders that were written on the way, go."""
    jobs: int
    label: str

    def make(self, pieces: Mapping[str, Path]) -> dict[str, str]:
        """Write the golden of each piece into its file; return what broke, by piece, with the reason."""
        with ThreadPoolExecutor(self.jobs) as pool:
            done = dict(zip(pieces, pool.map(self._one, pieces, pieces.values()), strict=True))
        return {name: reason for name, reason in done.items() if reason}

    def _one(self, piece: str, file: Path) -> str:
        start = time.perf_counter()
        folder = self.kept / piece.replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        names = json.dumps({row.old: row.new for row in _page(self.tree) if row.what in ASKED})
        line = [sys.executable, "-P", str(DRIVER), "make", piece, str(file), str(folder), names]
        done = subprocess.run(
            line, cwd=self.tree, env=_surroundings(self.tree), capture_output=True, text=True, check=False
        )
        print(f"{self.label}: {piece}, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        return "" if done.returncode == 0 else done.stderr.strip()[-2000:] or f"exit code {done.returncode}"


def _page(tree: Path) -> list[Renamed]:
    page = tree / RENAMED
    return renames_in(page.read_text(encoding="utf-8")) if page.exists() else []


def _surroundings(tree: Path) -> dict[str, str]:
    """Return the environment: one thread, since sums of several threads may differ in the last bit."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**os.environ, **one, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def _checked_out(commit: str) -> Iterator[Path]:
    """Check a commit out into a worktree that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        tree = Path(folder).resolve() / "tree"
        _git("worktree", "add", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _stored(cache: Path, commit: str, pieces: Mapping[str, Sequence[str]]) -> dict[str, Path]:
    """Return the file of each piece: other settings, another torch or other data have another one."""
    folder = cache / commit
    folder.mkdir(parents=True, exist_ok=True)
    beside = (importlib.metadata.version("torch"), os.environ.get("FEDGLASS_SHARED", ""))
    marks = {
        name: hashlib.sha256(json.dumps([asked, beside]).encode()).hexdigest()[:12] for name, asked in pieces.items()
    }
    return {name: folder / f"{name.replace(' ', '-')}-{mark}.json" for name, mark in marks.items()}


def _read(files: Mapping[str, Path]) -> dict[str, Any]:
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()}


def _pieces(options: argparse.Namespace) -> dict[str, list[str]]:
    line = [sys.executable, "-P", str(DRIVER), "list", *(["--all"] if options.all else [])]
    pieces: dict[str, list[str]] = json.loads(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
    return {name: asked for name, asked in pieces.items() if fnmatch(name, options.only)}


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="that the working tree is compared with")
    parser.add_argument("--all", action="store_true", help="every row of the verdicts, every table; takes an hour")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="pieces by name, such as 'reproduce sme-*'")
    parser.add_argument("--prepare", action="store_true", help="make and store the goldens of the commit alone")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "fedglass-goldens")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep goldens and output folders of this run there")
    parser.add_argument("--jobs", type=int, default=2, help="pieces at a time (default: 2)")
    return parser.parse_args(words)


def _prepared(commit: str, files: Mapping[str, Path], kept: Path, jobs: int) -> dict[str, str]:
    """Make what is not stored of the commit yet; return what broke."""
    missing = {name: file for name, file in files.items() if not file.exists()}
    if not missing:
        return {}
    with _checked_out(commit) as tree:
        return Maker(tree, kept / "old", jobs, commit[:9]).make(missing)


def _told(found: Mapping[str, Sequence[Difference]], broken: Mapping[str, str], total: int) -> int:
    for name, reason in broken.items():
        print(f"{name}: broken in the working tree\n  {reason}")
    for name, each in found.items():
        print(f"{name}: {len(each)} difference(s), old -> new")
        print(*(f"  {one}" for one in each[:SHOWN]), sep="\n")
    if not found and not broken:
        print(f"Equal: {total} pieces.")
        return 0
    print(f"Not equal: {len(found) + len(broken)} of {total} pieces.")
    return 1


def main(words: Sequence[str] | None = None) -> int:
    """Compare; 0 where all is equal, 1 where something differs, 2 where the commit's goldens can not be made."""
    options = _options(words)
    commit, pieces = _git("rev-parse", f"{options.commit}^{{commit}}"), _pieces(options)
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        kept = (options.keep or Path(folder)).resolve()
        if (kept / "new").exists():
            raise SystemExit(f"{kept} has the folders of another comparison: give --keep a new one.")
        files = _stored(options.cache.resolve(), commit, pieces)
        if failed := _prepared(commit, files, kept, options.jobs):
            print(*(f"{name}: broken in {commit[:9]}\n  {reason}" for name, reason in failed.items()), sep="\n")
            return 2
        if options.prepare:
            print(f"Stored: {len(files)} pieces of {commit[:9]}.")
            return 0
        made = {name: kept / f"new-{file.name}" for name, file in files.items()}
        broken = Maker(ROOT, kept / "new", options.jobs, "working tree").make(made)
        sound = [name for name in files if name not in broken]
        told = renames_in(_shown(commit))
        rows = [row for row in _page(ROOT) if row not in told]
        old, new = (_read({name: each[name] for name in sound}) for each in (files, made))
        return _told(compared(joined(old), joined(new), rows), broken, len(pieces))


def _shown(commit: str) -> str:
    """Return the page of names as the commit has it."""
    return _git("show", f"{commit}:{RENAMED}") if _git("ls-tree", commit, RENAMED) else ""


if __name__ == "__main__":
    raise SystemExit(main())
