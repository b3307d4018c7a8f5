"""The explanations of a page: every doubt once, and a glossary that is linked where a term first appears."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape
from pydantic import JsonValue

from fedglass.core.text import EPSILON_MEANING
from fedglass.report.page import term_anchor
from fedglass.verdict.collect_doubts import NAMED, ORDER, doubts_of, flag
from fedglass.verdict.doubts import Doubt, Question
from fedglass.verdict.gate import Gate
from fedglass.verdict.records import Record, grouped
from fedglass.verdict.texts import Flag, count


def doubts_by_question(records: Sequence[Record], gate: Gate) -> list[tuple[str, list[tuple[Flag, str, list[str]]]]]:
    """Return the doubts of all records under their questions, the serious ones first, each explained once.

    Each doubt has the number of its cases as text, and the attacks that have it.
    """
    all_pairs = [(doubt, record) for record in records for doubt in doubts_of(record, gate)]
    groups = []
    for pairs in grouped(all_pairs, lambda pair: pair[0].kind).values():
        cases = f"{len({record.key for _, record in pairs})} of {count(len(records), 'case')}"
        attacks = list(dict.fromkeys(record.attack for _, record in pairs))
        groups.append((flag(merged([doubt for doubt, _ in pairs])), cases, attacks))
    groups.sort(key=lambda group: ORDER.index(group[0].severity))
    by_question = grouped(groups, lambda group: group[0].question)
    return [(question.value, by_question[question]) for question in Question if question in by_question]


def merged(doubts: Sequence[Doubt]) -> Doubt:
    """Return doubts of one kind as one doubt, with the range of each figure and all names.

    >>> from fedglass.verdict.doubts import DoubtKind, doubt
    >>> merged([doubt(DoubtKind.WRONG_LABELS, labels=1), doubt(DoubtKind.WRONG_LABELS, labels=3)]).details
    {'labels': '1 to 3'}
    """
    names = dict.fromkeys(name for doubt in doubts for name in doubt.details)
    details = {name: _together([doubt.details[name] for doubt in doubts if name in doubt.details]) for name in names}
    return Doubt(kind=doubts[0].kind, details=details)


def _together(values: Sequence[JsonValue]) -> JsonValue:
    """Return one value for all: numbers as their range, lists as their union, and texts one after another."""
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) == len(values):
        low, high = min(numbers), max(numbers)
        return low if low == high else f"{low:.3g} to {high:.3g}"
    if all(isinstance(value, list) for value in values):
        return list(dict.fromkeys(str(name) for value in values if isinstance(value, list) for name in value))
    texts = list(dict.fromkeys(str(value) for value in values))
    more = [f"({len(texts) - NAMED} more.)"] if len(texts) > NAMED else []
    return (" " if texts[0].endswith(".") else "; ").join([*texts[:NAMED], *more])


TERMS = {
    "PSNR": (
        "Peak signal-to-noise ratio: how small the differences between the pixels of two images are, in decibels (dB). "
        "Higher is more alike; around 20 dB a person recognises most of an image. An exact copy has 100 dB here."
    ),
    "SSIM": (
        "Structural similarity: how alike edges and textures of two images are, from about 0 (nothing in common) to 1 "
        "(the same image)."
    ),
    "RMSE": (
        "Root mean squared error: how far apart the pixels of two images are on average, where black is 0 and white "
        "is 1. Lower is more alike."
    ),
    "LPIPS": (
        "A distance between two images as a trained network perceives them, which follows human judgement better than "
        "pixels do. Lower is more alike."
    ),
    "update": (
        "What a client sends after training on its private data: the change of each weight of the model. The attacks "
        "reconstruct the data from it."
    ),
    "secure aggregation": (
        "A protocol that gives the server only the sum of the clients' updates, and none of them alone."
    ),
    "gate": (
        "The limits of the plan: the score from which an image counts as recovered, the share of images that may be "
        "recovered, how often a message may name its records, and the success that a certificate may allow."
    ),
    "inconclusive": "No leak was shown, and no certificate rules one out. It is not a pass.",
    "singling out": (
        "Finding out from a message which of several similar records was trained on. European data-protection "
        "authorities name it first among three ways in which anonymisation fails (Article 29 Working Party, "
        "Opinion 05/2014)."
    ),
    "candidate game": (
        "An adversary gets the message and many similar images, one of them trained on, and names the one that fits "
        "the message best."
    ),
    "control": (
        "The same game for records that were not trained on. If it names these as well, it shows similarity and not "
        "training."
    ),
    "certificate": (
        "A proven upper bound on the success of any adversary in naming a record, under listed assumptions, "
        "which are tested if possible."
    ),
    "base rate": "The success in naming a record without the message: one in 1,000.",
    "advantage": (
        "The share of hits minus the share of false alarms of the best test that says whether a record was used. 0 % "
        "is a blind guess."
    ),
    "epsilon": f"The customary measure of differential privacy; lower is more private. {EPSILON_MEANING}",
    "blind guess": (
        "An image made without looking at the message, such as plain grey. An image that is no better than this does "
        "not count as recovered."
    ),
    "energy": (
        "How badly an image explains the message, as one attack measures it. The attack looks for the lowest energy. "
        "Energies of different attacks cannot be compared."
    ),
    "oracle": (
        "Knowledge that a real adversary does not have, such as the true labels. Figures that depend on it decide "
        "nothing."
    ),
}
"""Term -> its meaning."""
METRICS = {"PSNR": "psnr", "SSIM": "ssim", "RMSE": "rmse", "LPIPS": "lpips"}
"""Terms that are explained only if the audit has this metric."""
FORMS: dict[str, tuple[str, ...]] = {
    "update": ("updates",),
    "singling out": ("singles out", "single out", "singled out"),
    "candidate game": ("candidate games",),
    "certificate": ("certificates",),
    "energy": ("energies",),
}
"""Other forms of a term."""


@dataclass
class Glossary:
    """Links for the terms of one page: each term is linked the first time that the page uses it."""

    terms: Mapping[str, str]
    _linked: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, metrics: Iterable[str]) -> Glossary:
        """Return a glossary with the metrics of the audit."""
        names = set(metrics)
        return cls({term: meaning for term, meaning in TERMS.items() if METRICS.get(term) in {None, *names}})

    def link(self, text: str) -> Markup:
        """Return the escaped text with links for the terms that were not linked before.

        >>> Glossary.of([]).link("the gate <b> and the gate")
        Markup('the <a class="term" href="#term-gate">gate</a> &lt;b&gt; and the gate')
        """
        html = str(escape(text))
        for term in self.terms:
            if term not in self._linked:
                link = rf'<a class="term" href="#{term_anchor(term)}">\1</a>'
                html, times = _pattern(term).subn(link, html, count=1)
                self._linked |= {term} if times else set()
        return Markup(html)


def _pattern(term: str) -> re.Pattern[str]:
    """Return a pattern for the term or one of its forms: not a part of another word, and not inside a tag."""
    forms = "|".join(sorted(map(re.escape, (term, *FORMS.get(term, ()))), key=len, reverse=True))
    return re.compile(rf"(?<![\w&#/\"=.-])({forms})(?![\w-]|\.\w)(?![^<]*(?:>|</a>))", re.IGNORECASE)
