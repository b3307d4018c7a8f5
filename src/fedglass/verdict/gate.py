"""From records to a verdict: did an adversary recover private images, and can the audit tell?"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from fedglass.core.errors import UsageError
from fedglass.core.scale import Scale, scale_of
from fedglass.ledger.records import Record
from fedglass.verdict.images import ImageScores

NO_MESSAGE = ("zero update", "non-finite update")
"""Flags of a case in which no attack could be played."""
HIDDEN, CHOICE = "a defence hides it", "the message leaves a choice"
"""The two ways in which absence is shown."""
REMEDIES = (
    "raise the client's learning rate, or check that the client trained and what was recorded",
    "lower the client's learning rate",
)
"""What to do about each of them."""

State = Literal["leak", "clear", "inconclusive", "incomplete"]


@dataclass(frozen=True)
class Tally:
    """How many of the judged images one attack recovered, and its best score."""

    attack: str
    images: int
    recovered: int
    best: float
    oracle: bool
    refined: int = 0
    """How many of them only after their refinement, which passed its controls."""
    repeated: bool = False
    """Whether a client's images are in several messages, and counted in each."""

    @property
    def share(self) -> float:
        return self.recovered / self.images


@dataclass(frozen=True)
class Verdict:
    """The answer in plain words; `passed` is None where the audit could not tell."""

    passed: bool | None
    lead: str
    caveat: str
    """What must be said with it, such as that oracle knowledge was used; often empty."""
    exit_code: Literal[0, 1, 3]
    state: State

    @property
    def sentence(self) -> str:
        return f"{self.lead} {self.caveat}".rstrip()


@dataclass(frozen=True)
class Gate:
    """Fails when any attack recovers more than a share of the images.

    An image is recovered when its metric lies beyond the threshold: above it for PSNR and SSIM, below it for
    LPIPS and RMSE, and for any other metric on the side that its scale calls leaking; of an image that was refined,
    that of the raw or of the refined one. A serious flag (the attack
    itself went wrong) makes a pass inconclusive, and so does anything of which absence was not shown; unless
    `inconclusive_fails` is false such an audit counts as not completed.

    >>> Gate().judge([]).sentence
    'The audit could not complete: no case has run.'
    """

    metric: str = "psnr"
    threshold: float = 20.0
    max_share: float = 0.0
    inconclusive_fails: bool = True
    known: Scale | None = field(default=None, repr=False, compare=False)
    """The metric's scale where it is told, as in a summary; it is looked up by the metric's name otherwise."""

    def __post_init__(self) -> None:
        # A threshold at the far end can never be crossed: such a gate would pass everything.
        if not self.scale.can_be_crossed(self.threshold):
            raise UsageError(
                f"gate.threshold must {self.scale.range_in_words()} for {self.metric}, got "
                f"{self.threshold:g}; an image {self.rule} counts as recovered."
            )
        if not 0 <= self.max_share < 1:
            raise UsageError(
                f"gate.max_share must be a share of the images in [0, 1), got {self.max_share:g}; write 25 % as 0.25."
            )

    @cached_property
    def scale(self) -> Scale:
        """How the metric reads."""
        if self.known is not None:
            return self.known
        try:
            return scale_of(self.metric)
        except UsageError as error:
            raise UsageError(f"gate.metric: {error}") from error

    @property
    def rule(self) -> str:
        """When an image counts as recovered, in words.

        >>> Gate().rule, Gate(metric="lpips", threshold=0.1).rule
        ('PSNR above 20 dB', 'LPIPS below 0.1')
        """
        side = "above" if self.scale.higher_leaks else "below"
        return f"{self.scale.title} {side} {self.scale.measure(f'{self.threshold:g}')}"

    def recovered(self, value: float) -> bool:
        return self.scale.beyond(value, self.threshold)

    def scores(self, record: Record) -> list[float | None]:
        """What each image of a record is judged by."""
        return ImageScores.of(record).values(self.metric, self.scale)

    def hits(self, scores: ImageScores) -> list[bool]:
        """Which images count as recovered."""
        return scores.recovered(self.metric, self.scale, self.threshold)

    def guessed(self, scores: ImageScores) -> int:
        """How many lie beyond the threshold where a guess without the message does as well."""
        return sum(scores.beyond(self.metric, self.scale, self.threshold)) - sum(self.hits(scores))

    def imagined(self, scores: ImageScores) -> int:
        """How many lie beyond the threshold only as a refinement drew them, which fails its controls."""
        return sum(scores.imagined(self.metric, self.scale, self.threshold))

    def partly(self, scores: ImageScores) -> int:
        """How many are not recovered but partly recognisable."""
        return sum(scores.partly(self.metric, self.scale, self.threshold))

    def tally(self, records: Sequence[Record]) -> list[Tally]:
        """The attacks that have judged images, the one that leaked most first."""
        scores: dict[str, list[float]] = {}
        hits: dict[str, int] = {}
        refined: dict[str, int] = {}
        owners: dict[str, list[Hashable]] = {}
        oracle = {record.attack for record in records if record.oracle}
        for record in records:
            found = [v for v in self.scores(record) if v is not None]
            if record.status == "done" and found and not is_mute(record):
                scores.setdefault(record.attack, []).extend(found)
                image_scores = ImageScores.of(record)
                later = image_scores.by_refinement(self.metric, self.scale, self.threshold)
                owners.setdefault(record.attack, []).extend(_owned(record))
                hits[record.attack] = hits.get(record.attack, 0) + sum(self.hits(image_scores))
                refined[record.attack] = refined.get(record.attack, 0) + sum(later)
        tallies = [
            Tally(name, len(v), hits[name], self.scale.best(v), name in oracle, refined[name], _twice(owners[name]))
            for name, v in scores.items()
        ]
        sign = 1 if self.scale.higher_leaks else -1
        return sorted(tallies, key=lambda t: (-t.share, -sign * t.best, t.attack))

    def judge(self, records: Sequence[Record], missing: int | None = 0) -> Verdict:
        """The verdict; `missing` counts the planned cases that have not run (None: unknown, but some).

        A leak that was found stays found, so it outranks an audit that is not complete.
        """
        tallies = self.tally(records)
        problems = self._problems(records, missing)
        if any(t.share > self.max_share for t in tallies):
            told = "It was given oracle knowledge, which a real adversary lacks." if tallies[0].oracle else ""
            also = f"The audit is also incomplete: {'; '.join(problems)}." if problems else ""
            return Verdict(False, self._leak_sentence(tallies), f"{told} {also}".strip(), 1, "leak")
        if problems:
            lead = f"The audit could not complete: {'; '.join(problems)}."
            return Verdict(None, lead, "", 3, "incomplete")
        lead, doubt = self._pass_sentence(tallies), _doubt([*map(self.unshown, records)])
        if not doubt:
            return Verdict(True, lead, _against(records), 0, "clear")
        if self.inconclusive_fails:
            return Verdict(None, lead, doubt, 3, "inconclusive")
        return Verdict(True, lead, doubt, 0, "inconclusive")

    def _problems(self, records: Sequence[Record], missing: int | None) -> list[str]:
        """Why the records can not show that nothing leaks; empty when they are complete."""
        total, problems = len(records), []
        if not records:
            problems.append("no case has run")
        failed = [r for r in records if r.status == "failed"]
        if failed:
            why = f"{failed[0].attack}: {_short(failed[0].error or '')}"
            problems.append(f"{len(failed)} of {_count(total, 'case')} failed ({why})")
        blank = [r for r in records if r.status == "done" and not self._judged(r)]
        if blank:
            why = _short(blank[0].skipped_metrics.get(self.metric, "no score for some image"))
            problems.append(f"{self.scale.title} is missing in {len(blank)} of {_count(total, 'case')} ({why})")
        mute = [r for r in records if is_mute(r)]
        if mute:
            found = {flag.name for r in mute for flag in r.flags}
            known = {name: fix for name, fix in zip(NO_MESSAGE, REMEDIES, strict=True) if name in found}
            where = f"in {len(mute)} of {_count(total, 'case')} ({', '.join(known)})"
            problems.append(f"there was nothing to attack {where}: {'; '.join(known.values())}")
        if missing is None:
            problems.append("it was stopped before its end; run it again to continue")
        elif missing > 0:
            problems.append(f"{_count(missing, 'planned case')} not run yet; run it again to continue")
        return problems

    def unshown(self, record: Record) -> list[str]:
        """What keeps a record from showing that nothing leaks: every pass must have been shown."""
        serious = [flag.name for flag in record.flags if flag.severity == "serious"]
        # The flags are those of the gate that the audit was run with, which may have been another.
        scores = ImageScores.of(record)
        doubts = {
            "partly recognisable": sum(scores.near(self.metric, self.scale, self.threshold)),
            "no better than guessing": self.guessed(scores),
            "refined image fails its controls": self.imagined(scores),
        }
        serious += [name for name, count in doubts.items() if count and name not in serious]
        if serious or all(self.hits(scores)):
            return serious
        if record.absence is None:
            return ["absence not shown"]
        return [] if self._covers(record) else ["absence was shown for another gate, audit again in a new directory"]

    def _covers(self, record: Record) -> bool:
        """Whether what was shown for the gate that the audit was run with is shown for this one.

        Further runs were judged by that gate: what they showed may lie beyond a threshold that is easier to cross.
        """
        then = record.extra.get("gate")
        if not isinstance(then, dict):
            return True
        threshold = then.get("threshold")
        if then.get("metric") != self.metric or not isinstance(threshold, int | float):
            return False
        return not self.scale.beyond(threshold, self.threshold)

    def _judged(self, record: Record) -> bool:
        values = self.scores(record)
        return bool(values) and None not in values

    def _leak_sentence(self, tallies: Sequence[Tally]) -> str:
        worst, guilty = tallies[0], sum(t.recovered > 0 for t in tallies)
        score = f"({self.rule}; best {self.scale.show(worst.best)})"
        found = f"recovered {worst.recovered} of {_count(worst.images, 'image')} {score}"
        if len(tallies) > 1:
            sentence = f"{guilty} of {len(tallies)} attacks recovered private images: the worst, {worst.attack}, "
            sentence += found
        else:
            sentence = f"{worst.attack} {found.replace(' image', ' private image', 1)}"
        if worst.repeated:
            sentence += ", where an image that is in several messages counts in each"
        if worst.refined:
            sentence += f", {worst.refined} of them only after refinement"
        if self.max_share > 0:
            sentence += f", more than the {self.max_share:.0%} that the gate allows"
        return f"{sentence}."

    def _pass_sentence(self, tallies: Sequence[Tally]) -> str:
        worst, best = tallies[0], self.scale.show(tallies[0].best)
        if worst.recovered:
            return (
                f"No attack recovered more than the {self.max_share:.0%} of images that the gate allows: "
                f"the worst, {worst.attack}, recovered {worst.recovered} of {worst.images} "
                f"({self.rule}; best {best})."
            )
        if len(tallies) == 1:
            return f"{worst.attack} recovered no private image ({self.rule}); its best was {best}."
        return (
            f"None of the {len(tallies)} attacks recovered a private image ({self.rule}); the closest, "
            f"{worst.attack}, reached {best}."
        )


def _owned(record: Record) -> Iterator[Hashable]:
    """The clients behind a record, each with its labels: clients of two federations may have one name."""
    for owner in dict.fromkeys(record.owners):
        labels = zip(record.owners, record.labels_true, strict=False)
        yield owner, tuple(label for name, label in labels if name == owner)


def _twice(owned: Sequence[Hashable]) -> bool:
    return len(set(owned)) < len(owned)


def is_mute(record: Record) -> bool:
    """Whether there was no message that an attack could have been played on."""
    return any(flag.name in NO_MESSAGE for flag in record.flags)


def _against(records: Sequence[Record]) -> str:
    """Against whom a defence, or company, was shown to hide images: another attack may read what these do not."""
    names = list(dict.fromkeys(record.attack for record in records if record.absence == HIDDEN))
    if not names:
        return ""
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return f"That protection hides them is shown against {listed} alone."


def _doubt(doubts: Sequence[Sequence[str]]) -> str:
    """Why a pass does not show that nothing leaks, or nothing; from what is against each record."""
    flagged = [names for names in doubts if names]
    if not flagged:
        return ""
    named = ", ".join(sorted({name for names in flagged for name in names}))
    return f"Yet absence of leakage is not shown in {len(flagged)} of {_count(len(doubts), 'case')} ({named})."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _short(text: str, limit: int = 160) -> str:
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= limit else line[: limit - 1] + "…"
