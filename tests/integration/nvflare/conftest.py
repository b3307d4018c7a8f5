"""Tests inside of NVFlare, skipped where it is not installed."""

from __future__ import annotations

import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install nvflare")
