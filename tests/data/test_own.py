"""A user's own reader of data, beside the formats that are built in."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedglass.core.errors import DataError, UsageError
from fedglass.data.catalogue import is_embedded, load, located

CODE = """
from fedglass.data.catalogue import glyphs

def small():
    return glyphs(writers=1, per_writer=3)

def read(path, split="train"):
    assert path.read_text() == "data"
    return glyphs(writers=1, per_writer=2 if split == "test" else 1)

def text():
    return "not a dataset"

number = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "readers_for_tests.py").write_text(CODE)
    (tmp_path / "faces.db").write_text("data")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return "readers_for_tests"


def test_a_reader_is_named_with_its_module(mine: str) -> None:
    assert len(load(f"{mine}:small")) == 3
    assert load(f"{mine}:small", size=8).shape == (1, 8, 8)
    assert len(load(f"{mine}:read:faces.db", split="test")) == 2


def test_paths_are_taken_from_the_plan(mine: str) -> None:
    plans = Path("/plans")
    assert located(f"{mine}:read:faces.db", plans) == f"{mine}:read:/plans/faces.db"
    assert located(f"{mine}:small", plans) == f"{mine}:small"
    assert located("npz:faces.npz", plans) == "npz:/plans/faces.npz"
    assert located("faces.db", Path.cwd()) == str(Path.cwd() / "faces.db")
    assert (is_embedded("glyphs"), is_embedded("npz"), is_embedded(f"{mine}:small")) == (True, False, False)


def test_a_format_wins_over_a_module_of_that_name(mine: str, tmp_path: Path) -> None:
    (tmp_path / "npz.py").write_text("def faces(): ...\n")
    with pytest.raises(DataError, match="npz: no such file or folder: 'faces'"):
        load("npz:faces")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("npx:faces.npz", "Unknown dataset format 'npx': did you mean 'npz'"),
        ("json:faces.json", "Unknown dataset format 'json'.* Nor is it a reader of yours: The module 'json' has no"),
        ("no_such_package.x:read", "does not import: ModuleNotFoundError"),
        ("readers_for_tests:smal", "has no 'smal', .* did you mean 'small'"),
        ("readers_for_tests:number", "is int, expected a function that returns"),
        ("readers_for_tests:text", "returned str, expected a fedglass.data.dataset.Dataset"),
        ("readers_for_tests:read", "no such file or folder: ''"),
        ("readers_for_tests:read:gone.db", "no such file or folder: 'gone.db'"),
        ("npz", "is a format: write the path of your file behind it, npz:PATH"),
    ],
)
def test_what_is_wrong_is_said(mine: str, source: str, said: str) -> None:
    with pytest.raises(DataError, match=said) if "npx" not in source else pytest.raises(UsageError, match=said):
        load(source)


def test_a_reader_without_a_split_has_none(mine: str) -> None:
    with pytest.raises(UsageError, match="has no test split"):
        load(f"{mine}:small", split="test")
