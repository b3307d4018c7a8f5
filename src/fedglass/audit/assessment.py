"""What may be said of a reconstruction: its scores beside what guesses reach, and its energy beside the truth's.

Everything here may look at the truth, and nothing of it reaches an attack. No gate is asked: a record holds figures.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedglass.attack.hypotheses import AnyAttack
from fedglass.audit.controls import controlled
from fedglass.audit.guesses import best_guess
from fedglass.audit.judgement import Judgement, blends_of, energy_blind, judge
from fedglass.audit.likeness import shown_otherwise
from fedglass.audit.target import Target
from fedglass.core.types import Observation, Reconstruction
from fedglass.rounds.truth import Truth
from fedglass.verdict.images import ImageScores


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
