"""Citations in docstrings: brackets that hold a year."""

from __future__ import annotations

import inspect
import re

_CITATION = re.compile(r"\[([^\]]*\b(?:19|20)\d\d\b[^\]]*)\]")


def cited(words: str) -> tuple[str, ...]:
    """The citations of a text, each once.

    >>> cited("The cosine distance [Geiping et al., 2020, Eq. 4] of [n] numbers.")
    ('Geiping et al., 2020, Eq. 4',)
    """
    return tuple(dict.fromkeys(" ".join(each.split()) for each in _CITATION.findall(words)))


def uncited(words: str) -> str:
    """The text on one line, without its citations.

    >>> uncited("The cosine distance [Geiping et al., 2020, Eq. 4].")
    'The cosine distance.'
    """
    return _CITATION.sub("", " ".join(words.split())).replace(" .", ".").replace(" :", ":").strip()


def docstring(part: object) -> str:
    """What a function or a class says of itself; nothing for any other value, whose docstring is its class's."""
    if not (inspect.isroutine(part) or inspect.isclass(part)):
        return ""
    return inspect.getdoc(part) or ""
