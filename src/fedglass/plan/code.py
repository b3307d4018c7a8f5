"""The code outside fedglass that a plan runs; it is listed before any of it is imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fedglass.core.foreign import is_dotted, is_importable
from fedglass.core.registry import BUILT_IN, KINDS, names, origin_of
from fedglass.plan.recording_tables import BundleTable, RecordingTable
from fedglass.plan.schema import AdversaryTable, AttackTable, Plan
from fedglass.plan.tables import FederationTable, Named

READERS = ("datasets", "initialisations")
"""Kinds whose names may end with the path of a file."""


@dataclass(frozen=True)
class Code:
    """A part of a plan that is made by code outside fedglass."""

    kind: str
    name: str
    origin: str
    """`package X 1.2` for a part of an installed package; the name itself if it is imported by that name."""

    def __str__(self) -> str:
        origin = "" if self.origin == self.name else f" of {self.origin}"
        return f"{self.name} ({KINDS[self.kind].noun}{origin})"


def code_of(plan: Plan) -> tuple[Code, ...]:
    """Return all code outside fedglass that the plan runs, in the order of the plan."""
    codes = [code for table in plan.federation for code in code_of_federation(table)]
    codes += [code for table in plan.recording for code in code_of_recording(table)]
    codes += code_of_adversary(plan.adversary)
    codes += _code("defences", plan.defences)
    codes += [code for attack in plan.attacks for code in code_of_attack(attack)]
    codes += [code for name in (*plan.metrics.names, plan.gate.metric) for code in code_named("metrics", name)]
    return tuple(dict.fromkeys(codes))


def code_of_federation(table: FederationTable) -> list[Code]:
    """Return the code of one federation, without the plan's defences."""
    groups = table.group
    return [
        *code_named("datasets", table.data),
        *code_named("models", table.model),
        *code_named("initialisations", table.init),
        *_code("rules", [] if table.rule is None else [table.rule]),
        *_code("behaviours", [behaviour for group in groups for behaviour in group.behaviour]),
        *_code("defences", [defence for group in groups for defence in group.defences or []]),
    ]


def code_of_recording(table: RecordingTable | BundleTable) -> list[Code]:
    """Return the code of one recording; code that only a bundle names never runs."""
    defences = table.defended if isinstance(table.defended, list) else []
    model = [] if table.model is None else code_named("models", table.model)
    return [*model, *_code("defences", defences)]


def code_of_adversary(table: AdversaryTable) -> list[Code]:
    """Return the code of the adversary's public data."""
    return [] if table.public is None else list(code_named("datasets", table.public))


def code_of_attack(table: AttackTable) -> list[Code]:
    """Return the code of an attack, of its labels and of its refinements."""
    labels = [] if table.labels is None else code_named("labels", table.labels)
    return [*_code("attacks", [table]), *labels, *_code("refinements", table.refine)]


def code_named(kind: str, text: str) -> Iterator[Code]:
    """Yield the code that a name stands for, unless it is built in."""
    first, colon, path = text.partition(":")
    if kind in READERS and first in names(kind):
        text, colon = first, ""
    elif kind == "datasets" and not (is_dotted(first) and ("." in first or is_importable(first))):
        return  # a path, or an unknown format
    elif kind in READERS:
        text = f"{first}:{path.partition(':')[0]}"
    origin = origin_of(kind, text)
    if origin != BUILT_IN and (colon or origin != text):
        yield Code(kind, text, origin)


def _code(kind: str, tables: Iterable[Named]) -> list[Code]:
    return [code for table in tables for code in code_named(kind, table.name)]
