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

from fedglass.core.errors import UsageError
from fedglass.core.scale import Scale, scale_of
from fedglass.ledger.records import Record

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

    @classmethod
    def of(cls, record: Record) -> ImageScores:
        return cls(record.metrics, record.metrics_raw, record.blind)

    def values(self, metric: str, scale: Scale) -> list[float | None]:
        """What each image is judged by."""
        return leaked_most(scale, self.metrics.get(metric, []), self.raw.get(metric, []))

    def beyond(self, metric: str, scale: Scale, threshold: float) -> list[bool]:
        """Which images lie beyond a threshold."""
        return [value is not None and scale.beyond(value, threshold) for value in self.values(metric, scale)]

    def earned(self, metric: str, scale: Scale, threshold: float) -> list[bool]:
        """Which images lie beyond a threshold where no guess without the message is as good."""
        guesses = [*self.blind.get(metric, []), *[None] * len(self.metrics.get(metric, []))]
        pairs = zip(self.values(metric, scale), self.beyond(metric, scale, threshold), guesses, strict=False)
        return [
            over and (guess is None or math.isnan(guess) or scale.beyond(value or 0.0, guess))
            for value, over, guess in pairs
        ]

    def partly(self, metric: str, scale: Scale, threshold: float) -> list[bool]:
        """Which images are not recovered, but come near by this metric or are recovered by another.

        Near is the upper half of the band below the threshold in which a metric is not sure.
        """
        hits = self.earned(metric, scale, threshold)
        signs = [] if scale.sure is None else [self.earned(metric, scale, (scale.sure[0] + threshold) / 2)]
        others = {name: _scale(name) for name in self.metrics if name != metric}
        signs += [self.earned(name, other, other.sure[1]) for name, other in others.items() if other.sure is not None]
        return [not hit and any(seen[i] for seen in signs if i < len(seen)) for i, hit in enumerate(hits)]


def _scale(metric: str) -> Scale:
    """A metric's scale; one that does not say what it is sure of where the package that has it is not at hand."""
    try:
        return scale_of(metric)
    except UsageError:
        return Scale(metric)
