"""One case from its message to its record."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from dataclasses import dataclass
from typing import Any

import torch

from fedglass.attack.parts import Progress
from fedglass.audit.failures import FAILURES
from fedglass.audit.isolation import isolated, oracle_facts
from fedglass.audit.machine import device_named, peak_mib, reset_peak, versions
from fedglass.audit.words import knowledge_in_words
from fedglass.core.rng import derive
from fedglass.core.types import Observation
from fedglass.ledger.records import Record
from fedglass.reproduce.cases import Case
from fedglass.reproduce.experiment import Finding
from fedglass.reproduce.messages import observe
from fedglass.reproduce.probes.invert import Invert
from fedglass.rounds.client import Client

CPU = torch.device("cpu")


def device_of(probe: object) -> torch.device:
    """An accelerator for the attacks on deep networks, where there is one; the small networks are quicker without."""
    return device_named("auto") if isinstance(probe, Invert) else CPU


@dataclass(frozen=True, eq=False)
class Work:
    """All that a worker needs for one case."""

    case: Case
    clients: tuple[Client, ...]
    data: str
    """What the clients' images are, in words."""
    weights: str | None = None
    """The file of the trained network, where there was a warm-up."""
    accuracy: float | None = None
    """Of the trained network."""


@dataclass(frozen=True, eq=False)
class Played:
    """A record, and what is to be drawn beside it."""

    record: Record
    finding: Finding | None = None


def play(work: Work, progress: Progress) -> Played:
    """Train the client, attack, score. A known kind of failure becomes a failed record.

    Time and peak memory are those of the attack alone, without the client's training.
    """
    case, start = work.case, time.perf_counter()
    try:
        seen, truth = observe(case.experiment, work.clients, case.seed, work.weights)
        seen = isolated(seen, case.experiment.probe, device_of(case.experiment.probe))
        _return_memory()
        reset_peak()
        start = time.perf_counter()
        # Methods that meet the same client share their seed, so that they are compared from the same start.
        finding = case.experiment.probe.measure(seen, truth, derive(case.seed, "attack", case.client), progress)
    except FAILURES as error:
        fields = _identity(work) | {"status": "failed", "error": f"{type(error).__name__}: {error}"}
        return Played(Record.model_validate(fields | _spent(start)))
    fields = _identity(work) | _of_message(seen, truth.clients) | dict(finding.record)
    fields |= {
        "status": "done",
        "oracle": bool(oracle_facts(case.experiment.probe)),
        "metrics": dict(finding.per_image),
    }
    curves = {name: list(values) for name, values in finding.curves.items()}
    fields["extra"] = _extra(work) | {"measures": dict(finding.measures), "curves": curves} | fields.get("extra", {})
    return Played(Record.model_validate(fields | _spent(start)), finding)


def lost(work: Work, why: str) -> Played:
    """The record of a case whose worker was killed."""
    return Played(Record.model_validate(_identity(work) | {"status": "failed", "error": why}))


def _identity(work: Work) -> dict[str, Any]:
    case, setup = work.case, work.case.experiment.setup
    many = setup.clients > 1
    return {
        "key": case.key,
        "attack": str(case.place["method"]),
        "attack_repr": repr(case.experiment.probe),
        "view": f"the server sees the mean update of {setup.clients} clients" if many else "the server sees one update",
        "round": 1 if setup.warm_up is None else setup.warm_up.rounds + 1,
        "client": str(case.client),
        "repeat": 0,
        "seed": case.seed,
        "utility": {} if work.accuracy is None else {"accuracy": work.accuracy},
        "versions": versions(device_of(case.experiment.probe)),
        "extra": _extra(work),
    }


def _extra(work: Work) -> dict[str, Any]:
    case = work.case
    facts = {"data": work.data, "stand_in": case.population.stand_in, "experiment": repr(case.experiment)}
    return {**case.place, **facts}


def _of_message(seen: Observation, clients: tuple[str, ...]) -> dict[str, Any]:
    return {"knows": knowledge_in_words(seen.knows), "client": ", ".join(clients)}


def _return_memory() -> None:
    """Give freed memory back to the system, where that is possible: the next peak is then that of one case alone."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _spent(start: float) -> dict[str, Any]:
    return {"seconds": time.perf_counter() - start, "peak_mib": peak_mib()}
