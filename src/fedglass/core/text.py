"""Names that attacks and audits store for a report, and texts that several packages share."""

from __future__ import annotations

import inspect
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from itertools import groupby
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


# Things that happened in the run of an attack: records store them, and a report explains them.

NON_FINITE = "non-finite"
TAKEN_AS_DISTINCT = "labels taken as distinct"
"""The message did not tell whether any label occurs twice, so that none was taken to."""

TEST_ACCURACY = "test accuracy"
"""Of the model at the end of a federation, with its defences."""
AFTER_ROUND = "test accuracy after the audited round"
"""Of the model that the federation had then, where several rounds are audited."""


EPSILON_MEANING = (
    "Epsilon bounds what one record changes: the odds of any conclusion grow by a factor of e^epsilon at most, except "
    "with probability delta."
)

# Lists in sentences.


def some(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are.

    >>> some(["a", "b"]), some(["a", "b", "c"], most=2)
    ('a, b', 'a, b and 1 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def count(number: int, noun: str) -> str:
    """Return a number of things.

    >>> count(1, "image"), count(3, "image")
    ('1 image', '3 images')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers in their order, with runs of them as ranges.

    >>> ranges([1, 2, 3, 7])
    '1 to 3, 7'
    """
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def values_by_key(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return each key once, in the order of its first appearance, with all of its values.

    >>> values_by_key([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    values: dict[Key, list[Value]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    return values


# Parts with their options.


def part_in_words(part: object, name: str = "") -> str:
    """Return the name of a part, by default that of its class, with the options that differ from the defaults.

    >>> from fedglass.core.optimisers import SGD
    >>> part_in_words(SGD(momentum=0.9, nesterov=True)), part_in_words(SGD(), "sgd")
    ('SGD (momentum 0.9, nesterov)', 'sgd')
    """
    changed: dict[str, object] = {}
    if is_dataclass(part):
        changed = {f.name: value for f in fields(part) if (value := getattr(part, f.name)) != f.default}
    numbers = {n: f"{value:g}" if isinstance(value, float) else value for n, value in changed.items()}
    options = [n.replace("_", " ") + ("" if value is True else f" {value}") for n, value in numbers.items()]
    return (name or type(part).__name__) + (f" ({', '.join(options)})" if options else "")


# Citations in docstrings: brackets that hold a year.


_CITATION = re.compile(r"\[([^\]]*\b(?:19|20)\d\d\b[^\]]*)\]")


def cited(text: str) -> tuple[str, ...]:
    """Return the citations of a text, each once.

    >>> cited("The cosine distance [Geiping et al., 2020, Eq. 4] of [n] numbers.")
    ('Geiping et al., 2020, Eq. 4',)
    """
    return tuple(dict.fromkeys(" ".join(citation.split()) for citation in _CITATION.findall(text)))


def uncited(text: str) -> str:
    """Return the text on one line, without its citations.

    >>> uncited("The cosine distance [Geiping et al., 2020, Eq. 4].")
    'The cosine distance.'
    """
    return _CITATION.sub("", " ".join(text.split())).replace(" .", ".").replace(" :", ":").strip()


def docstring(part: object) -> str:
    """Return the docstring of a function or a class; empty for any other value, which has that of its class."""
    if not (inspect.isroutine(part) or inspect.isclass(part)):
        return ""
    return inspect.getdoc(part) or ""


# Papers that several packages cite; any other citation stands next to the code that follows it.


DLG = "Zhu, Liu, Han: Deep Leakage from Gradients, NeurIPS 2019, https://arxiv.org/abs/1906.08935"
IDLG = "Zhao, Mopuri, Bilen: iDLG: Improved Deep Leakage from Gradients, 2020, https://arxiv.org/abs/2001.02610"
DLFA = (
    "Dimitrov, Balunović, Konstantinov, Vechev: Data Leakage in Federated Averaging, TMLR 2022, "
    "https://openreview.net/forum?id=e7A0B99zJf"
)
SME = "Zhu, Yao, Blaschko: Surrogate Model Extension (SME), ICML 2023, https://arxiv.org/abs/2306.00127"
MALICIOUSLY_CURIOUS_CLIENT = (
    "Yue, Jin, Wong, Dai: Byzantine Outside, Curious Inside: Reconstructing Data Through Malicious Updates, 2025, "
    "https://arxiv.org/abs/2506.11413"
)
CURIOUS_CLIENT = (
    "Wilson, Yue, Wong, Dai: Federated Learning Nodes Can Reconstruct Peers' Image Data, 2024, "
    "https://arxiv.org/abs/2410.04661"
)
ROG = (
    "Yue, Jin, Wong, Baron, Dai: Gradient Obfuscation Gives a False Sense of Security in Federated Learning (ROG), "
    "USENIX Security 2023, https://arxiv.org/abs/2206.04055"
)
FEDINVERSE = (
    "Wu, Bai, Song, Chen, Zhou, Xiang, Sajjanhar: FedInverse: Evaluating Privacy Leakage in Federated Learning, ICLR "
    "2024, https://github.com/Jun-B0518/FedInverse"
)
