"""Tests inside of Flower, skipped where it is not installed."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install flwr")
