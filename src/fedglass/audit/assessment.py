"""The assessment of a reconstruction: its scores against blind guesses, and its energy against the truth's.

Everything here may look at the truth, and nothing of it reaches an attack. No gate is applied: a record holds figures.

Every score is compared with the best blind guess, which needs no message. A guess is paired with the originals as
freely as a reconstruction, or more so.

A picture that a learned model refined is compared with controls. A model of faces makes a face out of anything, and a
perceptual metric likes faces. So the refined picture must beat what the same model draws from another picture, and what
it draws untrained; and it must still be nearest to the true image that the raw picture was nearest to.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.attack.attack import refined
from fedglass.attack.best_of import AnyAttack, refinements_of
from fedglass.attack.parts import GeneratesImages, Learned, Refine, parts_of
from fedglass.audit.public_data import Public
from fedglass.audit.scoring import (
    blends_of,
    decoys,
    energy_at,
    grey,
    in_pixel_range,
    match_private,
    score_private,
    shown_transformed,
)
from fedglass.audit.target import Target
from fedglass.core.losses import class_numbers, grouping, is_class_labels, not_ignored
from fedglass.core.metric_scale import scale_of
from fedglass.core.rng import stream
from fedglass.core.thresholds import DECOY_CONTRAST
from fedglass.core.types import Observation, Reconstruction
from fedglass.federation.truth import Examples, Truth
from fedglass.metrics.catalogue import Matching, Scores, label_errors, score
from fedglass.verdict.images import ImageScores

SLOW_METRICS = ("lpips",)
"""Metrics that are not computed for guesses."""
IMAGINED = "drawings of random codes"
SAMPLE = 64
"""Public images on which guesses are tried."""


def best_guess(
    observation: Observation,
    truth: Truth,
    labels: Tensor,
    metrics: Sequence[str],
    public: Public | None,
    attack: object = None,
) -> tuple[dict[str, tuple[float, ...]], dict[str, tuple[str, ...]]]:
    """Return scores and names of the best guess for each metric and image; `labels` are those that the attack found."""
    count = len(truth.private.images)
    scored = scored_guesses(observation, truth, labels, metrics, public, attack)
    best = {
        metric: [_best(metric, [(name, values[metric][i]) for name, values in scored.items()]) for i in range(count)]
        for metric in scored["grey"]
    }
    values = {metric: tuple(value for _, value in by_image) for metric, by_image in best.items()}
    return values, {metric: tuple(name for name, _ in by_image) for metric, by_image in best.items()}


def scored_guesses(
    observation: Observation,
    truth: Truth,
    labels: Tensor,
    metrics: Sequence[str],
    public: Public | None = None,
    attack: object = None,
) -> dict[str, Mapping[str, tuple[float, ...]]]:
    """Return the scores of each guess: guess -> metric -> score of each private image."""
    cheap, private = [name for name in metrics if name not in SLOW_METRICS], truth.private.images
    tried = guesses(observation, truth, labels, public, attack)
    return {name: score(images, private, cheap, matching).values for name, (images, matching) in tried.items()}


def _best(metric: str, reached: Sequence[tuple[str, float]]) -> tuple[str, float]:
    finite = [(name, value) for name, value in reached if not math.isnan(value)]
    if not finite:
        return "", math.nan
    best = scale_of(metric).best([value for _, value in finite])
    return next((name, value) for name, value in finite if value == best)


def guesses(
    observation: Observation, truth: Truth, labels: Tensor, public: Public | None = None, attack: object = None
) -> dict[str, tuple[Tensor, Matching]]:
    """Return the blind guesses by name: images that need no message, and how they are matched.

    They are grey, black, each image's mean colour, the nearest of the adversary's own images, means of public data, and
    what a decoder that the attack uses draws from random codes. The flat colour and the nearest image are chosen by the
    truth, which makes them the best of their kind. The class means are those of the labels that the attack found, and
    are matched as a reconstruction is; so are the drawings.
    """
    private = truth.private.images
    same = Matching(tuple(range(len(private))))
    flat = private.mean(dim=(-2, -1), keepdim=True).expand_as(private)
    named = {
        "grey": (grey(observation, len(private)).cpu(), same),
        "black": (torch.full_like(private, observation.knows.low), same),
        "the best flat colour": (flat, same),
    }
    if observation.own is not None:
        own_images = observation.own.images.detach().cpu()
        nearest = torch.stack([(own_images - image).square().flatten(1).mean(1).argmin() for image in private])
        named["the nearest of its own images"] = own_images[nearest], same
    if public is not None:
        named["the mean of public images"] = public.mean.expand_as(private), same
    if public is not None and public.of_class:
        of_each = torch.stack([public.of_class.get(int(label), public.mean) for label in labels])
        named["the means of the classes found"] = of_each, match_private(of_each, truth)
    decoders = dict.fromkeys(part for part in parts_of(attack) if isinstance(part, GeneratesImages))
    for i, part in enumerate(decoders, start=1):  # each counts once
        drawn = part.imagined(observation, len(truth.images), stream(0, "imagined")).cpu()
        named[IMAGINED if i == 1 else f"{IMAGINED} ({i})"] = drawn, match_private(drawn, truth)
    return named


def guessed_public(pool: Examples, metrics: Sequence[str]) -> dict[str, list[float]]:
    """Return what the best guess reaches for public images: the mean of the others, of its class, or its own colour.

    Where a guess passes the gate for such images, the gate asks for less than such data give away by themselves.
    """
    rows = torch.linspace(0, len(pool.labels) - 1, min(len(pool.labels), SAMPLE)).long()
    images = pool.images[rows]
    same = Matching(tuple(range(len(rows))))
    tried = [
        images.mean(dim=(-2, -1), keepdim=True).expand_as(images),
        _means_of_others(pool, torch.zeros_like(grouping(pool.labels)), rows),
        _means_of_others(pool, grouping(pool.labels), rows),
    ]
    cheap = [name for name in metrics if name not in SLOW_METRICS]
    values = [score(guess, images, cheap, same).values for guess in tried]
    shared = [name for name in cheap if all(name in reached for reached in values)]  # SSIM needs larger images
    columns = {name: zip(*(reached[name] for reached in values), strict=True) for name in shared}
    return {
        name: [scale_of(name).best(values_of_image) for values_of_image in column] for name, column in columns.items()
    }


def _means_of_others(pool: Examples, groups: Tensor, rows: Tensor) -> Tensor:
    """Return the mean of all other images of the same group; black where there is no other.  # (rows, c, h, w)"""
    kinds, places = torch.unique(groups, return_inverse=True)
    sums = torch.zeros(len(kinds), *pool.images.shape[1:]).index_add_(0, places, pool.images)
    counts = (places.bincount()[places[rows]] - 1).clamp(min=1).view(-1, 1, 1, 1)
    means: Tensor = (sums[places[rows]] - pool.images[rows]) / counts
    return means


ANOTHER, UNTRAINED = "the refinement of another image", "an untrained model's refinement"
OTHERS = 3
"""Other images that each truth is compared with, at most; the median of their scores counts."""

Figures = Mapping[str, Sequence[float]]


def refinement_controls(
    attack: AnyAttack, observation: Observation, reconstruction: Reconstruction, truth: Truth, scores: Scores, seed: int
) -> tuple[dict[str, Figures], tuple[bool, ...]]:
    """Return the scores of the controls of a learned refinement, and which refined pictures kept their identity.

    Both are empty where no learned model refined the reconstruction.
    """
    parts = refinements_of(attack)
    if reconstruction.raw is None or not any(isinstance(part, Learned) for part in parts):
        return {}, ()
    names, private = list(scores.values), truth.private.images
    partners = scores.matching.partner
    blank = tuple(part.untrained() if isinstance(part, Learned) else part for part in parts)
    drawn = in_pixel_range(
        refined(blank, reconstruction.raw, reconstruction.labels, observation.knows, seed), observation
    )
    controls = {
        ANOTHER: _another(parts, observation, reconstruction, private, partners, names, seed),
        UNTRAINED: score(drawn, private, names, Matching(partners)).values,
    }
    raw, shown = (in_pixel_range(images, observation) for images in (reconstruction.raw, reconstruction.images))
    return controls, _identity_preserved(raw, shown, truth, partners)


def _another(
    parts: tuple[Refine, ...],
    observation: Observation,
    reconstruction: Reconstruction,
    private: Tensor,
    partners: Sequence[int | None],
    names: Sequence[str],
    seed: int,
) -> Figures:
    """Return the scores of other pictures' refinements against each truth: the median of a few, as two may be alike."""
    count = len(reconstruction.images)
    if count == 1:
        assert reconstruction.raw is not None, "a refined reconstruction keeps what it was made of"
        drawn = refined(
            parts, other_picture(reconstruction.raw, observation), reconstruction.labels, observation.knows, seed
        )
        return score(in_pixel_range(drawn, observation), private, names, Matching(tuple(partners))).values
    shown = in_pixel_range(reconstruction.images, observation)
    shifts = range(1, min(OTHERS, count - 1) + 1)
    scores_by_shift = [
        score(shown, private, names, Matching(tuple(None if p is None else (p + shift) % count for p in partners)))
        for shift in shifts
    ]
    return {
        name: tuple(
            statistics.median(values) for values in zip(*(s.values[name] for s in scores_by_shift), strict=True)
        )
        for name in names
    }


def other_picture(raw: Tensor, observation: Observation) -> Tensor:
    """Return a picture to refine instead of a single one: the adversary's own, or the raw one with its halves swapped.

    A picture that looks the same with its halves swapped is inverted.  # (1, c, h, w)
    """
    if observation.own is not None and len(observation.own.images):
        return observation.own.images[:1].to(raw)
    half = (raw.shape[-2] // 2, raw.shape[-1] // 2)
    swapped = raw.roll(half, dims=(-2, -1))
    contrast = float((raw - raw.mean(dim=(-2, -1), keepdim=True)).square().mean())
    if float((swapped - raw).square().mean()) > DECOY_CONTRAST * contrast:
        return swapped
    return observation.knows.high + observation.knows.low - raw


def _identity_preserved(raw: Tensor, shown: Tensor, truth: Truth, partners: Sequence[int | None]) -> tuple[bool, ...]:
    """Return which refined pictures are nearest to their true image, or to that of the raw picture."""
    private = truth.private.images
    candidates = torch.cat([truth.images, *decoys(private)])
    before, after = _nearest(raw, candidates), _nearest(shown, candidates)
    return tuple(p is not None and after[p] in (i, before[p]) for i, p in enumerate(partners))


def _nearest(images: Tensor, candidates: Tensor) -> list[int]:
    flat = candidates.flatten(1)
    return [int((flat - image.flatten()).square().mean(1).argmin()) for image in images]


@dataclass(frozen=True, eq=False)
class Assessment:
    """Scores against truth, guesses and controls, in the order of the true images."""

    scores: ImageScores
    matching: Matching
    skipped: Mapping[str, str]
    """Metrics that were not computed, with the reason."""
    shown: Tensor  # (n, c, h, w): what was scored
    shown_raw: Tensor | None  # (n, c, h, w)
    """The images before they were refined, matched separately; None where they were not refined."""
    shown_transformed: tuple[bool, ...]
    """For each image, whether it is shown in another contrast, as a negative, mirrored or moved."""
    labels: tuple[int, ...]
    """Recovered labels, those of the matched images first."""
    label_errors: int | None
    """None where the targets are not classes."""
    energy_truth: float | None
    energy_blind: float | None
    """The energy of plain grey images under the labels that the attack found."""


def assess(
    attack: AnyAttack,
    target: Target,
    reconstruction: Reconstruction,
    metrics: Sequence[str],
    seed: int,
    *,
    played: bool = True,
) -> Assessment:
    """Score a reconstruction; where no attack was played, a guess replaces it, and there are no energies."""
    observation, truth, labels = target.observation, target.known_truth, reconstruction.labels
    private, measured = truth.private.images, played and not reconstruction.method and len(reconstruction.images) > 0
    images = in_pixel_range(reconstruction.images, observation)
    scores = score_private(images, truth, metrics)
    matching, shown = scores.matching, scores.matching.apply(images)
    raw = None if reconstruction.raw is None else in_pixel_range(reconstruction.raw, observation)
    # Matched again: a refinement that destroyed its images does not tell which original each belonged to.
    scores_raw = None if raw is None else score_private(raw, truth, metrics)
    blind = best_guess(observation, truth, labels, metrics, target.public, attack)
    controls = refinement_controls(attack, observation, reconstruction, truth, scores, seed)
    partners = [p for p in matching.partner if p is not None]
    order = [*partners, *(i for i in range(len(labels)) if i not in set(partners))]
    true_labels = not_ignored(observation.knows.objective, truth.labels) if is_class_labels(truth.labels) else None
    versions = [version for version in (reconstruction.images, reconstruction.raw) if version is not None]
    return Assessment(
        scores=ImageScores(
            scores.values, {} if scores_raw is None else scores_raw.values, *blind, *controls, blends_of(shown, private)
        ),
        matching=matching,
        skipped=scores.skipped,
        shown=shown,
        shown_raw=None if raw is None or scores_raw is None else scores_raw.matching.apply(raw),
        shown_transformed=tuple(shown_transformed(torch.cat(versions), private)),
        labels=tuple(class_numbers(labels[order])),
        label_errors=None if true_labels is None else label_errors(labels, true_labels, observation.knows.classes),
        energy_truth=energy_at(attack, observation, truth.images, truth.labels, reconstruction) if measured else None,
        energy_blind=energy_at(attack, observation, grey(observation, len(labels)), labels, reconstruction)
        if measured
        else None,
    )
