"""The summary of the records: means with 95 % intervals, shares recovered, and the worst cases."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import Field, ValidationError

from fedglass.core.errors import AuditError, FedglassError
from fedglass.core.files import read_file, write_atomic
from fedglass.core.metric_scale import Scale
from fedglass.verdict.directory import MOST_BYTES, refuse_other_version, version_in
from fedglass.verdict.doubts import Frozen
from fedglass.verdict.gate import Gate, attacks_in, known_scales
from fedglass.verdict.images import ImageScores
from fedglass.verdict.judge import judge
from fedglass.verdict.records import Picture, Record, grouped

T = TypeVar("T")
RESAMPLES = 2000
TAKEN = ("key", "attack", "view", "client", "round", "repeat", "oracle", "method", "explains")
"""Fields that an image copies from its record."""
WORST = 12
"""Number of worst images in a summary."""


class Interval(Frozen):
    """A mean and its 95 % interval; low and high are None if there is only one unit."""

    mean: float
    low: float | None
    high: float | None
    images: int
    resampled: Literal["cases", "images"]
    """The resampled units: cases, or the images of the only case."""


class AttackFigures(Frozen):
    """The figures of one attack, over all its views or in one of them."""

    attack: str
    view: str | None
    cases: int
    failed: int
    images: int
    recovered: int
    share: Interval | None
    metrics: dict[str, Interval]
    label_errors: int | None
    labels: int
    """Number of labels in which the errors were counted."""
    seconds: float
    """Mean over the cases."""
    oracle: bool
    utility: dict[str, float]


class ScoredImage(Frozen):
    """One image of one record, with its scores."""

    key: str
    attack: str
    view: str
    client: str
    round: int
    repeat: int
    image: int
    scores: dict[str, float | None]
    scores_raw: dict[str, float | None] = Field(default_factory=dict)
    """The same before the refinement; empty if the image was not refined."""
    judged: Literal["raw", "refined"] | None = None
    """The version that the gate judges; null if the image was not refined."""
    blind: dict[str, float | None] = Field(default_factory=dict)
    """Metric -> score of the best guess without the message."""
    blind_guess: dict[str, str] = Field(default_factory=dict)
    """Metric -> name of that guess."""
    picture: Picture | None
    oracle: bool
    recovered: bool = False
    near: bool = False
    """Whether the image does not count as recovered, but is partly recognisable."""
    owner: str | None = None
    """The client that the image belongs to, if the record says."""
    method: str = ""
    """The exact method that read it; empty for a search."""
    explains: bool = False
    """Whether a check confirmed that the images of the exact method explain the message."""


class Summary(Frozen):
    """`summary.json`: derived only from the records and the gate, so it can always be rebuilt."""

    schema_version: Literal[3] = 3
    gate: dict[str, str | float | bool]
    scales: dict[str, Scale] = Field(default_factory=dict)
    """The scales of the metrics, so that a report does not need the code of the metrics."""
    planned: int
    cases: int
    verdict: dict[str, str | bool | int | float | list[str] | None]
    attacks: list[AttackFigures]
    views: list[AttackFigures] = Field(default_factory=list)
    """The same by view, if an attack was run on more than one."""
    worst: list[ScoredImage]

    def judged_by(self) -> Gate:
        """Return the gate with the scales of this summary."""
        fields: dict[str, Any] = self.gate
        return Gate(**fields, scales=self.scales)

    def write(self, path: Path) -> None:
        """Replace `summary.json` in one step."""
        write_atomic(path, json.dumps(self.model_dump(mode="json"), allow_nan=False, indent=1) + "\n")


def summarise(
    records: Sequence[Record], gate: Gate, planned: int | None = None, scales: Mapping[str, Scale] | None = None
) -> Summary:
    """Return the summary; `planned` is the number of cases in the plan, if more were planned than have run."""
    total = len(records) if planned is None else planned
    verdict = judge(records, gate, missing=max(0, total - len(records)))
    return Summary(
        gate={limit.name: getattr(gate, limit.name) for limit in fields(gate) if limit.compare},
        scales=scales_of(records, {**(scales or {}), gate.metric: gate.scale}),
        planned=total,
        cases=len(records),
        verdict={
            "sentence": verdict.sentence,
            **vars(verdict),
            "limits": list(verdict.limits),
            "by_value": list(verdict.by_value),
        },
        attacks=by_attack(records, gate),
        views=by_view(records, gate),
        worst=rank(records, gate)[:WORST],
    )


def read_summary(path: Path) -> Summary:
    """Read a `summary.json`, and refuse one with an invalid gate."""
    try:
        data = read_file(path, MOST_BYTES)
    except OSError as error:
        raise AuditError(f"Cannot read {path}: {error.strerror}; run the audit again to have it rewritten.") from error
    try:
        summary = Summary.model_validate_json(data)
        summary.judged_by()
    except (ValidationError, KeyError, TypeError, FedglassError) as error:
        refuse_other_version(path.parent, version_in(data))
        raise AuditError(f"{path} is damaged: delete it and run the audit again to have it rewritten.") from error
    return summary


def scales_of(records: Iterable[Record], given: Mapping[str, Scale]) -> dict[str, Scale]:
    """Return the scale of every metric in the records: given, or looked up, or higher leaks if it is unknown."""
    names = dict.fromkeys(name for record in records for name in (*record.metrics, *record.skipped_metrics))
    return {**given, **known_scales(names, given)}


def by_attack(records: Sequence[Record], gate: Gate) -> list[AttackFigures]:
    """Return one group per attack, the one that leaked most first."""
    parts = grouped(attacks_in(records), lambda r: r.attack)
    groups = [_group(name, None, chosen, gate) for name, chosen in parts.items()]
    return sorted(groups, key=lambda g: _leakage(g, gate), reverse=True)


def by_view(records: Sequence[Record], gate: Gate) -> list[AttackFigures]:
    """Return one group per attack and view; empty unless an attack was run on several views."""
    attacks = attacks_in(records)
    parts = grouped(attacks, lambda r: (r.attack, r.view))
    if len(parts) == len({record.attack for record in attacks}):
        return []
    return [_group(attack, view, chosen, gate) for (attack, view), chosen in parts.items()]


def rank(records: Iterable[Record], gate: Gate) -> list[ScoredImage]:
    """Return every scored image, the recovered ones first, and of these the one that leaked most by the gate's metric.

    A refined image has the better of its two scores. A guess without the message may score higher than an attack.
    """
    scored = [pair for record in records if record.status == "done" for pair in _scored_images(record, gate)]
    sign = -1 if gate.scale.higher_leaks else 1
    return [case for _, case in sorted(scored, key=lambda pair: (not pair[1].recovered, sign * pair[0]))]


def interval(samples: Sequence[Sequence[float]]) -> Interval:
    """Return the mean of all values with the 95 % percentile bootstrap interval [Efron, 1979].

    The bootstrap draws whole samples (cases), since images of one case share a model and a message and are not
    independent. Of a single case it draws the images, and a single image has no interval.

    >>> interval([[1.0, 3.0], [2.0]]).mean, interval([[5.0]]).low
    (2.0, None)
    """
    filled = [sample for sample in samples if len(sample)]
    units = filled if len(filled) > 1 else [[value] for value in filled[0]]
    sums, counts = np.array([sum(u) for u in units]), np.array([len(u) for u in units])
    low = high = None
    if len(units) > 1:
        drawn = np.random.default_rng(0).integers(len(units), size=(RESAMPLES, len(units)))
        means = sums[drawn].sum(1) / counts[drawn].sum(1)
        low, high = (float(v) for v in np.quantile(means, [0.025, 0.975]))
    mean = float(sums.sum() / counts.sum())
    resampled: Literal["cases", "images"] = "cases" if len(filled) > 1 else "images"
    return Interval(mean=mean, low=low, high=high, images=int(counts.sum()), resampled=resampled)


def share_interval(samples: Sequence[Sequence[bool]]) -> Interval:
    """Return the share of hits; the interval covers both the bootstrap's and Wilson's [Wilson, 1927].

    The bootstrap alone would claim certainty where all images or none were recovered.

    >>> round(share_interval([[False] * 8]).high, 2)
    0.32
    """
    drawn = interval([[float(hit) for hit in sample] for sample in samples])
    n, p, z = drawn.images, drawn.mean, 1.959964
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low = min(max(0.0, centre - half), p, p if drawn.low is None else drawn.low)
    high = max(min(1.0, centre + half), p, p if drawn.high is None else drawn.high)
    return drawn.model_copy(update={"low": low, "high": high})


def _group(attack: str, view: str | None, records: Sequence[Record], gate: Gate) -> AttackFigures:
    done = [record for record in records if record.status == "done"]
    names = dict.fromkeys(name for record in done for name in record.metrics)
    values = {name: [_without_none(record.metrics.get(name, [])) for record in done] for name in names}
    judged = [zip(gate.hits(ImageScores.of(record)), gate.scores(record), strict=True) for record in done]
    hits = [[hit for hit, value in pairs if value is not None] for pairs in judged]
    labelled = [record for record in done if record.label_errors is not None]
    return AttackFigures(
        attack=attack,
        view=view,
        cases=len(records),
        failed=len(records) - len(done),
        images=sum(map(len, hits)),
        recovered=sum(map(sum, hits)),
        share=share_interval(hits) if any(hits) else None,
        metrics={name: interval(samples) for name, samples in values.items() if any(samples)},
        label_errors=sum(record.label_errors or 0 for record in labelled) if labelled else None,
        labels=sum(len(record.labels_true) for record in labelled),
        seconds=float(np.mean([record.seconds for record in records])),
        oracle=any(record.oracle for record in records),
        utility=_mean_utility(done),
    )


def _leakage(group: AttackFigures, gate: Gate) -> tuple[float, float]:
    """Return a sort key that grows with the leak; attacks without a score come last."""
    if group.share is None or gate.metric not in group.metrics:
        return -1.0 if group.share is None else group.share.mean, 0.0
    mean = group.metrics[gate.metric].mean
    return group.share.mean, mean if gate.scale.higher_leaks else -mean


def _mean_utility(records: Sequence[Record]) -> dict[str, float]:
    names = dict.fromkeys(name for record in records for name in record.utility)
    measured = {name: _without_none([record.utility.get(name) for record in records]) for name in names}
    return {name: float(np.mean(values)) for name, values in measured.items() if values}


def _without_none(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _at(index: int, values: Mapping[str, Sequence[T]]) -> dict[str, T]:
    """Return the values of one image by metric."""
    return {name: by_image[index] for name, by_image in values.items() if index < len(by_image)}


def _scored_images(record: Record, gate: Gate) -> Iterator[tuple[float, ScoredImage]]:
    """Yield each image that has a score, with that score; what all images share is computed once."""
    scores = ImageScores.of(record)
    common = {name: getattr(record, name) for name in TAKEN}
    recovered, near = gate.hits(scores), scores.near(gate.metric, gate.scale, gate.threshold)
    judged = scores.judged(gate.metric, gate.scale)
    for index, value in enumerate(scores.values(gate.metric, gate.scale)):
        if value is None:
            continue
        yield (
            value,
            ScoredImage(
                **common,
                image=index,
                scores=_at(index, record.metrics),
                scores_raw=_at(index, record.metrics_raw),
                judged=judged[index],
                blind=_at(index, record.blind),
                blind_guess=_at(index, record.blind_guess),
                picture=record.pictures[index] if index < len(record.pictures) else None,
                recovered=recovered[index],
                near=near[index],
                owner=record.owners[index] if index < len(record.owners) else None,
            ),
        )
