"""Names under which an attack or an audit notes something that a report looks for."""

from __future__ import annotations

TAKEN_AS_DISTINCT = "labels taken as distinct"
"""The message did not tell whether any label occurs twice, so that none was taken to."""
AFTER_ROUND = "test accuracy after the audited round"
"""Of the model that the federation had then, where several rounds are audited."""
