"""Image by image: recovered, partly recognisable, or no better than a guess.

An image is recovered where its value lies beyond the threshold and no guess without the message does as well. Of an
image that was refined, the raw or the refined one counts, whichever leaked more: a refinement may destroy what the
attack had recovered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from fedglass.core.scale import Scale, scale_of
from fedglass.ledger.records import Record

LEAD = 1 / 6
"""By which share of the band in which a metric is not sure an image must be ahead of guesses: 1 dB of PSNR."""
Values = Mapping[str, Sequence[float | None]]


def leaked_most(scale: Scale, *versions: Sequence[float | None]) -> list[float | None]:
    """Image by image the value of the version that leaked most, None where none has one.

    >>> leaked_most(Scale("PSNR"), [12.0, 25.0, None], [21.0, 24.0, None])
    [21.0, 25.0, None]
    """
    each = [[v for v in image if v is not None and not math.isnan(v)] for image in zip_longest(*versions)]
    return [scale.best(known) if known else None for known in each]


@dataclass(frozen=True, eq=False)
class ImageScores:
    """The scores of a record's images, and of guesses in their place."""

    metrics: Values = field(default_factory=dict)
    raw: Values = field(default_factory=dict)
    """The same before the images were refined; empty where nothing was."""
    blind: Values = field(default_factory=dict)
    """What the best guess without the message reaches."""
    blind_by: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Which guess that is; empty where nobody kept it."""

    @classmethod
    def of(cls, record: Record) -> ImageScores:
        return cls(record.metrics, record.metrics_raw, record.blind, record.blind_by)

    def values(self, metric: str, scale: Scale) -> list[float | None]:
        """What each image is judged by."""
        return leaked_most(scale, self.metrics.get(metric, []), self.raw.get(metric, []))

    def beyond(self, metric: str, scale: Scale, threshold: float) -> list[bool]:
        """Which images lie beyond a threshold."""
        return [value is not None and scale.beyond(value, threshold) for value in self.values(metric, scale)]

    def recovered(self, metric: str, scale: Scale, threshold: float) -> list[bool]:
        """Which images lie beyond a threshold and clearly ahead of every guess without the message."""
        lead = 0.0 if scale.sure is None else LEAD * abs(scale.sure[1] - scale.sure[0])
        return self.earned(metric, scale, threshold, lead)

    def earned(self, metric: str, scale: Scale, threshold: float, lead: float = 0.0) -> list[bool]:
        """Which images lie beyond a threshold and are ahead of every guess without the message by more than `lead`."""
        ahead = lead if scale.higher_leaks else -lead
        guesses = [*self.blind.get(metric, []), *[None] * len(self.metrics.get(metric, []))]
        pairs = zip(self.values(metric, scale), self.beyond(metric, scale, threshold), guesses, strict=False)
        return [
            over and (guess is None or math.isnan(guess) or scale.beyond(value or 0.0, guess + ahead))
            for value, over, guess in pairs
        ]

    def near(self, metric: str, scale: Scale, threshold: float) -> list[bool]:
        """Which images are not recovered, but lie in the upper half of the band in which the metric is not sure.

        Or beyond that band: what the metric is sure of is recognisable, however high somebody has set the threshold.
        """
        hits = self.recovered(metric, scale, threshold)
        if scale.sure is None:
            return [False] * len(hits)
        half, sure = (scale.sure[0] + threshold) / 2, scale.sure[1]
        close = self.earned(metric, scale, sure if scale.beyond(half, sure) else half)
        return [seen and not hit for seen, hit in zip(close, hits, strict=True)]

    def partly(self, metric: str, scale: Scale, threshold: float) -> list[bool]:
        """Which images are not recovered, but come near by this metric or are recovered by another."""
        hits = self.recovered(metric, scale, threshold)
        signs = [self.near(metric, scale, threshold)]
        others = {name: scale_of(name) for name in self.metrics if name != metric}
        signs += [self.earned(name, other, other.sure[1]) for name, other in others.items() if other.sure is not None]
        return [not hit and any(seen[i] for seen in signs if i < len(seen)) for i, hit in enumerate(hits)]
