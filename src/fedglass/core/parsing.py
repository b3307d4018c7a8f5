"""Parsers of JSON and TOML for files of others: what is too large, too deep or no number is a ValueError.

Python's own parsers take up to thirty times the length of a text as memory, and some take time that grows with the
square of it. Here a text is refused before that happens.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from typing import Any, NoReturn

MOST_VALUES = 2**25
"""Numbers and texts in a JSON text: a gibibyte in memory."""
MOST_CONTAINERS = 2**22
"""Lists, tables and keys in it: as much again."""
MOST_KEY_PARTS = 100
"""Parts of a dotted TOML key; the time that tomllib takes grows with their square."""
WIDEST = 2**63
"""TOML's own range of integers. Python refuses to print those with more than 4,300 digits, also in a message."""
_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MOST_KEY_PARTS}}}")


def parse_json(text: bytes) -> Any:
    """Return the content of a JSON text; every text that cannot be read is a ValueError.

    >>> parse_json(b'{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> parse_json(b"[NaN]")
    Traceback (most recent call last):
    ValueError: NaN is not a number in JSON
    """
    values, containers = text.count(b","), sum(map(text.count, (b"[", b"{", b":")))
    if values > MOST_VALUES or containers > MOST_CONTAINERS:
        raise ValueError(
            f"it has more than {MOST_VALUES if values > MOST_VALUES else MOST_CONTAINERS:,} "
            f"{'values' if values > MOST_VALUES else 'lists, tables and keys'}"
        )
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number in JSON")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML text; every text that cannot be read is a ValueError.

    >>> parse_toml("a.b = 1")
    {'a': {'b': 1}}
    >>> parse_toml("a = 0x" + 5000 * "f")
    Traceback (most recent call last):
    ValueError: it holds an integer of more than 64 bits
    """
    if _LONG_KEY.search(text):
        raise ValueError(f"it has a key of more than {MOST_KEY_PARTS} parts")
    try:
        content = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    level: list[Any] = [content]
    while level:
        if any(type(value) is int and not -WIDEST <= value < WIDEST for value in level):
            raise ValueError("it holds an integer of more than 64 bits")
        level = [entry for value in level for entry in _entries(value)]
    return content


def _entries(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
