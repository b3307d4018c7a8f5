"""The code that a plan runs and that is not part of fedglass: known before anything of it is imported."""

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
    """A part of a plan that is made by code of others."""

    kind: str
    name: str
    origin: str
    """`package X 1.2` of a part that an installed package brings, the name itself of one that is imported by it."""

    def __str__(self) -> str:
        whose = "" if self.origin == self.name else f" of {self.origin}"
        return f"{self.name} ({KINDS[self.kind].noun}{whose})"


def code_of(plan: Plan) -> tuple[Code, ...]:
    """All code of others that the plan runs, in the order in which it names it."""
    found = [code for table in plan.federation for code in code_of_federation(table)]
    found += [code for table in plan.recording for code in code_of_recording(table)]
    found += code_of_adversary(plan.adversary)
    found += _code("defences", plan.defences)
    found += [code for attack in plan.attacks for code in code_of_attack(attack)]
    found += [code for name in (*plan.metrics.names, plan.gate.metric) for code in code_named("metrics", name)]
    return tuple(dict.fromkeys(found))


def code_of_federation(table: FederationTable) -> list[Code]:
    """That of one federation, the plan's defences left out."""
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
    """That of one recording; what a bundle names is never run unless the plan names it too."""
    defences = table.defended if isinstance(table.defended, list) else []
    model = [] if table.model is None else code_named("models", table.model)
    return [*model, *_code("defences", defences)]


def code_of_adversary(table: AdversaryTable) -> list[Code]:
    """That of the data which the adversary has."""
    return [] if table.public is None else list(code_named("datasets", table.public))


def code_of_attack(table: AttackTable) -> list[Code]:
    """That of an attack, of its way to labels and of its refinements."""
    labels = [] if table.labels is None else code_named("labels", table.labels)
    return [*_code("attacks", [table]), *labels, *_code("refinements", table.refine)]


def code_named(kind: str, text: str) -> Iterator[Code]:
    """The code that a name stands for, where it is not that of fedglass."""
    first, colon, rest = text.partition(":")
    if kind in READERS and first in names(kind):
        text, colon = first, ""
    elif kind == "datasets" and not (is_dotted(first) and ("." in first or is_importable(first))):
        return  # a path, or a format that there is not
    elif kind in READERS:
        text = f"{first}:{rest.partition(':')[0]}"
    origin = origin_of(kind, text)
    if origin != BUILT_IN and (colon or origin != text):
        yield Code(kind, text, origin)


def _code(kind: str, tables: Iterable[Named]) -> list[Code]:
    return [code for table in tables for code in code_named(kind, table.name)]
