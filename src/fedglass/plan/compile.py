"""Compile a plan into an audit: load the data, build the models, compose the attacks, and expand sweeps.

A plan can also be checked without running code outside fedglass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedglass.attack.best_of import AnyAttack, refined_by, start_from
from fedglass.attack.defaults import locate_paths
from fedglass.attack.needs import needs_of, uses_of
from fedglass.attack.parts import Refine
from fedglass.audit.audit import Effort, Job, rehearse
from fedglass.audit.recorded import Recorded
from fedglass.audit.simulated import Simulated, Source
from fedglass.audit.target import Section
from fedglass.core.errors import UsageError, unknown_name
from fedglass.core.facts import Fact
from fedglass.core.foreign import no_code
from fedglass.core.registry import factory, make, takes
from fedglass.diffusion.stored import located_model
from fedglass.metrics.catalogue import metric, why_not
from fedglass.plan.bundles import open_bundle, recorded_bundle, spec_of
from fedglass.plan.code import code_named, code_of
from fedglass.plan.federation import check_parts, simulated
from fedglass.plan.loose_files import check_recording, recorded_message
from fedglass.plan.options import checked_options, defences_of
from fedglass.plan.schema import AdversaryTable, AttackTable, Plan, read_plan
from fedglass.plan.tables import BundleTable, DefenceTable, FederationTable, RecordingTable
from fedglass.recipes import recipe

ORACLE, ORACLE_BATCHES = "oracle", "oracle_batches"
"""Labels parts for an adversary that knows the true labels, and for one that knows those of each batch."""


def _simulations(table: FederationTable, plan: Plan, adversary: AdversaryTable, folder: Path) -> Iterator[Simulated]:
    """Yield one federation for each value of the sweep, named after it; without a sweep yield one."""
    sweep, defences = table.sweep, plan.defences
    if sweep is None:
        yield simulated(table, adversary, plan.seed, folder, defences_of(defences if table.defended else ()))
        return
    names = [defence.name for defence in defences]
    if names.count(sweep.defence) > 1:
        raise UsageError(f"federation.sweep: the plan has {sweep.defence!r} more than once: keep one of them.")
    if sweep.defence not in names:
        raise UsageError(f"federation.sweep: {unknown_name('defence of the plan', sweep.defence, names)}")
    for value in sweep.values:
        changed = [
            DefenceTable.model_validate({"name": defence.name, **defence.options, sweep.option: value})
            if defence.name == sweep.defence
            else defence
            for defence in defences
        ]
        name = f"{table.name}{', ' if table.name else ''}{sweep.option} {value:g}"
        swept, protection = {sweep.option: float(value)}, defences_of(changed)
        yield simulated(table.model_copy(update={"name": name}), adversary, plan.seed, folder, protection, swept)


def read_job(path: Path) -> Job:
    """Return the audit that a plan file describes; its paths are relative to the file."""
    plan, text = read_plan(path)
    return compile_plan(plan, path.resolve().parent, text)


def compile_plan(plan: Plan, folder: Path, text: str | None = None, recorded: Sequence[Recorded] | None = None) -> Job:
    """Load the data, build the models and compose the attacks of a plan.

    `recorded` are the sources of the plan's recordings if they were read already.
    """
    # Names are cheap to check and often wrong, so they are checked before the data.
    attacks = {a.label or a.name: _attack(a, plan.adversary, folder) for a in plan.attacks}
    for name in plan.metrics.names:
        metric(name)
    gate = plan.gate.value()
    defences_of(plan.defences)  # checked even if no federation uses them
    sources: list[Source] = [
        source for table in plan.federation for source in _simulations(table, plan, plan.adversary, folder)
    ]
    if recorded is None:
        recorded = [source for table in plan.recording for source in _recordings(table, plan.adversary, folder)]
    sources += recorded
    if plan.adversary.knows_batch_labels and not any(Fact.BATCH_LABELS in needs_of(a) for a in attacks.values()):
        raise UsageError(
            f"None of the attacks {', '.join(map(repr, attacks))} uses adversary.knows_batch_labels: leave it out "
            "(knows_labels gives labels without batches), or attack with dlfa or dlfa_published."
        )
    _check_gate_metric(gate.metric, sources)
    metrics = tuple(dict.fromkeys(plan.metrics.names))
    job = Job(sources, attacks, metrics, gate, plan.repeats, plan.seed, text, Effort(plan.effort))
    rehearse(sources, attacks)
    return job


def _recordings(table: RecordingTable | BundleTable, adversary: AdversaryTable, folder: Path) -> list[Recorded]:
    """Return the sources of a recording's table: one message, or those of a bundle."""
    if isinstance(table, BundleTable):
        return recorded_bundle(table, adversary, folder)
    return [recorded_message(table, adversary, folder)]


def check_without_code(plan: Plan, folder: Path) -> list[Section]:
    """Check names, options, files and data, as far as they need no code outside fedglass.

    Return the threat model as far as it could be checked.
    """
    with no_code():
        attacks = {
            table.label or table.name: _attack(table, plan.adversary, folder)
            for table in plan.attacks
            if not code_of(table, "attacks")
        }
        for name in plan.metrics.names:
            if not list(code_named("metrics", name)):
                metric(name)
        sources = _sources_without_code(plan, folder)
        parts = {"Attacks": [f"{name} = {attack!r}" for name, attack in attacks.items()]}
        if not list(code_named("metrics", plan.gate.metric)):
            gate = plan.gate.value()
            _check_gate_metric(gate.metric, sources)
            parts["Judgement"] = [f"An image counts as recovered with {gate.rule}."]
        rehearse(sources, attacks)
        sections = [section for source in sources for section in source.threat()]
    return [*sections, *((title, texts) for title, texts in parts.items() if texts)]


def _sources_without_code(plan: Plan, folder: Path) -> list[Source]:
    """Return the sources that consist of built-in parts only; of the others check the built-in parts."""
    own_defences = [table for table in plan.defences if code_of(table, "defences")]
    defences_of([table for table in plan.defences if table not in own_defences])
    foreign = bool(code_of(plan.adversary))
    adversary = plan.adversary.model_copy(update={"public": None}) if foreign else plan.adversary
    sources: list[Source] = []
    for table in plan.federation:
        if code_of(table) or (own_defences and table.defended):
            check_parts(table, plan.seed, folder)
        else:
            sources += _simulations(table, plan, adversary, folder)
    for recording in plan.recording:
        if not code_of(recording):
            sources += _recordings(recording, adversary, folder)
        elif isinstance(recording, BundleTable):
            spec_of(recording, *open_bundle(recording, folder))
        else:
            check_recording(recording, plan.adversary, folder)
    return sources


def _attack(table: AttackTable, adversary: AdversaryTable, folder: Path) -> AnyAttack:
    """Return the attack with its options, start and refinements; paths of models are relative to the plan."""
    attack = _composed(table, adversary, folder)
    if table.start is not None:
        attack = start_from(attack, recipe(table.start))
    parts: list[Refine] = []
    for named in table.refine:
        options = checked_options(f"refine {named.name!r}", factory("refinements", named.name), named.options)
        if isinstance(model := options.get("model"), str):
            options["model"] = located_model(model, folder)
        parts.append(make("refinements", named.name, **options))
    return refined_by(attack, tuple(parts)) if parts else attack


def _composed(table: AttackTable, adversary: AdversaryTable, folder: Path) -> AnyAttack:
    """Return the attack with its options, and oracle labels if the adversary knows them and the recipe uses them."""
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
    # The labels of each true batch do not fit an attack that assumes a training of its own, and so its own batches.
    takes_batches = takes_labels and Fact.BATCH_LABELS in uses_of(attack) and Fact.TRAINING in needs_of(attack)
    if table.labels is None and adversary.knows_batch_labels and takes_batches:
        attack = recipe(table.name, **options | {"labels": make("labels", ORACLE_BATCHES)})
    return attack


def _check_gate_metric(name: str, sources: Sequence[Source]) -> None:
    """Refuse a gate whose metric cannot be computed, before the attacks run for hours."""
    for source in sources:
        reason = why_not(name, source.shape)
        if reason is not None:
            raise UsageError(f"gate.metric {name!r} cannot be computed: {reason}")
