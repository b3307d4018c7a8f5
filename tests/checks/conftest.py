"""Records and candidates for tests of the candidate game."""

from __future__ import annotations

import pytest

from fedglass.federation.truth import Examples

from .games import pool_of, toy


@pytest.fixture(scope="module")
def public() -> Examples:
    return pool_of(1600)


@pytest.fixture(scope="module")
def records() -> Examples:
    return toy(16, seed=2)
