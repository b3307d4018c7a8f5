"""Scripts of jobs are no tests."""

from __future__ import annotations

collect_ignore = ["job"]
