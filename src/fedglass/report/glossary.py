"""The words of the page that a reader may not know, explained at its end and linked where they first appear."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape


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
        "The limit that the plan sets: which score counts as recovered, and which share of the images may be recovered "
        "before the audit fails.",
    ),
    Term(
        "inconclusive",
        "The attacks recovered nothing, but it was not shown that nothing can be recovered. It is not a pass.",
    ),
    Term(
        "blind guess",
        "An image made without looking at the message, such as plain grey. An image that is no better than this does "
        "not count as recovered.",
    ),
    Term(
        "decoy",
        "Another image, as smooth as the true one, that has nothing to do with the message. Where the true images "
        "explain the message no better than decoys do, this attack has nothing to hold on to.",
        also=("decoys",),
    ),
    Term(
        "energy",
        "How badly an image explains the message, in the eyes of one attack, which looks for the lowest. Energies of "
        "different attacks can not be compared.",
        also=("energies",),
    ),
    Term(
        "oracle",
        "Knowledge that a real adversary would not be given, such as the true labels. Figures that used it are an "
        "upper bound.",
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
    return re.compile(rf"(?<![\w&#/\"=.-])({forms})(?![\w-])(?![^<]*(?:>|</a>))", re.IGNORECASE)


def _linked(term: Term) -> str:
    return rf'<a class="term" href="#{term.anchor}">\1</a>'
