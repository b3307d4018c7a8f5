"""Makes the goldens of one source tree, piece by piece: what a version computes, as JSON.

`tools/golden.py` runs this file with the tree's `src` first in PYTHONPATH and the tree as working directory, also for
trees that are older or newer than the file. So it relies on what outlives moved modules: the command line, output
folders, public names, and the tree's own `tools/verdicts.py` and `examples/`. Where even these were renamed, the tree's
`docs/renamed.md` says how.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROWS = (
    "recorded: plain SGD, declared so",
    "recorded: Adam, declared as SGD",
    "recorded: BatchNorm in train mode, declared so",
    "recorded: heavy noise, said to be defended",
    "recorded: clipped and noised, declared",
    "recorded: heavy noise declared, none there",
    "no truth: statistics moved, declared frozen",
    "saved and loaded: aggregate of two",
    "heavy Laplacian noise",
    "DP-SGD",
    "model that sees means alone",
    "aggregate with a poisoner's flipped sign",
    "a peer of one other, heavy noise",
    "a peer that sends poison",
    "heavy noise in four rounds, attacked together",
    "batch statistics, by coarse_to_fine_batchnorm",
    "a server with Krum",
    "saved: noise of rank 8, declared as Gaussian",
    "undefended, a dense network",
    "forty-eight characters, one step",
)
"""Of the table of verdicts, in the small set."""
PARTS = 8
"""In which the whole table of verdicts is made, so that little is lost where it is broken off."""

FIRST, PHOTOS = ("--rows", "1"), ("--rows", "1", "--size", "32")
FEW = ("--rows", "1", "--images", "8", "--rounds", "2")
CIFAR = ("--rows", "dataset=CIFAR-10")
TABLES: dict[str, tuple[str, ...]] = {
    "c2f-table1": (*CIFAR, "--methods", "ours,fedleak,agic"),
    "c2f-table3": CIFAR,
    "c2f-figure3": FIRST,
    "c2f-figure13": FIRST,
    "c2f-figure14": FIRST,
    "c2f-figure15": FIRST,
    "c2f-figure16": FIRST,
    **dict.fromkeys([f"curious-figure{number}" for number in (5, 6, 11, 12, 13, 14)], PHOTOS),
    "curious-release": (*PHOTOS, "--images", "4"),
    "curious-search": PHOTOS,
    "dlfa-table1": FIRST,
    "dlfa-table2": FIRST,
    "dlfa-table3": (*FIRST, "--methods", "prior"),
    "dlfa-table4": (*FIRST, "--methods", "femnist"),
    "dlfa-table5": (),
    "dlfa-table6": ("--rows", "2", "--methods", "fedsgd"),
    "dlfa-table7": (*FIRST, "--methods", "shared"),
    "dlfa-table8": (*FIRST, "--methods", "fedsgd-epoch"),
    "dlfa-table9": (*FIRST, "--methods", "prior"),
    "dlfa-table10": ("--rows", "2", "--methods", "fedsgd"),
    **dict.fromkeys([f"malicious-table{number}" for number in (1, 2, 3, 4)], FEW),
    "malicious-table5": FIRST,
    **dict.fromkeys([f"malicious-figure{number}" for number in (2, 3, 4, 5)], FIRST),
    "malicious-figure6": (*FIRST, "--images", "4"),
    "malicious-budgets": (),
    "malicious-rounds": FIRST,
    "malicious-theorem1": FIRST,
    **dict.fromkeys([f"sme-table{number}" for number in (1, 2, 4, 5, 6, 7)], FIRST),
    "sme-figure6": (*FIRST, "--methods", "sme"),
}
"""Published tables and figures of the small set, with what makes them small beside `SMALL`."""
LARGE: dict[str, tuple[str, ...]] = {
    "c2f-table2": (*CIFAR, "--methods", "ours"),
    "dlfa-table11": FIRST,
    "sme-table3": FIRST,
    "c2f-table5": (*FIRST, "--size", "96", "--methods", "ours"),
    "c2f-table6": (*FIRST, "--size", "96", "--methods", "ours"),
    "c2f-figure9": FIRST,
    "c2f-figure11": FIRST,
    **dict.fromkeys([f"dlfa-figure{number}" for number in range(2, 12)], FIRST),
    **dict.fromkeys([f"sme-figure{number}" for number in (3, 4, 5, *range(7, 15))], FIRST),
    "c2f-table1 in full": FIRST,
    "c2f-table3 in full": FIRST,
    **dict.fromkeys([f"dlfa-table{number} in full" for number in (3, 4, 6, 7, 8, 9, 10)], FIRST),
    "sme-figure6 in full": FIRST,
}
"""Those that take longer, or show the runs of another table once more. Figures 7 and 15 of the curious client need
weights, and its first lemma more data than are embedded."""
SMALL = ("--clients", "1", "--iterations", "2", "--workers", "1", "--json")
PICTURES = ("original", "reconstruction", "raw", "film")
"""Fields of records and summaries that name the file of a picture."""
DIGESTS = "picture_files"
"""Field of records with the hashes of pictures, by their paths."""
TOLD = (0, 1, 3)
"""Exit codes of commands that came to an end."""


@dataclass(frozen=True)
class Piece:
    """What is made in one process."""

    name: str
    make: Callable[[Tree], Any]
    asked: tuple[str, ...] = ()
    """What it is made with: a stored golden of other settings is not used."""


@dataclass(frozen=True)
class Tree:
    """A source tree, its own names for what was renamed, and a folder for what it writes."""

    root: Path
    names: Mapping[str, str]
    folder: Path

    def command(self, *words: str, where: Path | None = None) -> tuple[int, Any]:
        """Run a fedglass command with `--json`; return its exit code and its answer, without which it broke off."""
        line = [sys.executable, "-P", "-m", "fedglass", *(self.names.get(word, word) for word in words)]
        done = subprocess.run(line, cwd=where or self.root, capture_output=True, text=True, check=False)
        if done.returncode not in TOLD or not done.stdout.startswith("{"):
            raise SystemExit(f"{' '.join(words)}: {done.stderr[-1500:]}")
        return done.returncode, json.loads(done.stdout)

    def public(self, name: str) -> Any:
        """Import a public name such as `fedglass.guard.Guard`."""
        module, _, attribute = self.names.get(name, name).rpartition(".")
        return getattr(importlib.import_module(module), attribute)

    def example(self, name: str, script: str) -> Path:
        """Run the script of an example in a copy of it; return the copy."""
        copy = self.folder / name
        shutil.copytree(self.root / "examples" / name, copy)
        subprocess.run([sys.executable, script], cwd=copy, check=True)
        return copy


def written(folder: Path) -> dict[str, Any]:
    """Read an output folder: its records, its summary and its pictures, each picture as a hash of its contents."""
    records, summary = folder / "records.jsonl", folder / "summary.json"
    lines = records.read_text(encoding="utf-8").splitlines() if records.exists() else []
    return {
        "records": [with_hashes(json.loads(line), folder) for line in lines],
        "summary": with_hashes(json.loads(summary.read_text(encoding="utf-8")), folder) if summary.exists() else None,
        "pictures": sorted(digest(path) for path in (folder / "pictures").rglob("*") if path.is_file()),
    }


def with_hashes(value: Any, folder: Path, field: str = "") -> Any:
    """Put the hash of a picture in place of its path, whose name comes from the key of a case."""
    if field == DIGESTS:
        return sorted(value.values())
    if isinstance(value, dict):
        return {name: with_hashes(each, folder, name) for name, each in value.items()}
    if isinstance(value, list):
        return [with_hashes(each, folder, field) for each in value]
    is_file = field in PICTURES and isinstance(value, str) and (folder / value).is_file()
    return digest(folder / value) if is_file else value


def digest(path: Path) -> str:
    """Hash the contents of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def demo(tree: Tree) -> Any:
    """Run the demo, which writes two folders."""
    code, answer = tree.command("demo", "-o", str(tree.folder / "demo"), "--workers", "1", "--json")
    folders = {"server": tree.folder / "demo", "peer": tree.folder / "demo" / "peer"}
    return {"exit_code": code, "answer": answer, "folders": {name: written(path) for name, path in folders.items()}}


def reproduced(name: str, options: Sequence[str]) -> Callable[[Tree], Any]:
    """Return what makes a small part of a published table."""

    def make(tree: Tree) -> Any:
        folder = tree.folder / "table"
        code, answer = tree.command("reproduce", name.split()[0], *SMALL, *options, "-o", str(folder))
        return {"exit_code": code, "answer": answer, "folders": {"table": written(folder)}}

    return make


def recorded(tree: Tree) -> Any:
    """Record a federation of plain PyTorch, look at the bundle and audit it."""
    here = tree.example("pytorch", "federation.py")
    _, told = tree.command("record-info", "bundle", "--json", where=here)
    audit = ("audit", "bundle", "-o", "out", "--model", "network:Net", "--code", ".", "--workers", "1", "--json")
    code, answer = tree.command(*audit, where=here)
    return {"exit_code": code, "bundle": told, "answer": answer, "folders": {"audit": written(here / "out")}}


def planned(tree: Tree) -> Any:
    """Audit one recorded message by a plan."""
    here = tree.example("recording", "record.py")
    line = ("audit", "plan.toml", "--code", ".", "-o", "out", "--workers", "1", "--json")
    code, answer = tree.command(*line, where=here)
    return {"exit_code": code, "answer": answer, "folders": {"audit": written(here / "out")}}


def verdicts(wanted: Callable[[str], bool], old_names: Sequence[str] = ()) -> Callable[[Tree], Any]:
    """Return what audits the wanted rows of the table of verdicts; `old_names` must all be there."""

    def make(tree: Tree) -> Any:
        table = loaded(tree.root / "tools" / "verdicts.py")
        chosen = {tree.names.get(name, name) for name in old_names}
        rows = [row for row in table.SITUATIONS if row.name in chosen or wanted(row.name)]
        if lacking := chosen - {row.name for row in rows}:
            raise SystemExit(f"The table of verdicts has no row {sorted(lacking)}: name it in docs/renamed.md")
        return {"situations": {row.name: said(*table.audited(row)) for row in rows}}

    return make


def said(records: Sequence[Any], verdict: Any) -> dict[str, Any]:
    """Return records and verdict as plain values; the pictures of these audits are gone."""
    plain = [with_hashes(record.model_dump(mode="json", exclude={"pictures"}), Path()) for record in records]
    return {"records": plain, "verdict": dataclasses.asdict(verdict)}


def loaded(path: Path) -> Any:
    """Import a script by its path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def guarded(tree: Tree) -> Any:
    """Let a guard check updates that it refuses for different reasons, and one that it may let out."""
    import torch

    build, load = tree.public("fedglass.build"), tree.public("fedglass.load")
    guard, training = tree.public("fedglass.guard.Guard"), tree.public("fedglass.Training")(lr=0.1)
    photos = load("photos", size=16)
    torch.manual_seed(0)
    model = build("lenet_tanh", shape=(3, 16, 16), classes=10)
    before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    noise = torch.Generator().manual_seed(1)

    def step(count: int) -> dict[str, Any]:
        model.load_state_dict(before)
        loss = torch.nn.functional.cross_entropy(model(photos.images[:count]), photos.labels[:count])
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        return {name: -0.1 * slope for (name, _), slope in zip(model.named_parameters(), slopes, strict=True)}

    def clipped(update: dict[str, Any]) -> dict[str, Any]:
        norm = torch.cat([tensor.flatten() for tensor in update.values()]).norm()
        return {name: tensor * min(1.0, 1.0 / norm) for name, tensor in update.items()}

    def noisy(update: dict[str, Any], std: float) -> dict[str, Any]:
        return {name: tensor + std * torch.randn(tensor.shape, generator=noise) for name, tensor in update.items()}

    cases = {
        "undefended": (4, step(4), {}),
        "undefended, decided by the attack": (2, step(2), {"false_alarms": 0.0}),
        "one example": (1, step(1), {}),
        "not finite": (4, {name: tensor / 0 for name, tensor in step(4).items()}, {}),
        "other training": (4, {name: 3 * tensor for name, tensor in step(4).items()}, {}),
        "clipped and noised": (4, noisy(clipped(step(4)), 10.0), {"clip": 1.0, "noise_multiplier": 10.0}),
        "noise missing": (4, clipped(step(4)), {"clip": 1.0, "noise_multiplier": 10.0}),
        "too long": (4, step(4), {"clip": 1e-3}),
    }
    reports = {}
    for name, (count, update, options) in cases.items():
        # One start and a time that never runs out: how many starts fit into a budget depends on the machine.
        watchman = guard(policy="block", budget_seconds=3600.0, starts=1, **options)
        own = {"examples": photos.images[:count], "labels": photos.labels[:count], "training": training}
        reports[name] = watchman.check(model, before, update=update, **own).as_json()
    return {"reports": reports}


def pieces(everything: bool) -> list[Piece]:
    """List what is made, the longest first."""
    found = [Piece("demo", demo), Piece("recorded bundle", recorded), Piece("recorded message", planned)]
    if everything:
        for part in range(PARTS):
            found.append(Piece(f"verdicts {part + 1} of {PARTS}", verdicts(_in_part(part))))
    else:
        halves = ROWS[::2], ROWS[1::2]
        found += [
            Piece(f"verdicts, {name} rows", verdicts(lambda _: False, rows), rows)
            for name, rows in zip(("odd", "even"), halves, strict=True)
        ]
    found.append(Piece("guard", guarded))
    tables = {**TABLES, **LARGE} if everything else TABLES
    return found + [Piece(f"reproduce {name}", reproduced(name, also), also) for name, also in tables.items()]


def _in_part(part: int) -> Callable[[str], bool]:
    return lambda name: zlib.crc32(name.encode()) % PARTS == part


def main(words: Sequence[str]) -> int:
    """List the pieces with their settings (`list [--all]`), or make one (`make NAME FILE FOLDER NAMES`)."""
    if words[0] == "list":
        print(json.dumps({piece.name: [*SMALL, *piece.asked] for piece in pieces("--all" in words)}))
        return 0
    _, name, file, folder, names = words
    found = {piece.name: piece for piece in [*pieces(False), *pieces(True)]}[name]
    tree = Tree(Path.cwd(), json.loads(names), Path(folder))
    package = importlib.util.find_spec("fedglass")
    if package is None or package.origin is None or not Path(package.origin).is_relative_to(tree.root):
        raise SystemExit(f"fedglass was not found in {tree.root}")
    golden = json.dumps(found.make(tree))
    part = Path(f"{file}.part")
    part.write_text(golden, encoding="utf-8")
    os.replace(part, file)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
