"""Compile a plan into an audit: load the data, build the models, compose the attacks, and expand sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedglass.attack.best_of import AnyAttack, refined_by, start_from
from fedglass.attack.defaults import locate_paths
from fedglass.attack.needs import needs_of, uses_of
from fedglass.attack.parts import Refine
from fedglass.audit.audit import Effort, Job, rehearse
from fedglass.audit.recorded import Recorded
from fedglass.audit.target import Source
from fedglass.core.errors import UsageError, unknown_name
from fedglass.core.facts import Fact
from fedglass.core.registry import factory, make, takes
from fedglass.diffusion.stored import located_model
from fedglass.metrics.catalogue import metric, why_not
from fedglass.plan.bundles import recorded_bundle
from fedglass.plan.federation import simulated
from fedglass.plan.loose_files import recorded_message
from fedglass.plan.options import checked_options, defences_of
from fedglass.plan.recording_tables import BundleTable, RecordingTable
from fedglass.plan.schema import AdversaryTable, AttackTable, Plan, RefineTable, read_plan
from fedglass.plan.tables import DefenceTable, FederationTable
from fedglass.recipes import recipe

ORACLE, ORACLE_BATCHES = "oracle", "oracle_batches"
"""Labels parts for an adversary that knows the true labels, and for one that knows those of each batch."""


@dataclass(frozen=True)
class SweepPoint:
    """One federation of a sweep, with its defences."""

    table: FederationTable
    defences: Sequence[DefenceTable]
    swept: dict[str, float] = field(default_factory=dict)
    """The swept option and its value; empty without a sweep."""


def sweep_points(table: FederationTable, defences: Sequence[DefenceTable]) -> list[SweepPoint]:
    """Return one federation for each value of the sweep, named after it; without a sweep return one."""
    sweep = table.sweep
    if sweep is None:
        return [SweepPoint(table, defences if table.defended else ())]
    names = [defence.name for defence in defences]
    if names.count(sweep.defence) > 1:
        raise UsageError(f"federation.sweep: the plan has {sweep.defence!r} more than once: keep one of them.")
    if sweep.defence not in names:
        raise UsageError(f"federation.sweep: {unknown_name('defence of the plan', sweep.defence, names)}")
    points = []
    for value in sweep.values:
        changed = [_with(d, sweep.option, value) if d.name == sweep.defence else d for d in defences]
        name = f"{table.name}{', ' if table.name else ''}{sweep.option} {value:g}"
        points.append(SweepPoint(table.model_copy(update={"name": name}), changed, {sweep.option: float(value)}))
    return points


def _with(table: DefenceTable, option: str, value: float) -> DefenceTable:
    return DefenceTable.model_validate({"name": table.name, **table.options, option: value})


def read_job(path: Path) -> Job:
    """Return the audit that a plan file describes; its paths are relative to the file."""
    plan, text = read_plan(path)
    return compile_plan(plan, path.resolve().parent, text)


def compile_plan(plan: Plan, folder: Path, text: str | None = None, recorded: Sequence[Recorded] | None = None) -> Job:
    """Load the data, build the models and compose the attacks of a plan.

    `recorded` are the sources of the plan's recordings if they were read already.
    """
    # Names are cheap to check and often wrong, so they are checked before the data.
    attacks = {a.label or a.name: attack_of(a, plan.adversary, folder) for a in plan.attacks}
    for name in plan.metrics.names:
        metric(name)
    gate = plan.gate.value()
    defences_of(plan.defences)  # checked even if no federation uses them
    sources: list[Source] = [
        simulated(point.table, plan.adversary, plan.seed, folder, defences_of(point.defences), point.swept)
        for table in plan.federation
        for point in sweep_points(table, plan.defences)
    ]
    if recorded is None:
        recorded = [source for table in plan.recording for source in recordings(table, plan.adversary, folder)]
    sources += recorded
    _check_batch_labels(plan.adversary, attacks)
    check_gate_metric(gate.metric, sources)
    metrics = tuple(dict.fromkeys(plan.metrics.names))
    job = Job(sources, attacks, metrics, gate, plan.repeats, plan.seed, text, Effort(plan.effort))
    rehearse(sources, attacks)
    return job


def recordings(table: RecordingTable | BundleTable, adversary: AdversaryTable, folder: Path) -> list[Recorded]:
    """Return the sources of a recording's table: one message, or those of a bundle."""
    if isinstance(table, BundleTable):
        return recorded_bundle(table, adversary, folder)
    return [recorded_message(table, adversary, folder)]


def attack_of(table: AttackTable, adversary: AdversaryTable, folder: Path) -> AnyAttack:
    """Return the attack with its options, start and refinements; paths of models are relative to the plan."""
    attack = _composed(table, adversary, folder)
    if table.start is not None:
        attack = start_from(attack, recipe(table.start))
    parts = tuple(_refinement(refinement, folder) for refinement in table.refine)
    return refined_by(attack, parts) if parts else attack


def _refinement(table: RefineTable, folder: Path) -> Refine:
    """Return the refinement with its options; the path of a model is relative to the plan."""
    options = checked_options(f"refine {table.name!r}", factory("refinements", table.name), table.options)
    if isinstance(model := options.get("model"), str):
        options["model"] = located_model(model, folder)
    part: Refine = make("refinements", table.name, **options)
    return part


def _composed(table: AttackTable, adversary: AdversaryTable, folder: Path) -> AnyAttack:
    """Return the attack with its options, and with oracle labels if the adversary knows them and the recipe uses them.
    Return the attack with its options, and with oracle labels if the adversary knows them and the recipe uses them."""
    makes, where = factory("attacks", table.name), f"attack {table.name!r}"
    options = locate_paths(makes, checked_options(where, makes, table.options), folder)
    takes_labels = takes(makes, "labels")
    if table.labels is not None:
        if not takes_labels:
            raise UsageError(f"{where}: this recipe has its own labels: leave labels out.")
        options["labels"] = make("labels", table.labels)
    elif takes_labels and adversary.knows_labels:
        options["labels"] = make("labels", ORACLE)
    attack = recipe(table.name, **options)
    if table.labels is None and takes_labels and adversary.knows_batch_labels and _takes_batch_labels(attack):
        attack = recipe(table.name, **options | {"labels": make("labels", ORACLE_BATCHES)})
    return attack


def _takes_batch_labels(attack: AnyAttack) -> bool:
    """Return whether the labels of each true batch fit the batches that an attack simulates.

    An attack that assumes a training of its own also assumes its own batches.
    """
    return Fact.BATCH_LABELS in uses_of(attack) and Fact.TRAINING in needs_of(attack)


def _check_batch_labels(adversary: AdversaryTable, attacks: Mapping[str, AnyAttack]) -> None:
    """Refuse knowledge of batch labels if no attack uses it."""
    if adversary.knows_batch_labels and not any(Fact.BATCH_LABELS in needs_of(a) for a in attacks.values()):
        raise UsageError(
            f"None of the attacks {', '.join(map(repr, attacks))} uses adversary.knows_batch_labels: leave it out "
            "(knows_labels gives labels without batches), or attack with dlfa or dlfa_published."
        )


def check_gate_metric(name: str, sources: Sequence[Source]) -> None:
    """Refuse a gate whose metric cannot be computed, before the attacks run for hours."""
    for source in sources:
        reason = why_not(name, source.shape)
        if reason is not None:
            raise UsageError(f"gate.metric {name!r} cannot be computed: {reason}")
