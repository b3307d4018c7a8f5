"""What a learned refinement does without the image: the controls that a refined picture must beat.

A model of faces makes a face out of anything, and a perceptual metric likes faces. So a refined picture is compared
with what the same model draws from another picture, and with what it draws untrained; and it must still be nearest to
the true image that the raw picture was nearest to.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedglass.attack.attack import refined
from fedglass.attack.hypotheses import AnyAttack, refinements_of
from fedglass.attack.parts import Learned, Refine
from fedglass.audit.judgement import OTHER, clipped, decoys
from fedglass.core.types import Observation, Reconstruction
from fedglass.metrics.catalogue import Scores, score
from fedglass.metrics.matching import Matching
from fedglass.rounds.truth import Truth

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
