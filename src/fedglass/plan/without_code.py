"""The check of a plan that runs no code outside fedglass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedglass.audit.audit import rehearse
from fedglass.audit.target import Section, Source
from fedglass.core.foreign import no_code
from fedglass.metrics.catalogue import metric
from fedglass.plan.bundles import open_bundle, spec_of
from fedglass.plan.code import (
    Code,
    code_named,
    code_of,
    code_of_adversary,
    code_of_attack,
    code_of_federation,
    code_of_recording,
)
from fedglass.plan.compile import attack_of, check_gate_metric, recordings, sweep_points
from fedglass.plan.federation import check_parts, simulated
from fedglass.plan.loose_files import check_recording
from fedglass.plan.options import defences_of
from fedglass.plan.recording_tables import BundleTable
from fedglass.plan.schema import Plan


@dataclass(frozen=True, eq=False)
class PartialCheck:
    """The threat model as far as it could be checked, and the code that was not checked."""

    sections: Sequence[Section]
    unchecked: tuple[Code, ...]


def check_without_code(plan: Plan, folder: Path) -> PartialCheck:
    """Check names, options, files and data, as far as they need no code outside fedglass."""
    with no_code():
        attacks = {
            table.label or table.name: attack_of(table, plan.adversary, folder)
            for table in plan.attacks
            if not code_of_attack(table)
        }
        for name in plan.metrics.names:
            if not list(code_named("metrics", name)):
                metric(name)
        sources = _sources(plan, folder)
        lines = _judgement(plan, sources)
        rehearse(sources, attacks)
        sections = [section for source in sources for section in source.threat()]
        parts = {"Attacks": [f"{name} = {attack!r}" for name, attack in attacks.items()], "Judgement": lines}
        return PartialCheck(
            [*sections, *(Section(title, texts) for title, texts in parts.items() if texts)], code_of(plan)
        )


def _sources(plan: Plan, folder: Path) -> list[Source]:
    """Return the sources that consist of built-in parts only; of the others check the built-in parts."""
    own_defences = [table for table in plan.defences if list(code_named("defences", table.name))]
    defences_of([table for table in plan.defences if table not in own_defences])
    foreign = bool(code_of_adversary(plan.adversary))
    adversary = plan.adversary.model_copy(update={"public": None}) if foreign else plan.adversary
    sources: list[Source] = []
    for table in plan.federation:
        if code_of_federation(table) or (own_defences and table.defended):
            check_parts(table, plan.seed, folder)
        else:
            sources += [
                simulated(point.table, adversary, plan.seed, folder, defences_of(point.defences), point.swept)
                for point in sweep_points(table, plan.defences)
            ]
    for recording in plan.recording:
        if not code_of_recording(recording):
            sources += recordings(recording, adversary, folder)
        elif isinstance(recording, BundleTable):
            spec_of(recording, *open_bundle(recording, folder))
        else:
            check_recording(recording, plan.adversary, folder)
    return sources


def _judgement(plan: Plan, sources: Sequence[Source]) -> list[str]:
    if list(code_named("metrics", plan.gate.metric)):
        return []
    gate = plan.gate.value()
    check_gate_metric(gate.metric, sources)
    return [f"An image counts as recovered with {gate.rule}."]
