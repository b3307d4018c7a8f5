"""Sentences that a transcript holds about defences."""

from __future__ import annotations


def defence_text(defence: object) -> str:
    """Return the sentence of `Terms.defences` about one defence."""
    return f"Defended by {defence}."


def defence_name(text: str) -> str:
    """Return the defence of such a sentence, for saved transcripts, which hold nothing else of it.

    >>> defence_name(defence_text("Clip(norm=1.0)"))
    'Clip(norm=1.0)'
    """
    prefix, suffix = defence_text("\0").split("\0")
    return text.removeprefix(prefix).removesuffix(suffix)
