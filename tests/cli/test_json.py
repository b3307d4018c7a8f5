"""`--json` puts one object on stdout and nothing else; `-q` leaves the exit code and errors."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from fedglass.cli import plans as template
from fedglass.cli.plans import NAMED

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "json.md"
Run = Callable[..., Result]
Write = Callable[..., Path]
Changes = tuple[tuple[str, str], ...]
TRAINING = ("--model", "lenet", "--data", "photos", "--size", "16", "--device", "cpu", "--batch", "8", "--every", "1")
COMPARED = "dlfa-table5"
"""A table of architectures, which needs no run."""


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "tools" / "make_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def structure(value: Any) -> Any:
    """Keys and types, without what differs between two runs."""
    if isinstance(value, dict):
        return {key: structure(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return sorted({json.dumps(structure(inner)) for inner in value})
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def test_the_page_shows_what_the_commands_print() -> None:
    """`python tools/make_docs.py` writes the examples anew."""
    text = PAGE.read_text(encoding="utf-8")
    make_docs = tool()
    printed = make_docs.answers(text)
    shown = {match["command"]: match["answer"] for match in make_docs.EXAMPLE.finditer(text)}
    assert len(shown) >= 6
    for command, answer in printed.items():
        assert structure(json.loads(answer)) == structure(json.loads(shown[command])), command


def test_the_keys_of_a_summary_are_explained() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## `summary.json`")[2]
    words, _, example = text.partition("```sh")
    for key in json.loads(example.partition("```json\n")[2].partition("```")[0]):
        assert key == "schema_version" or f"`{key}`" in words, key


@pytest.fixture
def commands(write_plan: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Every command that prints, in an order in which all succeed."""
    plan = write_plan()
    monkeypatch.setattr(template, "DEMO", plan.read_text())
    monkeypatch.setattr(template, "PEER_DEMO", plan.read_text())
    workers = ("--workers", 1)
    private = tmp_path / "private.toml"
    private.write_text(plan.read_text() + '[[defences]]\nname = "dpsgd"\nclip = 1.0\nnoise_multiplier = 1.0\n')
    return [
        ("init", tmp_path / "new.toml"),
        ("check", plan),
        ("audit", plan, "-o", tmp_path / "out", *workers),
        ("epsilon", private, "--canaries", 50),
        ("demo", "-o", tmp_path / "demo", *workers),
        ("report", tmp_path / "out", "--junit", tmp_path / "j.xml", "--sarif", tmp_path / "s.sarif"),
        ("list", "attacks"),
        ("train", *TRAINING, "--at", "0.1", "-o", tmp_path / "stages"),
        ("train", "diffusion", "glyphs", "--steps", 1, "--batch", 2, "-o", tmp_path / "model"),
        ("reproduce", "list"),
        ("reproduce", "list", "dlfa-table1"),
        ("reproduce", COMPARED),
        ("reproduce", "dlfa-table1", "--rows", 1, "--clients", 1, "--dry-run", "-o", tmp_path / "again"),
    ]


def test_json_is_all_that_is_on_stdout(commands: list[tuple[object, ...]], fedglass: Run) -> None:
    for arguments in commands:
        told = json.loads(fedglass(*arguments, "--json").stdout)
        assert (told["schema_version"], told["fedglass"]) == (1, "0.1.0")


def test_quiet_is_silent(commands: list[tuple[object, ...]], fedglass: Run) -> None:
    for arguments in commands:
        done = fedglass(*arguments, "-q")
        assert done.stderr == ""
        if "list" not in arguments:
            assert done.stdout == "", arguments


def test_quiet_and_json_go_together(fedglass: Run, write_plan: Write, tmp_path: Path) -> None:
    done = fedglass("audit", write_plan(), "-o", tmp_path / "out", "--workers", 1, "--json", "--quiet")
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["exit_code"] == done.exit_code
    assert all(Path(path).exists() for path in told["paths"].values())


def test_the_verdict_is_that_of_the_words(fedglass: Run, write_plan: Write, leaking: Changes, tmp_path: Path) -> None:
    arguments = ("audit", write_plan(*leaking), "-o", tmp_path / "out", "--workers", 1)
    words = fedglass(*arguments)
    told = json.loads(fedglass(*arguments, "--json").stdout)
    assert told["sentence"] in " ".join(words.stdout.split())
    assert (told["state"], told["exit_code"], words.exit_code) == ("leak", 1, 1)
    assert ("inverting_gradients", 2, 2) in [(a["attack"], a["recovered"], a["images"]) for a in told["attacks"]]
    again = json.loads(fedglass("report", tmp_path / "out", "--json").stdout)
    shared = set(told) - {"device", "paths"}
    assert {key: again[key] for key in shared} == {key: told[key] for key in shared}


def test_a_training_tells_what_was_reached_and_what_was_not(fedglass: Run, tmp_path: Path) -> None:
    done = fedglass("train", *TRAINING, "--at", "0.1,99", "--epochs", 30, "--lr", 0.01, "-o", tmp_path, "--json", "-q")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["exit_code"], told["missed"]) == (3, 3, [99.0])
    (reached,) = told["reached"]
    assert (reached["target"], Path(reached["path"]).exists()) == (0.1, True)
    assert Path(told["best"]["path"]).exists()
    assert done.stderr.startswith("fedglass: 99 % not reached")
    assert len(done.stderr.splitlines()) == 1


def test_errors_leave_stdout_empty(fedglass: Run, tmp_path: Path) -> None:
    for arguments in (("audit", tmp_path / "none.toml"), ("check", tmp_path / "none.toml"), ("report", tmp_path)):
        for option in ("--json", "-q"):
            refused = fedglass(*arguments, option)
            assert (refused.exit_code, refused.stdout) == (2, "")
            assert len(refused.stderr.splitlines()) == 1


def test_a_quiet_list_is_one_of_names(fedglass: Run) -> None:
    names = fedglass("list", "attacks", "-q").stdout.split()
    told = json.loads(fedglass("list", "attacks", "--json").stdout)["attacks"]
    assert names == [entry["name"] for entry in told]
    assert "idlg" in names
    assert {"summary", "options", "paper", "from"} <= set(told[0])
    assert set(NAMED) < set(json.loads(fedglass("list", "--json").stdout))
