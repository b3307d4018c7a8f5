"""The words of the page that a reader may not know, explained at its end and linked where they first appear."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape
from pydantic import JsonValue

from fedglass.verdict.doubts import Doubt, Kind, Question, Severity
from fedglass.verdict.flags import NAMED, ORDER, Flag, doubts_of, flag, flags_of
from fedglass.verdict.gate import Gate
from fedglass.verdict.records import Record
from fedglass.verdict.texts import QUESTIONS, count

# Every doubt explained once: cases carry its name alone, which leads to the explanation.


TONES: dict[Severity, str] = {"serious": "leak", "warning": "inconclusive", "info": ""}


@dataclass(frozen=True)
class Label:
    """A doubt at a case: its name, its colour, and where it is explained."""

    name: str
    tone: str
    anchor: str


@dataclass(frozen=True)
class FlagGroup:
    """A doubt, what it means, and how many cases carry it."""

    flag: Flag
    label: Label
    cases: str
    attacks: Sequence[str]


def doubts_by_question(records: Sequence[Record], gate: Gate) -> list[tuple[str, list[FlagGroup]]]:
    """Return the doubts of all records under their questions, the serious ones first, each explained once."""
    found: dict[Kind, list[tuple[Doubt, Record]]] = {}
    for record in records:
        for each in doubts_of(record, gate):
            found.setdefault(each.kind, []).append((each, record))
    groups = sorted((_group(pairs, len(records)) for pairs in found.values()), key=_severity)
    asked = [(question, [group for group in groups if group.flag.question is question]) for question in Question]
    return [(QUESTIONS[question], chosen) for question, chosen in asked if chosen]


def flag_labels(record: Record, gate: Gate) -> list[Label]:
    """Return the doubts of one record."""
    return [label(each) for each in flags_of(record, gate)]


def label(each: Flag) -> Label:
    """Return a doubt as cases show it."""
    return Label(each.name, TONES[each.severity], anchor(each.kind))


def anchor(kind: str) -> str:
    """Return the address of an explanation on the page."""
    return f"doubt-{kind.replace('_', '-')}"


def _severity(group: FlagGroup) -> int:
    return ORDER.index(group.flag.severity)


def _group(pairs: Sequence[tuple[Doubt, Record]], total: int) -> FlagGroup:
    together = flag(merged([each for each, _ in pairs]))
    cases = f"{len({record.key for _, record in pairs})} of {count(total, 'case')}"
    return FlagGroup(together, label(together), cases, list(dict.fromkeys(record.attack for _, record in pairs)))


def merged(doubts: Sequence[Doubt]) -> Doubt:
    """Return doubts of one kind as one, with the range of each figure and all names.

    >>> from fedglass.verdict.doubts import doubt
    >>> merged([doubt(Kind.WRONG_LABELS, labels=1), doubt(Kind.WRONG_LABELS, labels=3)]).details
    {'labels': '1 to 3'}
    """
    names = dict.fromkeys(name for each in doubts for name in each.details)
    told = {name: [each.details[name] for each in doubts if name in each.details] for name in names}
    return Doubt(kind=doubts[0].kind, details={name: _together(values) for name, values in told.items()})


def _together(values: Sequence[JsonValue]) -> JsonValue:
    """Return one value for all: numbers as their range, lists as their union, and texts one after another."""
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) == len(values):
        low, high = min(numbers), max(numbers)
        return low if low == high else f"{low:.3g} to {high:.3g}"
    if all(isinstance(value, list) for value in values):
        return list(dict.fromkeys(str(each) for value in values if isinstance(value, list) for each in value))
    texts = list(dict.fromkeys(str(value) for value in values))
    more = [f"({len(texts) - NAMED} more.)"] if len(texts) > NAMED else []
    return (" " if texts[0].endswith(".") else "; ").join([*texts[:NAMED], *more])


@dataclass(frozen=True)
class Term:
    """A word and what it means."""

    name: str
    meaning: str
    metric: str = ""
    """The metric that it names: explained only where that was asked for."""
    also: tuple[str, ...] = ()
    """Other forms of the word."""

    @property
    def anchor(self) -> str:
        return f"term-{self.name.lower().replace(' ', '-')}"


TERMS = (
    Term(
        "PSNR",
        "Peak signal-to-noise ratio: how small the differences between the pixels of two images are, in decibels (dB). "
        "Higher is more alike; around 20 dB a person recognises most of what is shown, an exact copy has 100 dB here.",
        "psnr",
    ),
    Term(
        "SSIM",
        "Structural similarity: how alike edges and textures of two images are, from about 0 (nothing in common) to 1 "
        "(the same image).",
        "ssim",
    ),
    Term(
        "RMSE",
        "Root mean squared error: how far apart the pixels of two images are on average, on a scale on which black is "
        "0 and white is 1. Lower is more alike.",
        "rmse",
    ),
    Term(
        "LPIPS",
        "A distance between two images as a trained network perceives them, which follows human judgement better than "
        "pixels do. Lower is more alike.",
        "lpips",
    ),
    Term(
        "update",
        "What a client sends after training on its private data: by how much each weight of the model changed. "
        "The attacks work back from it to the data.",
        also=("updates",),
    ),
    Term(
        "secure aggregation",
        "A protocol by which the server learns the sum of the clients' updates and none of them alone.",
    ),
    Term(
        "gate",
        "The limits that the plan sets: which score counts as recovered, which share of the images may be recovered, "
        "how often a message may name its records, and which success a certificate may allow.",
    ),
    Term(
        "inconclusive",
        "No leak was shown, and no certificate rules one out. It is not a pass.",
    ),
    Term(
        "singling out",
        "Telling from a message which record was trained on, among others like it. European data-protection "
        "authorities name it first among three ways in which anonymisation fails (Article 29 Working Party, "
        "Opinion 05/2014).",
        also=("singles out", "single out", "singled out"),
    ),
    Term(
        "candidate game",
        "An adversary gets the message and many similar images, one of them trained on, and names the one that fits "
        "the message best.",
        also=("candidate games",),
    ),
    Term(
        "control",
        "The same game for records that were not trained on. Where it names these as well, it shows likeness and not "
        "training.",
    ),
    Term(
        "certificate",
        "A proven upper bound on the success of any adversary in naming a record, under assumptions that are listed "
        "and tested where they can be.",
        also=("certificates",),
    ),
    Term("base rate", "The success in naming a record without the message: one in 1,000."),
    Term(
        "advantage",
        "How much better than a coin the best test tells whether a record was used: its share of hits minus its share "
        "of false alarms. 0 % is a blind guess.",
    ),
    Term(
        "epsilon",
        "The customary measure of differential privacy, stated with a small probability delta. Lower is more private.",
    ),
    Term(
        "blind guess",
        "An image made without looking at the message, such as plain grey. An image that is no better than this does "
        "not count as recovered.",
    ),
    Term(
        "energy",
        "How badly an image explains the message, in the eyes of one attack, which looks for the lowest. Energies of "
        "different attacks cannot be compared.",
        also=("energies",),
    ),
    Term(
        "oracle",
        "Knowledge that a real adversary would not be given, such as the true labels. Figures that used it decide "
        "nothing.",
    ),
)


@dataclass
class Glossary:
    """Links each word the first time that the page uses it. One for each page, since it remembers what was linked."""

    terms: Sequence[Term]
    _linked: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, metrics: Iterable[str]) -> Glossary:
        """With those metrics that the audit has."""
        known = set(metrics)
        return cls([term for term in TERMS if not term.metric or term.metric in known])

    def link(self, text: str) -> Markup:
        """The text, escaped, with words linked that were not met before.

        >>> Glossary.of([]).link("the gate <b> and the gate")
        Markup('the <a class="term" href="#term-gate">gate</a> &lt;b&gt; and the gate')
        """
        found = str(escape(text))
        for term in self.terms:
            if term.name not in self._linked:
                found, times = _pattern(term).subn(_linked(term), found, count=1)
                self._linked |= {term.name} if times else set()
        return Markup(found)


def _pattern(term: Term) -> re.Pattern[str]:
    """The word or one of its forms as text: not a part of another word, and not inside a tag that is already there."""
    forms = "|".join(sorted(map(re.escape, (term.name, *term.also)), key=len, reverse=True))
    return re.compile(rf"(?<![\w&#/\"=.-])({forms})(?![\w-]|\.\w)(?![^<]*(?:>|</a>))", re.IGNORECASE)


def _linked(term: Term) -> str:
    return rf'<a class="term" href="#{term.anchor}">\1</a>'
