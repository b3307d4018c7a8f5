"""What an attack reads of a message in the time that a client can spare.

It is judged as in an audit: by the same metrics, beside the same guesses without the message.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from fedglass.attack.best_of import AnyAttack
from fedglass.attack.labels.given import OracleLabels
from fedglass.audit.assessment import Assessment, Question, assess
from fedglass.audit.play_attack import isolated
from fedglass.audit.target import Target
from fedglass.core.facts import Fact
from fedglass.core.rng import derive
from fedglass.core.types import Observation
from fedglass.guard.outbound import Outbound
from fedglass.guard.report import Clock, OutOfTime
from fedglass.recipes import recipe
from fedglass.verdict.gate import Gate

METRICS = ("psnr", "ssim")
FIRST = 1 / 8
"""The share of its iterations of the first look: what leaks most is read at once."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Read:
    """What the best start of all attacks shows."""

    attack: str
    starts: int
    shown: int
    best: float | None


def attacks_for(out: Outbound) -> dict[str, AnyAttack]:
    """One that is fast on a message of this kind; the true labels are told, so that no search fails for theirs."""
    if out.steps > 1:
        name = "sme"
    else:
        name = "coarse_to_fine_statistics" if Fact.STATISTICS in out.seen().facts else "inverting_gradients"
    return {name: recipe(name, labels=OracleLabels())}


def read(
    out: Outbound, attacks: Mapping[str, AnyAttack], gate: Gate, starts: int, seed: int, clock: Clock
) -> Read | None:
    """Start after start of each attack until one shows an image or the time is over; None if none came to its end."""
    best: Read | None = None
    seen, truth = out.seen(), out.truth()
    try:
        for start, (name, attack) in itertools.product(range(starts + 1), attacks.items()):
            run = attack.shortened(FIRST) if start == 0 else attack
            found = one_run(run, seen, Target(seen, truth), gate, derive(seed, name, start), clock)
            hits = gate.hits(found.scores)
            altered = sum(seen and not hit for seen, hit in zip(found.otherwise, hits, strict=True))
            shown = sum(hits) + gate.partly(found.scores) + altered
            tally = Read(name, start, shown, _best(found, gate))
            if best is None or (tally.shown, tally.best or 0.0) > (best.shown, best.best or 0.0):
                best = tally
            best = Read(best.attack, start, best.shown, best.best)
            if shown:
                break
    except OutOfTime:
        pass
    # A look of an eighth shows what leaks, but not that nothing does.
    return best if best is not None and (best.shown or best.starts) else None


def one_run(attack: AnyAttack, seen: Observation, target: Target, gate: Gate, seed: int, clock: Clock) -> Assessment:
    """What one run of an attack shows of the private images."""
    alone = isolated(seen, attack, CPU)
    found = attack.run(alone, seed, clock)
    metrics = tuple(dict.fromkeys((*METRICS, gate.metric)))
    assert target.truth is not None, "a guard has the truth"
    return assess(Question(attack, replace(target, observation=alone), target.truth, found, metrics, seed))


def _best(found: Assessment, gate: Gate) -> float | None:
    known = [v for v in found.scores.values(gate.metric, gate.scale) if v is not None]
    return gate.scale.best(known) if known else None
