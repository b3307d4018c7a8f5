"""One case from its target to its record: attack, score, compare energies, raise flags."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedglass.audit.assessment import Assessment, Question, assess, unplayed
from fedglass.audit.cases import Case
from fedglass.audit.failures import FAILURES, in_words
from fedglass.audit.isolation import isolated, iterations_of, oracle_facts, without_unused_oracles
from fedglass.audit.judgement import clipped, energy_blind, grey
from fedglass.audit.looks import Effort
from fedglass.audit.machine import peak_mib, reset_peak, versions
from fedglass.audit.target import Target
from fedglass.audit.words import knowledge_in_words
from fedglass.core.types import Observation, Reconstruction
from fedglass.ledger.evidence import Evidence
from fedglass.ledger.records import Record
from fedglass.verdict.flags import Findings, State, flags_of
from fedglass.verdict.gate import Gate

NO_TRUTH = "the true images were not given: look at the pictures"


@dataclass(frozen=True, eq=False)
class Work:
    """All that a worker needs for one case."""

    case: Case
    target: Target
    metrics: tuple[str, ...]
    gate: Gate
    device: torch.device
    effort: Effort = Effort.STANDARD


@dataclass(frozen=True, eq=False)
class Outcome:
    """A record, and the images that are to be saved beside it."""

    record: Record
    evidence: Evidence | None = None


def play(work: Work, progress: Callable[[int, int], None]) -> Outcome:
    """Run one case. A known kind of failure becomes a failed record."""
    reset_peak()
    start = time.perf_counter()
    try:
        outcome = _played(work, progress)
    except FAILURES as error:
        outcome = Outcome(failed(work, in_words(error)))
    spent = {"seconds": time.perf_counter() - start, "peak_mib": peak_mib()}
    return replace(outcome, record=outcome.record.model_copy(update=spent))


def failed(work: Work, why: str) -> Record:
    """The record of a case that could not be played to its end."""
    return Record.model_validate({**_identity(work), "status": "failed", "error": why})


def state_of(seen: Observation) -> State:
    """Whether there is a message to invert."""
    if not all(bool(torch.isfinite(t).all()) for t in seen.update.values()):
        return "non-finite"
    return "sound" if any(bool(t.any()) for t in seen.update.values()) else "zero"


def _played(work: Work, progress: Callable[[int, int], None]) -> Outcome:
    case, truth = work.case, work.target.truth
    seen = isolated(work.target.observation, case.attack, work.device)
    state = state_of(seen)
    attack = case.attack if state == "sound" else None
    found = _guess(seen) if attack is None else attack.run(seen, case.seed, progress)
    oracle = oracle_facts(case.attack)
    findings = Findings(work.gate, state, energy=found.energy, oracle=oracle, notes=found.notes)
    fields = {**_identity(work), **_of_run(case, found), "oracle": bool(oracle)}
    if truth is None:
        if attack is not None:
            fields["energy_blind"] = energy_blind(attack, seen, found)
        fields["skipped_metrics"] = dict.fromkeys(work.metrics, NO_TRUTH)
        fields["flags"] = flags_of(replace(findings, truth=False))
        raw = None if found.raw is None else clipped(found.raw, seen)
        return Outcome(Record.model_validate(fields), _evidence(found, clipped(found.images, seen), raw))
    if attack is None:
        assessed = unplayed(seen, found, truth, work.metrics, findings)
    else:
        work_left = work.target, truth, work.metrics, work.gate, case.seed, work.effort, progress
        assessed = assess(Question(attack, seen, found, *work_left), findings)
    judged = assessed.judged
    fields |= _of_truth(assessed, truth.private.labels.tolist(), fields["extra"])
    record = Record.model_validate(fields)
    findings = replace(assessed.findings, partly=sum(work.gate.partly(record)))
    record = record.model_copy(update={"flags": flags_of(findings), "absence": findings.absence})
    names = work.target.class_names
    private = truth.private
    labels = tuple(str(i) if names is None else names[i] for i in private.labels.tolist())
    evidence = _evidence(found, judged.shown, judged.shown_raw)
    return Outcome(record, replace(evidence, originals=private.images.numpy(), labels=labels))


def _evidence(found: Reconstruction, shown: Tensor, raw: Tensor | None) -> Evidence:
    """The images to keep, with the raw ones where they were refined."""
    return Evidence(
        found.images.detach().cpu().numpy(),
        found.labels.detach().cpu().numpy(),
        shown.numpy(),
        raw=None if raw is None else raw.numpy(),
        found_raw=None if found.raw is None else found.raw.detach().cpu().numpy(),
    )


def _guess(seen: Observation) -> Reconstruction:
    """What remains without a message: grey images under the first class."""
    n = seen.knows.examples
    return Reconstruction(grey(seen, n), torch.zeros(n, dtype=torch.int64), float("nan"))


def _of_run(case: Case, found: Reconstruction) -> dict[str, Any]:
    return {
        "status": "done",
        "energy": found.energy,
        "trace": list(found.trace),
        "labels_recovered": found.labels.tolist(),
        "iterations": iterations_of(case.attack),
        "energy_refined": found.energy_refined,
        "extra": told_of(found),
    }


def told_of(found: Reconstruction) -> dict[str, Any]:
    """What an attack says of its own run, as JSON: notes, where the operator's unknowns ended, what it supposed."""
    return {
        "notes": list(found.notes),
        "unknowns": {name: tensor.tolist() for name, tensor in found.unknowns.items()},
        "supposed": None if found.supposed is None else repr(found.supposed),
    }


def _of_truth(assessed: Assessment, labels: list[int], extra: dict[str, Any]) -> dict[str, Any]:
    judged, found = assessed.judged, assessed.findings
    scores, raw = judged.scores, judged.scores_raw
    more = {"matching": list(scores.matching.partner), "energy_decoys": list(judged.energy_decoys)}
    return {
        "metrics": {name: list(values) for name, values in scores.values.items()},
        "metrics_raw": {} if raw is None else {name: list(values) for name, values in raw.values.items()},
        "skipped_metrics": dict(scores.skipped),
        "labels_true": labels,
        "labels_recovered": list(judged.labels),
        "label_errors": judged.label_errors,
        "energy_truth": judged.energy_truth,
        "energy_blind": found.energy_blind,
        "blind": {name: list(values) for name, values in assessed.blind.items()},
        "replay": found.replay or None,
        "looks": [f"{look.words}: energy {look.energy:.3g}, recovered {look.recovered}" for look in found.looks],
        "extra": {**extra, **more},
    }


def _identity(work: Work) -> dict[str, Any]:
    case, target = work.case, work.target
    clients = target.behind
    return {
        "key": case.key,
        "attack": case.attack_name,
        "attack_repr": repr(case.attack),
        "view": case.info.words,
        "round": case.info.round,
        "client": ", ".join(clients[:3]) + (f" and {len(clients) - 3} more" if len(clients) > 3 else ""),
        "repeat": case.repeat,
        "seed": case.seed,
        "knows": knowledge_in_words(without_unused_oracles(target.observation.knows, case.attack)),
        "utility": dict(target.utility),
        "defences": None if target.defences is None else list(target.defences),
        "behaviours": list(target.behaviours),
        "participants": list(target.participants),
        "kept": list(target.kept),
        "versions": versions(work.device),
    }
