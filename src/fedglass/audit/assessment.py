"""What may be said of a reconstruction: its scores beside what guesses reach, and its energy beside the truth's.

Everything here may look at the truth, and nothing of it reaches an attack. No gate is asked: a record holds figures.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedglass.attack.attack import refined
from fedglass.attack.best_of import AnyAttack, refinements_of
from fedglass.attack.needs import parts_of
from fedglass.attack.parts import GeneratesImages, Learned, Refine
from fedglass.audit.public import Public
from fedglass.audit.scoring import (
    OTHER,
    Judgement,
    blends_of,
    clipped,
    decoys,
    energy_blind,
    grey,
    judge,
    paired,
    shown_otherwise,
)
from fedglass.audit.target import Target
from fedglass.core.rng import stream
from fedglass.core.scale import scale_of
from fedglass.core.types import Observation, Reconstruction
from fedglass.federation.truth import Examples, Truth
from fedglass.metrics.catalogue import Scores, score
from fedglass.metrics.matching import Matching
from fedglass.verdict.images import ImageScores

# What is reached without the message: every score stands beside the best of these guesses.
#
# Everything here may look at the truth. A guess is paired with the originals as freely as a reconstruction, or more so.


DEAR = ("lpips",)
"""Metrics that are not computed for guesses."""
IMAGINED = "drawings of random codes"
SAMPLE = 64
"""Public images on which guesses are tried."""


@dataclass(frozen=True, eq=False)
class Guess:
    """Pictures that need no message."""

    name: str
    images: Tensor  # (m, c, h, w)
    matching: Matching


@dataclass(frozen=True, eq=False)
class BestGuess:
    """Metric by metric and image by image, what the best guess reaches, and which one that is."""

    values: dict[str, tuple[float, ...]] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)


def best_guess(
    seen: Observation,
    truth: Truth,
    labels: Tensor,
    metrics: Sequence[str],
    public: Public | None,
    attack: object = None,
) -> BestGuess:
    """The best of all guesses; `labels` are those that the attack found."""
    count = len(truth.private.images)
    scored = scored_guesses(seen, truth, labels, metrics, public, attack)
    best = {
        metric: [_best(metric, [(name, values[metric][i]) for name, values in scored.items()]) for i in range(count)]
        for metric in scored["grey"]
    }
    return BestGuess(
        {metric: tuple(value for _, value in found) for metric, found in best.items()},
        {metric: tuple(name for name, _ in found) for metric, found in best.items()},
    )


def scored_guesses(
    seen: Observation,
    truth: Truth,
    labels: Tensor,
    metrics: Sequence[str],
    public: Public | None = None,
    attack: object = None,
) -> dict[str, Mapping[str, tuple[float, ...]]]:
    """Guess -> metric -> what it reaches for each private image."""
    cheap, private = [name for name in metrics if name not in DEAR], truth.private.images
    tried = guesses(seen, truth, labels, public, attack)
    return {guess.name: score(guess.images, private, cheap, guess.matching).values for guess in tried}


def _best(metric: str, reached: Sequence[tuple[str, float]]) -> tuple[str, float]:
    known = [(name, value) for name, value in reached if not math.isnan(value)]
    if not known:
        return "", math.nan
    best = scale_of(metric).best([value for _, value in known])
    return next((name, value) for name, value in known if value == best)


def guesses(
    seen: Observation, truth: Truth, labels: Tensor, public: Public | None = None, attack: object = None
) -> list[Guess]:
    """Grey, black, each image's own mean colour, the nearest of the adversary's own, means of public data, and what a
    decoder draws that the attack uses.

    The flat colour and the nearest image are chosen by the truth, which makes them the best of their kind. The class
    means are those of the labels that the attack found, and are matched as a reconstruction is; so are the drawings.
    """
    private = truth.private.images
    same = Matching(tuple(range(len(private))))
    flat = private.mean(dim=(-2, -1), keepdim=True).expand_as(private)
    found = [
        Guess("grey", grey(seen, len(private)).cpu(), same),
        Guess("black", torch.full_like(private, seen.knows.low), same),
        Guess("the best flat colour", flat, same),
    ]
    if seen.own is not None:
        own = seen.own.images.detach().cpu()
        nearest = torch.stack([(own - image).square().flatten(1).mean(1).argmin() for image in private])
        found.append(Guess("the nearest of its own images", own[nearest], same))
    if public is not None:
        found.append(Guess("the mean of public images", public.mean.expand_as(private), same))
    if public is not None and public.of_class:
        of_each = torch.stack([public.of_class.get(int(label), public.mean) for label in labels])
        found.append(Guess("the means of the classes found", of_each, paired(of_each, truth)))
    return [*found, *_imagined(seen, truth, attack)]


def _imagined(seen: Observation, truth: Truth, attack: object) -> list[Guess]:
    """What the decoders that an attack uses draw of random codes; one that is used under several rules is one."""
    decoders = dict.fromkeys(part for part in parts_of(attack) if isinstance(part, GeneratesImages))
    drawn = [part.imagined(seen, len(truth.images), stream(0, "imagined")).cpu() for part in decoders]
    named = [IMAGINED, *(f"{IMAGINED} ({i + 2})" for i in range(len(drawn) - 1))]
    return [Guess(name, images, paired(images, truth)) for name, images in zip(named, drawn, strict=False)]


def guessed_public(pool: Examples, metrics: Sequence[str]) -> dict[str, list[float]]:
    """Return what the best guess reaches for public images: the mean of the others, of its class, or its own colour.

    Where a guess passes the gate for such images, the gate asks for less than such data give away by themselves.
    """
    rows = torch.linspace(0, len(pool.labels) - 1, min(len(pool.labels), SAMPLE)).long()
    images = pool.images[rows]
    same = Matching(tuple(range(len(rows))))
    tried = [
        images.mean(dim=(-2, -1), keepdim=True).expand_as(images),
        _means_of_others(pool, torch.zeros_like(pool.labels), rows),
        _means_of_others(pool, pool.labels, rows),
    ]
    cheap = [name for name in metrics if name not in DEAR]
    values = [score(guess, images, cheap, same).values for guess in tried]
    known = [name for name in cheap if all(name in reached for reached in values)]  # SSIM needs larger images
    columns = {name: zip(*(reached[name] for reached in values), strict=True) for name in known}
    return {name: [scale_of(name).best(each) for each in column] for name, column in columns.items()}


def _means_of_others(pool: Examples, groups: Tensor, rows: Tensor) -> Tensor:
    """The mean of all other images of the same group; black where there is no other.  # (rows, c, h, w)"""
    kinds, places = torch.unique(groups, return_inverse=True)
    sums = torch.zeros(len(kinds), *pool.images.shape[1:]).index_add_(0, places, pool.images)
    others = (places.bincount()[places[rows]] - 1).clamp(min=1).view(-1, 1, 1, 1)
    means: Tensor = (sums[places[rows]] - pool.images[rows]) / others
    return means


# What a learned refinement does without the image: the controls that a refined picture must beat.
#
# A model of faces makes a face out of anything, and a perceptual metric likes faces. So a refined picture is compared
# with what the same model draws from another picture, and with what it draws untrained; and it must still be nearest to
# the true image that the raw picture was nearest to.


ANOTHER, UNTRAINED = "the refinement of another image", "an untrained model's refinement"
OTHERS = 3
"""Other images that each truth is compared with at most; the median of their scores counts."""

Figures = Mapping[str, Sequence[float]]


@dataclass(frozen=True, eq=False)
class Controls:
    """What the controls reach, by name and metric and image, and which refined pictures kept their identity."""

    values: Mapping[str, Figures] = field(default_factory=dict)
    kept: tuple[bool, ...] = ()


def controlled(
    attack: AnyAttack, seen: Observation, found: Reconstruction, truth: Truth, scores: Scores, seed: int
) -> Controls:
    """The controls of a reconstruction that a learned model refined; none of any other."""
    parts = refinements_of(attack)
    if found.raw is None or not any(isinstance(part, Learned) for part in parts):
        return Controls()
    names, private = list(scores.values), truth.private.images
    partners = scores.matching.partner
    blank = tuple(part.untrained() if isinstance(part, Learned) else part for part in parts)
    drawn = clipped(refined(blank, found.raw, found.labels, seen.knows, seed), seen)
    return Controls(
        {
            ANOTHER: _another(parts, seen, found, private, partners, names, seed),
            UNTRAINED: score(drawn, private, names, Matching(partners)).values,
        },
        _kept(clipped(found.raw, seen), clipped(found.images, seen), truth, partners),
    )


def _another(
    parts: tuple[Refine, ...],
    seen: Observation,
    found: Reconstruction,
    private: Tensor,
    partners: Sequence[int | None],
    names: Sequence[str],
    seed: int,
) -> Figures:
    """The scores of other pictures' refinements against each truth: the median over a few, since two may be alike."""
    count = len(found.images)
    if count == 1:
        assert found.raw is not None, "a refined reconstruction keeps what it was made of"
        drawn = refined(parts, other_picture(found.raw, seen), found.labels, seen.knows, seed)
        return score(clipped(drawn, seen), private, names, Matching(tuple(partners))).values
    shown = clipped(found.images, seen)
    shifts = range(1, min(OTHERS, count - 1) + 1)
    each = [
        score(shown, private, names, Matching(tuple(None if p is None else (p + shift) % count for p in partners)))
        for shift in shifts
    ]
    return {
        name: tuple(statistics.median(values) for values in zip(*(s.values[name] for s in each), strict=True))
        for name in names
    }


def other_picture(raw: Tensor, seen: Observation) -> Tensor:
    """A picture to refine in the place of a single one: the adversary's own, or the raw one with its halves swapped.

    One that looks the same with its halves swapped is inverted.  # (1, c, h, w)
    """
    if seen.own is not None and len(seen.own.images):
        return seen.own.images[:1].to(raw)
    half = (raw.shape[-2] // 2, raw.shape[-1] // 2)
    swapped = raw.roll(half, dims=(-2, -1))
    contrast = float((raw - raw.mean(dim=(-2, -1), keepdim=True)).square().mean())
    if float((swapped - raw).square().mean()) > OTHER * contrast:
        return swapped
    return seen.knows.high + seen.knows.low - raw


def _kept(raw: Tensor, shown: Tensor, truth: Truth, partners: Sequence[int | None]) -> tuple[bool, ...]:
    """Which refined pictures are nearest to their own true image, or to the one that the raw picture was nearest to."""
    private = truth.private.images
    candidates = torch.cat([truth.images, *decoys(private)])
    before, after = _nearest(raw, candidates), _nearest(shown, candidates)
    return tuple(p is not None and after[p] in (i, before[p]) for i, p in enumerate(partners))


def _nearest(images: Tensor, candidates: Tensor) -> list[int]:
    flat = candidates.flatten(1)
    return [int((flat - image.flatten()).square().mean(1).argmin()) for image in images]


@dataclass(frozen=True, eq=False)
class Question:
    """A reconstruction of which something is to be said, and all that is needed for it."""

    attack: AnyAttack
    target: Target
    truth: Truth
    found: Reconstruction
    metrics: tuple[str, ...]
    seed: int

    @property
    def seen(self) -> Observation:
        return self.target.observation


@dataclass(frozen=True, eq=False)
class Assessment:
    """The answer."""

    judged: Judgement
    scores: ImageScores
    otherwise: tuple[bool, ...]
    """Image by image, whether it is shown in another contrast, as a negative, mirrored or moved."""
    energy_blind: float | None = None


def assess(asked: Question, *, played: bool = True) -> Assessment:
    """Score a reconstruction; where no attack was played, a guess stands in for one, and there are no energies."""
    seen, found, truth = asked.seen, asked.found, asked.truth
    measured = played and not found.method and len(found.images) > 0
    judged = judge(asked.attack if measured else None, seen, found, truth, asked.metrics)
    raw = {} if judged.scores_raw is None else judged.scores_raw.values
    blind = best_guess(seen, truth, found.labels, asked.metrics, asked.target.public, asked.attack)
    control = controlled(asked.attack, seen, found, truth, judged.scores, asked.seed)
    blends = blends_of(judged.shown, truth.private.images)
    scores = ImageScores(judged.scores.values, raw, blind.values, blind.names, control.values, control.kept, blends)
    versions = [images for images in (found.images, found.raw) if images is not None]
    otherwise = shown_otherwise(torch.cat(versions), truth.private.images)
    energy = energy_blind(asked.attack, seen, found) if measured else None
    return Assessment(judged, scores, tuple(otherwise), energy)
