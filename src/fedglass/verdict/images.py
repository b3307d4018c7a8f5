"""Image by image: recovered, partly recognisable, or no better than a guess.

An image is recovered where its value lies beyond the threshold and no guess without the message does as well. Of an
image that was refined, the raw or the refined one counts, whichever leaked more: a refinement may destroy what the
attack had recovered. One that was refined by a model of such images counts only if it passes its controls: it does
better than the same model does from another image and better than the model untrained, and it still shows the image
that the raw one shows. A model draws likely images out of anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal

from fedglass.core.scale import Scale
from fedglass.verdict.records import Record

LEAD = 1 / 6
"""By which share of the band in which a metric is not sure an image must be ahead of guesses: 1 dB of PSNR."""
Values = Mapping[str, Sequence[float | None]]
Version = Literal["raw", "refined"]


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
    controls: Mapping[str, Values] = field(default_factory=dict)
    """What each control of a learned refinement reaches, by its name; empty where there was none."""
    kept: Sequence[bool] = ()
    """Which refined images still show what the raw ones show."""
    blends: Sequence[Sequence[int]] = ()
    """By image, the private images whose mean its reconstruction shows; empty where it shows one alone."""

    @classmethod
    def of(cls, record: Record) -> ImageScores:
        kept = record.identity_kept
        return cls(
            record.metrics, record.metrics_raw, record.blind, record.blind_by, record.controls, kept, record.blends
        )

    def values(self, metric: str, scale: Scale) -> list[float | None]:
        """What each image is judged by."""
        pairs = zip(self.metrics.get(metric, []), self.passing(metric, scale), strict=True)
        return leaked_most(scale, [value if passes else None for value, passes in pairs], self.raw.get(metric, []))

    def passing(self, metric: str, scale: Scale) -> list[bool]:
        """Which of the images, refined where they were, pass their controls; all where there are none."""
        values = self.metrics.get(metric, [])
        lead = 0.0 if scale.sure is None else LEAD * abs(scale.sure[1] - scale.sure[0])
        ahead = lead if scale.higher_leaks else -lead
        beaten = [
            [
                other is None or value is None or scale.beyond(value, other + ahead)
                for value, other in zip(values, each, strict=False)
            ]
            for control in self.controls.values()
            if (each := control.get(metric)) is not None
        ]
        signs = [*beaten, *([list(self.kept)] if self.kept else [])]
        return [all(sign[i] for sign in signs if i < len(sign)) for i in range(len(values))]

    def judged(self, metric: str, scale: Scale) -> list[Version | None]:
        """Whether each image is judged raw or refined; None where nothing was refined."""
        raw, refined = self.raw.get(metric, []), self.metrics.get(metric, [])
        if not raw:
            return [None] * len(refined)
        chosen = zip(refined, raw, self.values(metric, scale), self.passing(metric, scale), strict=False)
        return ["refined" if passes and now == value != before else "raw" for now, before, value, passes in chosen]

    def by_refinement(self, metric: str, scale: Scale, threshold: float) -> list[bool]:
        """Which images are recovered after their refinement, and were not before it."""
        if not self.raw:
            return [False] * len(self.metrics.get(metric, []))
        before = ImageScores(self.raw, blind=self.blind).recovered(metric, scale, threshold)
        return [now and not then for now, then in zip(self.recovered(metric, scale, threshold), before, strict=True)]

    def imagined(self, metric: str, scale: Scale, threshold: float) -> list[bool]:
        """Which images lie beyond a threshold after their refinement alone, and fail its controls."""
        refined = [v is not None and scale.beyond(v, threshold) for v in self.metrics.get(metric, [])]
        counted = zip(refined, self.passing(metric, scale), self.recovered(metric, scale, threshold), strict=True)
        return [over and not passes and not hit for over, passes, hit in counted]

    def beyond(self, metric: str, scale: Scale, threshold: float) -> list[bool]:
        """Which images lie beyond a threshold."""
        return [value is not None and scale.beyond(value, threshold) for value in self.values(metric, scale)]

    def recovered(self, metric: str, scale: Scale, threshold: float) -> list[bool]:
        """Which images lie beyond a threshold and clearly ahead of every guess; of one blend a single image counts."""
        return self._one_of_each_blend(self.ahead(metric, scale, threshold), self.values(metric, scale), scale)

    def ahead(self, metric: str, scale: Scale, threshold: float) -> list[bool]:
        """The same where every blend counts for each image that it shows."""
        lead = 0.0 if scale.sure is None else LEAD * abs(scale.sure[1] - scale.sure[0])
        return self.earned(metric, scale, threshold, lead)

    def _one_of_each_blend(self, hits: list[bool], values: Sequence[float | None], scale: Scale) -> list[bool]:
        """Return the hits, of which blends of the same images keep the best alone."""
        counted = list(hits)
        taken: list[set[int]] = []
        sign = -1 if scale.higher_leaks else 1
        order = sorted((i for i, hit in enumerate(hits) if hit), key=lambda i: sign * (values[i] or 0.0))
        for i in order:
            members = set(self.blends[i]) if i < len(self.blends) else set()
            if members and any(members & other for other in taken):
                counted[i] = False
            elif members:
                taken.append(members)
        return counted

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

    def partly(self, metric: str, threshold: float, scales: Mapping[str, Scale]) -> list[bool]:
        """Which images are not recovered, but come near by this metric or are recovered by another."""
        scale = scales[metric]
        hits = self.recovered(metric, scale, threshold)
        signs = [self.near(metric, scale, threshold)]
        others = {name: scales[name] for name in self.metrics if name != metric}
        signs += [self.earned(name, other, other.sure[1]) for name, other in others.items() if other.sure is not None]
        return [not hit and any(seen[i] for seen in signs if i < len(seen)) for i, hit in enumerate(hits)]
