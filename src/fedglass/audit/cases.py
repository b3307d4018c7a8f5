"""The cases of an audit: one probe of one target, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fedglass import __version__
from fedglass.audit.probe import MessageProbe, Probe
from fedglass.audit.target import Source, TargetInfo
from fedglass.core.identity import digest, identity_text
from fedglass.core.rng import derive

Subject = TypeVar("Subject")


@dataclass(frozen=True, eq=False)
class Case(Generic[Subject]):
    """One probe of one target, once. `key` is its identity: what decides the outcome decides the key."""

    key: str
    title: str
    probe: Probe
    seed: int
    """What the probe's random numbers are drawn from."""
    subject: Subject
    """From what the target is made, known before any client has trained."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the record that are known before the case is played."""


@dataclass(frozen=True)
class Place:
    """Where an audit finds a target."""

    source: int
    """The position of its source in the audit."""
    target: int
    """The position of the target in the source."""


def enumerate_cases(
    sources: Sequence[Source],
    probes: Mapping[str, MessageProbe],
    repeats: int,
    seed: int,
) -> Iterator[Case[Place]]:
    """Every probe of every target, attacks `repeats` times.

    Attacks that meet the same target in the same repeat share their seed, so that they are compared from the
    same start. The gate is no part of a key: it is applied at the end, and can be judged anew at any time.
    """
    texts = {name: identity_text(probe.played, f"Attack {name!r}") for name, probe in probes.items()}
    for i, source in enumerate(sources):
        identity = source.identity()
        for j, info in enumerate(source.infos()):
            for name, probe in probes.items():
                for repeat in range(repeats if probe.kind == "attack" else 1):
                    case_seed = derive(seed, "case", source.name, info.spec, repeat)
                    told = [info.identity, name, texts[name], *probe.metrics, str(case_seed)]
                    again = f" (repeat {repeat + 1})" if repeat else ""
                    yield Case(
                        digest(__version__, identity, *told)[:32],
                        f"{name}: {info.words}{again}",
                        probe,
                        case_seed,
                        Place(i, j),
                        _facts(name, probe, info, repeat),
                    )


def _facts(name: str, probe: MessageProbe, info: TargetInfo, repeat: int) -> dict[str, Any]:
    told = {"kind": probe.kind, "attack": name, "attack_repr": repr(probe.played), "view": info.words}
    told |= {"view_name": info.name, "standpoint": info.standpoint}
    return {**told, "round": info.round, "repeat": repeat}
