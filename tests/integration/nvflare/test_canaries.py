"""NVFlare has no place for canaries before clipping and noise."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedglass.core.errors import UsageError
from fedglass.recorders.nvflare import record_clients


def test_canaries_are_refused_before_the_recipe_is_touched(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be inserted in NVFlare"):
        record_clients(object(), tmp_path, canaries=5)
