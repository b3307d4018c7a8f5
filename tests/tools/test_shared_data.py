"""The measuring tools take the folder of the data, or the one that holds it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "shared_data.py"


def test_the_folder_or_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data_folder = runpy.run_path(str(TOOL))["data_folder"]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mnist_10k.npz").touch()
    monkeypatch.setenv("FEDGLASS_SHARED", str(tmp_path))
    assert data_folder() == data_folder(str(tmp_path / "data")) == tmp_path / "data"
    with pytest.raises(SystemExit, match="does not hold mnist_10k"):
        data_folder(str(tmp_path / "nowhere"))
