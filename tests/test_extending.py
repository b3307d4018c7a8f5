"""The examples of docs/extending.md are run as they stand, as one module; its links and paths lead somewhere."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from fedglass.core import registry

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the examples register is unknown to the tests that follow."""
    for kind in registry.KINDS:
        registry.built_in(kind)  # found now: a module registers its parts only once
    monkeypatch.setattr(registry, "_REGISTERED", {kind: dict(known) for kind, known in registry._REGISTERED.items()})


@pytest.mark.usefixtures("forgetful")
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "extending_examples.py").write_text("\n".join(BLOCKS), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "extending_examples", raising=False)
    module = importlib.import_module("extending_examples")
    assert module.record.metrics["worst_pixel"]


def test_every_role_has_an_example_of_a_few_lines() -> None:
    assert len(BLOCKS) == 17
    assert max(len(block.splitlines()) for block in BLOCKS[1:]) <= 30


@pytest.mark.parametrize(
    "place",
    sorted(
        set(
            re.findall(r"`((?:attack|recipes|defend|fl|federation|metrics|data|models|audit|execution)/[\w/]*/?)", PAGE)
        )
    ),
)
def test_the_paths_of_the_table_are_there(place: str) -> None:
    folder = place.rpartition("/")[0]
    assert (ROOT / "src" / "fedglass" / folder).is_dir() or (ROOT / "tests" / folder).is_dir()
