"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Small tensors run faster, and bit-identically, on one thread."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data and weights; tests that need it skip where it is absent."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    path = Path(os.environ.get("FEDGLASS_SHARED", beside))
    if not path.is_dir():
        pytest.skip("no shared data: set FEDGLASS_SHARED to a folder that holds it")
    return path
