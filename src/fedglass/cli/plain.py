"""Text from files on its way to a terminal."""

from __future__ import annotations


def plain(text: str) -> str:
    """The text on one line, without characters that would command the terminal.

    >>> plain("a\\nb \\x1b[31mred")
    'a b ?[31mred'
    """
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)
