"""One case from its target to its record: attack, score, compare energies, raise flags."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedglass.audit.cases import Case
from fedglass.audit.flags import Findings, State, flags_of
from fedglass.audit.gate import Gate
from fedglass.audit.machine import peak_mib, reset_peak, versions
from fedglass.audit.records import Record
from fedglass.audit.sources import Target
from fedglass.audit.watched import moved
from fedglass.audit.words import knowledge_in_words
from fedglass.core.errors import FedglassError
from fedglass.core.types import Observation, Reconstruction
from fedglass.metrics.catalogue import Scores, score
from fedglass.metrics.labels import label_errors
from fedglass.rounds.truth import Truth

FAILURES = (FedglassError, RuntimeError, MemoryError)
"""What may go wrong in one case without ending the audit. Anything else is a fault of fedglass."""
NO_TRUTH = "the true images were not given: look at the pictures"


@dataclass(frozen=True, eq=False)
class Work:
    """All that a worker needs for one case."""

    case: Case
    target: Target
    metrics: tuple[str, ...]
    gate: Gate
    device: torch.device


@dataclass(frozen=True, eq=False)
class Outcome:
    """A record, and the images that are to be saved beside it."""

    record: Record
    reconstruction: Reconstruction | None = None
    shown: Tensor | None = None
    """What was scored, in the order of the originals.  # (n, c, h, w)"""
    truth: Truth | None = None
    class_names: tuple[str, ...] | None = None


def play(work: Work, progress: Callable[[int, int], None]) -> Outcome:
    """Run one case. A known kind of failure becomes a failed record."""
    reset_peak()
    start = time.perf_counter()
    try:
        outcome = _played(work, progress)
    except FAILURES as error:
        outcome = Outcome(failed(work, f"{type(error).__name__}: {error}"))
    spent = {"seconds": time.perf_counter() - start, "peak_mib": peak_mib()}
    return Outcome(
        outcome.record.model_copy(update=spent),
        outcome.reconstruction,
        outcome.shown,
        outcome.truth,
        outcome.class_names,
    )


def failed(work: Work, why: str) -> Record:
    """The record of a case that could not be played to its end."""
    return Record.model_validate({**_identity(work), "status": "failed", "error": why})


def _played(work: Work, progress: Callable[[int, int], None]) -> Outcome:
    case, target = work.case, work.target
    seen, knows = moved(target.observation, work.device)
    state = state_of(seen)
    found = case.attack.run(seen, case.seed, progress) if state == "sound" else grey(seen)
    oracle = knows.oracle_used  # read before the audit itself looks at the labels
    record: dict[str, object] = {
        **_identity(work),
        "status": "done",
        "oracle": bool(oracle),
        "energy": found.energy,
        "trace": list(found.trace),
        "labels_recovered": found.labels.tolist(),
        "iterations": getattr(case.attack.stages[-1].solver, "iterations", None),
        "skipped_metrics": {} if target.truth else dict.fromkeys(work.metrics, NO_TRUTH),
    }
    findings = {"gate": work.gate, "update": state, "energy": found.energy, "oracle": oracle, "notes": found.notes}
    shown = clipped(found.images, seen)
    if target.truth is None:
        flags = flags_of(Findings(**findings, truth=False))
        return Outcome(_record(record, flags), found, shown, None, target.class_names)
    scores = score(shown, target.truth.images, work.metrics)
    judged = _judged(work, seen, found, scores, state)
    flags = flags_of(
        Findings(
            **findings,
            metrics=scores.values,
            label_errors=judged["label_errors"],
            energy_truth=judged["energy_truth"],
            energy_decoys=judged["extra"]["energy_decoys"],
        )
    )
    ordered = scores.matching.apply(shown)
    return Outcome(_record({**record, **judged}, flags), found, ordered, target.truth, target.class_names)


def _identity(work: Work) -> dict[str, object]:
    case, target = work.case, work.target
    clients = () if target.truth is None else target.truth.clients
    return {
        "key": case.key,
        "attack": case.attack_name,
        "attack_repr": repr(case.attack),
        "view": case.sight.words,
        "round": case.sight.round,
        "client": ", ".join(clients[:3]) + (" ..." if len(clients) > 3 else "") if clients else "recorded",
        "repeat": case.repeat,
        "seed": case.seed,
        "knows": knowledge_in_words(target.observation.knows),
        "utility": dict(target.utility),
        "versions": versions(work.device),
    }
