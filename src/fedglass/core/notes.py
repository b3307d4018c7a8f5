"""What an attack notes for the audit, which must know of it."""

from __future__ import annotations

TAKEN_AS_DISTINCT = "labels taken as distinct"
"""The message did not tell whether any label occurs twice, so that none was taken to."""
