"""What is reached without the message: every score stands beside the best of these guesses.

Everything here may look at the truth. A guess is paired with the originals as freely as a reconstruction, or more so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedglass.attack.needs import parts_of
from fedglass.attack.parts import Imagines
from fedglass.audit.judgement import grey, paired
from fedglass.audit.public import Public
from fedglass.core.rng import stream
from fedglass.core.scale import scale_of
from fedglass.core.types import Observation
from fedglass.metrics.catalogue import score
from fedglass.metrics.matching import Matching
from fedglass.rounds.truth import Examples, Truth

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
    decoders = dict.fromkeys(part for part in parts_of(attack) if isinstance(part, Imagines))
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
