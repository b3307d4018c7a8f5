"""Attacks on an outbound update, in the time that a client can spare.

They are scored as in an audit: by the same metrics, and against the same guesses without the message.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from fedglass.attack.best_of import AnyAttack
from fedglass.attack.labels.given import OracleLabels
from fedglass.audit.assessment import Assessment, ScoringContext, assess
from fedglass.audit.play import OutOfTime
from fedglass.audit.play_attack import isolate
from fedglass.audit.target import Target
from fedglass.core.facts import Fact
from fedglass.core.rng import derive
from fedglass.guard.outbound import Outbound
from fedglass.guard.report import Clock
from fedglass.recipes import recipe
from fedglass.verdict.gate import Gate

METRICS = ("psnr", "ssim")
FIRST = 1 / 8
"""Share of its iterations in the first run of an attack: what leaks most is recovered at once."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class BestRun:
    """The run of all attacks that shows most private images."""

    attack: str
    starts: int
    shown: int
    best: float | None


def attacks_for(out: Outbound) -> dict[str, AnyAttack]:
    """Choose a fast attack for a message of this kind; it is given the true labels, so that it cannot fail there."""
    if out.steps > 1:
        name = "sme"
    else:
        name = "coarse_to_fine_statistics" if Fact.STATISTICS in out.observation().facts else "inverting_gradients"
    return {name: recipe(name, labels=OracleLabels())}


def run_attacks(
    out: Outbound, attacks: Mapping[str, AnyAttack], gate: Gate, starts: int, seed: int, clock: Clock
) -> BestRun | None:
    """Run every attack from several starts until one shows an image or time is over; None if no run was complete."""
    best: BestRun | None = None
    target = Target(out.observation(), out.truth())
    try:
        for start, (name, attack) in itertools.product(range(starts + 1), attacks.items()):
            run = attack.shortened(FIRST) if start == 0 else attack
            assessment = one_run(run, target, gate, derive(seed, name, start), clock)
            hits = gate.hits(assessment.scores)
            transformed = zip(assessment.shown_transformed, hits, strict=True)
            shown = (
                sum(hits) + gate.partly(assessment.scores) + sum(shown_so and not hit for shown_so, hit in transformed)
            )
            latest = BestRun(name, start, shown, _best(assessment, gate))
            if best is None or (latest.shown, latest.best or 0.0) > (best.shown, best.best or 0.0):
                best = latest
            best = BestRun(best.attack, start, best.shown, best.best)
            if shown:
                break
    except OutOfTime:
        pass
    # A run of an eighth of the iterations shows what leaks, but not that nothing does.
    return best if best is not None and (best.shown or best.starts) else None


def one_run(attack: AnyAttack, target: Target, gate: Gate, seed: int, clock: Clock) -> Assessment:
    """Run an attack once and assess what it shows of the private images."""
    observation = isolate(target.observation, attack, CPU)
    reconstruction = attack.run(observation, seed, clock)
    metrics = tuple(dict.fromkeys((*METRICS, gate.metric)))
    assert target.truth is not None, "a guard has the truth"
    isolated = replace(target, observation=observation)
    return assess(ScoringContext(attack, isolated, target.truth, reconstruction, metrics, seed))


def _best(assessment: Assessment, gate: Gate) -> float | None:
    finite_scores = [v for v in assessment.scores.values(gate.metric, gate.scale) if v is not None]
    return gate.scale.best(finite_scores) if finite_scores else None
