"""The gate: when an image counts as recovered, and how much an adversary may learn."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import Literal

from fedglass.bounds.success import exposed_by
from fedglass.core.errors import UsageError
from fedglass.core.metric_scale import Scale, scale_of
from fedglass.verdict.doubts import Doubt, DoubtKind, doubt
from fedglass.verdict.images import ImageScores
from fedglass.verdict.records import BASE_RATE, MOST_MU, Certificate, Record, grouped

State = Literal["leak", "exposed", "clear", "inconclusive", "incomplete"]
MUTE = (DoubtKind.ZERO_UPDATE, DoubtKind.NON_FINITE_UPDATE)
"""Doubts of a case without a message that could be attacked."""
GUESSED, FEWEST = 0.05, 20
"""A threshold is too low if a guess passes it for more than this share of at least so many public images."""


@dataclass(frozen=True)
class Tally:
    """The count of images that one attack recovered, and its best score."""

    attack: str
    images: int
    recovered: int
    best: float
    """Of the recovered images, or of all if none was recovered."""
    oracle: bool
    refined: int = 0
    """Images that were recovered only after a refinement that passed its controls."""
    repeated: bool = False
    """Whether the same images are in several messages, and are counted in each."""

    @property
    def share(self) -> float:
        return self.recovered / self.images


@dataclass(frozen=True)
class Gate:
    """The limits by which an audit is judged, once, at its end.

    An image is recovered when its metric passes the threshold: above it for PSNR and SSIM, below it for LPIPS and RMSE,
    and for any other metric on the side that its scale calls leaking. Of a refined image the raw or the refined version
    counts. The image must also beat every guess that is made without the message.
    """

    metric: str = "psnr"
    threshold: float = 20.0
    max_share: float = 0.0
    inconclusive_fails: bool = True
    max_singling_out: float = 0.1
    """A message exposes its records if it names them among 1,000 candidates more often than this."""
    max_success: float = 0.05
    """The largest success in naming a record among 1,000 that a certificate may allow."""
    trust_declared: bool = False
    """Whether a declared training and noise are accepted where they cannot be tested."""
    scales: Mapping[str, Scale] = field(default_factory=dict, repr=False, compare=False)
    """Scales of metrics, such as those of a summary; other metrics are looked up by name."""

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
        for name in ("max_singling_out", "max_success"):
            if not BASE_RATE <= getattr(self, name) < 1:
                raise UsageError(
                    f"gate.{name} must be at least {BASE_RATE:g} (a blind guess among 1,000) and below 1, got "
                    f"{getattr(self, name):g}."
                )

    @cached_property
    def scale(self) -> Scale:
        """The scale of the metric."""
        if self.metric in self.scales:
            return self.scales[self.metric]
        try:
            return scale_of(self.metric)
        except UsageError as error:
            raise UsageError(f"gate.metric: {error}") from error

    @property
    def rule(self) -> str:
        """The condition for a recovered image as text.

        >>> Gate().rule, Gate(metric="lpips", threshold=0.1).rule
        ('PSNR above 20 dB', 'LPIPS below 0.1')
        """
        side = "above" if self.scale.higher_leaks else "below"
        return f"{self.scale.title} {side} {self.scale.measure(f'{self.threshold:g}')}"

    def scores(self, record: Record) -> list[float | None]:
        """Return the score by which each image of a record is judged."""
        return ImageScores.of(record).values(self.metric, self.scale)

    def hits(self, scores: ImageScores) -> list[bool]:
        """Check which images count as recovered."""
        return scores.recovered(self.metric, self.scale, self.threshold)

    def guessed(self, scores: ImageScores) -> int:
        """Count the images that pass the threshold, but no better than a guess without the message does."""
        ahead = scores.ahead(self.metric, self.scale, self.threshold)
        return sum(scores.beyond(self.metric, self.scale, self.threshold)) - sum(ahead)

    def imagined(self, scores: ImageScores) -> int:
        """Count the images that pass the threshold only because of a refinement that fails its controls."""
        return sum(scores.imagined(self.metric, self.scale, self.threshold))

    def partly(self, scores: ImageScores, *, clearly: bool = False) -> list[bool]:
        """Check which images are not recovered but partly recognisable; `clearly` so if they lead over all guesses."""
        scales = known_scales([self.metric, *scores.metrics], self.scales)
        return scores.partly(self.metric, self.threshold, scales, clearly=clearly)

    def tally(self, records: Sequence[Record]) -> list[Tally]:
        """Return the attacks that have judged images, the one that leaked most first."""
        oracle = {record.attack for record in records if record.oracle}
        done = [record for record in attacks_in(records) if record.status == "done" and not is_mute(record)]
        scored = [record for record in done if any(value is not None for value in self.scores(record))]
        by_attack = grouped(scored, lambda record: record.attack)
        tallies = [self._tally(attack, chosen, attack in oracle) for attack, chosen in by_attack.items()]
        sign = 1 if self.scale.higher_leaks else -1
        return sorted(tallies, key=lambda t: (-t.share, -sign * t.best, t.attack))

    def _tally(self, attack: str, records: Sequence[Record], oracle: bool) -> Tally:
        values = [value for record in records for value in self.scores(record) if value is not None]
        images = [ImageScores.of(record) for record in records]
        recovered = sum(sum(self.hits(scores)) for scores in images)
        refined = sum(sum(scores.by_refinement(self.metric, self.scale, self.threshold)) for scores in images)
        owners = [owner for record in records for owner in _owned(record)]
        repeated = len(set(owners)) < len(owners)
        return Tally(attack, len(values), recovered, self.best(records), oracle, refined, repeated)

    def best(self, records: Iterable[Record]) -> float:
        """Return the best score of the recovered images, or of all scored images if none was recovered."""
        judged = [
            (value, hit)
            for record in records
            for value, hit in zip(self.scores(record), self.hits(ImageScores.of(record)), strict=True)
            if value is not None
        ]
        return self.scale.best([value for value, hit in judged if hit] or [value for value, _ in judged])

    def exposes(self, record: Record) -> bool:
        """Return whether a candidate game names records beyond what the gate and its control allow."""
        game = record.game
        return game is not None and exposed_by(game, self.max_singling_out, game.messages) != ""

    def certifies(self, record: Record) -> bool:
        """Return whether a certificate bounds every audited record as the gate demands."""
        certificate = record.certificate
        return certificate is not None and bool(certificate.success) and self.allowed(record) <= self.max_success

    @staticmethod
    def allowed(record: Record) -> float:
        """Return the largest success that a record's certificate allows, over all planned rounds; 1 without one."""
        certificate = record.certificate
        if certificate is None or not certificate.success:
            return 1.0
        return max(certificate.worst, certificate.success_planned or 0.0)

    def doubts_of_certificate(self, record: Record) -> Iterator[Doubt]:
        """Yield a doubt if the certificate allows more than the gate, and one if the gate's threshold is too low."""
        proposal = self.proposed_threshold(record)
        if proposal is not None:
            yield doubt(DoubtKind.LOW_THRESHOLD, share=f"{proposal[0]:.0%}", proposed=proposal[1])
        if record.certificate is not None and not self.certifies(record):
            yield doubt(DoubtKind.WEAK_CERTIFICATE, success=self.allowed(record), allowed=self.max_success)
            factor = self._noise_factor(record.certificate)
            if factor is not None:
                yield doubt(DoubtKind.NOISE_THAT_SUFFICES, factor=factor, allowed=self.max_success)

    def _noise_factor(self, certificate: Certificate) -> float | None:
        """Return the factor of Gaussian noise with which the worst record meets the gate, rounded up; None if unknown.

        The distance of a record in units of the noise falls as the noise grows.
        """
        mu, later = max(certificate.mu, default=0.0), certificate.success_planned
        if not 0 < mu < MOST_MU or later == 1.0:
            return None
        quantile = NormalDist().inv_cdf
        mu = max(mu, 0.0 if later is None else quantile(later) - quantile(BASE_RATE))
        factor = mu / (quantile(self.max_success) - quantile(BASE_RATE))
        digits = 1 - math.floor(math.log10(factor))
        return math.ceil(factor * 10**digits) / 10**digits if factor > 1 else None

    def proposed_threshold(self, record: Record) -> tuple[float, float] | None:
        """Return the share of public images for which a guess passes the threshold, and a better threshold.

        Return None if the share is at most `GUESSED`. The better threshold is the next one, in the digits of the
        metric, that a guess passes for no more than this share.
        """
        values = sorted(value for value in record.blind_public.get(self.metric, []) if value is not None)
        scale = known_scales([self.metric], self.scales)[self.metric]
        share = sum(scale.beyond(value, self.threshold) for value in values) / max(1, len(values))
        if len(values) < FEWEST or share <= GUESSED:
            return None
        may_pass = math.floor(GUESSED * len(values))
        last = values[-1 - may_pass] if scale.higher_leaks else values[may_pass]
        rounded, unit = round(last, scale.digits), 10.0**-scale.digits
        if scale.beyond(last, rounded):
            rounded += unit if scale.higher_leaks else -unit
        return share, round(rounded, scale.digits)

    def judged(self, record: Record) -> bool:
        """Return whether every image of an attack has a score, or none can have one."""
        if record.method or any(doubt.kind in UNSCORED for doubt in record.doubts):
            return True
        values = self.scores(record)
        return bool(values) and None not in values


def known_scales(names: Iterable[str], scales: Mapping[str, Scale]) -> dict[str, Scale]:
    """Return the scale of each metric: given, or looked up, or without a judgement if its package is gone.

    >>> known_scales(["gone"], {})
    {'gone': Scale(title='gone', unit='', digits=3, higher_leaks=True, range=(None, None), sure=None, exact=None)}
    """
    found = {}
    for name in names:
        try:
            found[name] = scales[name] if name in scales else scale_of(name)
        except UsageError:
            found[name] = Scale(name)
    return found


UNSCORED = (DoubtKind.NO_TRUTH, DoubtKind.NO_EXACT_METHOD, DoubtKind.OUT_OF_TIME)
"""Doubts that explain why an attack has no scores; such an attack has not failed."""


def attacks_in(records: Iterable[Record]) -> list[Record]:
    """Return the records of attacks, without games and certificates."""
    return [record for record in records if record.kind == "attack"]


def _owned(record: Record) -> Iterator[Hashable]:
    """Yield the clients of a record, each with its labels: clients of two federations may share a name."""
    for owner in dict.fromkeys(record.owners):
        labels = zip(record.owners, record.labels_true, strict=False)
        yield owner, tuple(label for name, label in labels if name == owner)


def is_mute(record: Record) -> bool:
    """Return whether there was no message that could be attacked."""
    return any(doubt.kind in MUTE for doubt in record.doubts)
