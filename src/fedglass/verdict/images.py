"""The judgement of single images: recovered, partly recognisable, or no better than a guess.

An image is recovered if its score passes the threshold and beats every guess that is made without the message. A
refined image has two versions, raw and refined. The one that leaked more counts, because a refinement may destroy what
the attack had recovered.

A learned model draws likely images out of anything. So an image that such a model refined counts only if it passes its
controls: it beats the same model started from another image, it beats the untrained model, and it still shows the image
that the raw version shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import Literal

from fedglass.core.metric_scale import Scale
from fedglass.verdict.records import Record

LEAD = 1 / 6
"""The lead over guesses that an image needs, as a share of the metric's undecided band: 1 dB of PSNR."""
Values = Mapping[str, Sequence[float | None]]
Version = Literal["raw", "refined"]


def leaked_most(scale: Scale, *versions: Sequence[float | None]) -> list[float | None]:
    """Return, for each image, the value of the version that leaked most; None where no version has a value.

    >>> leaked_most(Scale("PSNR"), [12.0, 25.0, None], [21.0, 24.0, None])
    [21.0, 25.0, None]
    """
    by_image = [[v for v in image if v is not None and not math.isnan(v)] for image in zip_longest(*versions)]
    return [scale.best(values) if values else None for values in by_image]


def _lead(scale: Scale) -> float:
    """Return the lead that an image needs over guesses and controls, towards the side that leaks."""
    lead = 0.0 if scale.sure is None else LEAD * abs(scale.sure[1] - scale.sure[0])
    return lead if scale.higher_leaks else -lead


@dataclass(frozen=True, eq=False)
class ImageScores:
    """The scores of a record's images, of guesses without the message, and of controls: fields of the record."""

    metrics: Values = field(default_factory=dict)
    metrics_raw: Values = field(default_factory=dict)
    """The scores before the images were refined; empty if none was refined."""
    blind: Values = field(default_factory=dict)
    """The scores of the best guess without the message."""
    blind_guess: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The name of that guess; empty if it was not stored."""
    controls: Mapping[str, Values] = field(default_factory=dict)
    """Name of a control of a learned refinement -> its scores; empty without such a refinement."""
    identity_preserved: Sequence[bool] = ()
    """For each image, whether the refined version still shows what the raw version shows."""
    blends: Sequence[Sequence[int]] = ()
    """For each image, the private images that its reconstruction blends; empty if it shows a single one."""

    @classmethod
    def of(cls, record: Record) -> ImageScores:
        return cls(**{scores.name: getattr(record, scores.name) for scores in fields(cls)})

    def values(self, metric: str, scale: Scale) -> list[float | None]:
        """Return the score by which each image is judged."""
        pairs = zip(self.metrics.get(metric, []), self.passing(metric, scale), strict=True)
        return leaked_most(
            scale, [value if passes else None for value, passes in pairs], self.metrics_raw.get(metric, [])
        )

    def passing(self, metric: str, scale: Scale) -> list[bool]:
        """Check which images pass their controls; without controls all do."""
        values = self.metrics.get(metric, [])
        beaten = [
            [
                other is None or value is None or scale.beyond(value, other + _lead(scale))
                for value, other in zip(values, control_values, strict=False)
            ]
            for control in self.controls.values()
            if (control_values := control.get(metric)) is not None
        ]
        signs = [*beaten, *([list(self.identity_preserved)] if self.identity_preserved else [])]
        return [all(sign[i] for sign in signs if i < len(sign)) for i in range(len(values))]

    def judged(self, metric: str, scale: Scale) -> list[Version | None]:
        """Return the version by which each image is judged; None where nothing was refined."""
        raw, refined = self.metrics_raw.get(metric, []), self.metrics.get(metric, [])
        if not raw:
            return [None] * len(refined)
        chosen = zip(refined, raw, self.values(metric, scale), self.passing(metric, scale), strict=False)
        return ["refined" if passes and now == value != before else "raw" for now, before, value, passes in chosen]

    def by_refinement(self, metric: str, scale: Scale, threshold: float) -> list[bool]:
        """Check which images are recovered after their refinement and were not before it."""
        if not self.metrics_raw:
            return [False] * len(self.metrics.get(metric, []))
        before = ImageScores(self.metrics_raw, blind=self.blind).recovered(metric, scale, threshold)
        return [now and not then for now, then in zip(self.recovered(metric, scale, threshold), before, strict=True)]

    def imagined(self, metric: str, scale: Scale, threshold: float) -> list[bool]:
        """Check which images pass the threshold only because of their refinement, and fail its controls."""
        refined = [v is not None and scale.beyond(v, threshold) for v in self.metrics.get(metric, [])]
        counted = zip(refined, self.passing(metric, scale), self.recovered(metric, scale, threshold), strict=True)
        return [over and not passes and not hit for over, passes, hit in counted]

    def beyond(self, metric: str, scale: Scale, threshold: float) -> list[bool]:
        """Check which images pass the threshold."""
        return [value is not None and scale.beyond(value, threshold) for value in self.values(metric, scale)]

    def recovered(self, metric: str, scale: Scale, threshold: float) -> list[bool]:
        """Check which images pass the threshold and clearly beat every guess; a blend counts for one image only."""
        return self._one_of_each_blend(self.ahead(metric, scale, threshold), self.values(metric, scale), scale)

    def ahead(self, metric: str, scale: Scale, threshold: float) -> list[bool]:
        """Check the same, but let a blend count for each image that it shows."""
        return self.earned(metric, scale, threshold, _lead(scale))

    def _one_of_each_blend(self, hits: list[bool], values: Sequence[float | None], scale: Scale) -> list[bool]:
        """Return the hits; of blends that share an image only the best remains."""
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
        """Check which images pass the threshold and beat every guess without the message by more than `lead`."""
        guesses = [*self.blind.get(metric, []), *[None] * len(self.metrics.get(metric, []))]
        pairs = zip(self.values(metric, scale), self.beyond(metric, scale, threshold), guesses, strict=False)
        return [
            over and (guess is None or math.isnan(guess) or scale.beyond(value or 0.0, guess + lead))
            for value, over, guess in pairs
        ]

    def near(self, metric: str, scale: Scale, threshold: float, lead: float = 0.0) -> list[bool]:
        """Check which images are not recovered, but lie in the upper half of the metric's undecided band or above it.

        An image above that band is recognisable, however high the plan sets the threshold.
        """
        hits = self.recovered(metric, scale, threshold)
        if scale.sure is None:
            return [False] * len(hits)
        half, sure = (scale.sure[0] + threshold) / 2, scale.sure[1]
        close = self.earned(metric, scale, sure if scale.beyond(half, sure) else half, lead)
        return [is_close and not hit for is_close, hit in zip(close, hits, strict=True)]

    def partly(
        self, metric: str, threshold: float, scales: Mapping[str, Scale], *, clearly: bool = False
    ) -> list[bool]:
        """Check which images are not recovered, but come near by this metric or are recovered by another one.

        Such images beat every guess, and `clearly` by as much as recovered ones must.
        """
        scale, leads = scales[metric], {name: _lead(by) if clearly else 0.0 for name, by in scales.items()}
        hits = self.recovered(metric, scale, threshold)
        signs = [self.near(metric, scale, threshold, leads[metric])]
        other_scales = {name: scales[name] for name in self.metrics if name != metric}
        signs += [
            self.earned(name, by, by.sure[1], leads[name]) for name, by in other_scales.items() if by.sure is not None
        ]
        return [not hit and any(sign[i] for sign in signs if i < len(sign)) for i, hit in enumerate(hits)]
