"""From a plan to the audit that it describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedglass.attack.hypotheses import AnyAttack, TryEpochs
from fedglass.attack.labels.catalogue import labels_part
from fedglass.attack.labels.given import OracleBatchLabels, OracleLabels
from fedglass.audit.audit import Job
from fedglass.audit.isolation import needs_training, oracle_facts, simulates_batches
from fedglass.audit.rehearsal import rehearse
from fedglass.audit.target import Source
from fedglass.core.errors import UsageError
from fedglass.core.registry import factory, takes
from fedglass.metrics.catalogue import metric, why_not
from fedglass.plan.federation import Protection, defences_of, simulated
from fedglass.plan.options import checked_options
from fedglass.plan.recording import recorded
from fedglass.plan.schema import AdversaryTable, AttackTable, Plan, read_plan
from fedglass.recipes.catalogue import recipe


def read_job(path: Path) -> Job:
    """The audit that a plan file describes; paths in it are relative to the file."""
    plan, text = read_plan(path)
    return compile_plan(plan, path.resolve().parent, text)


def compile_plan(plan: Plan, folder: Path, text: str | None = None) -> Job:
    """Load the data, build the models and compose the attacks of a plan."""
    # Names are cheap to check and often wrong: they come before the data.
    attacks = {a.label or a.name: attack_of(a, plan.adversary) for a in plan.attacks}
    _check_recordings(plan, attacks)
    for name in plan.metrics.names:
        metric(name)
    gate = plan.gate.value()
    protection = defences_of(plan.defences)
    sources: list[Source] = [
        simulated(table, plan.adversary, plan.seed, folder, protection if table.defended else Protection())
        for table in plan.federation
    ]
    sources += [recorded(table, plan.adversary, folder) for table in plan.recording]
    _check_batch_labels(plan.adversary, attacks)
    _check_gate_metric(gate.metric, sources)
    metrics = tuple(dict.fromkeys(plan.metrics.names))
    job = Job(sources, attacks, metrics, gate, plan.repeats, plan.seed, text)
    rehearse(sources, attacks)
    return job


def attack_of(table: AttackTable, adversary: AdversaryTable) -> AnyAttack:
    """The attack with its options; oracle labels where the adversary knows them and the recipe can use them."""
    make, where = factory("attacks", table.name), f"attack {table.name!r}"
    options = checked_options(where, make, table.options)
    takes_labels = takes(make, "labels")
    if table.labels is not None:
        if not takes_labels:
            raise UsageError(f"{where}: labels can not be chosen, the recipe has its own: leave labels out.")
        options["labels"] = labels_part(table.labels)
    elif takes_labels and adversary.knows_labels:
        options["labels"] = OracleLabels()
    attack = recipe(table.name, **options)
    if table.labels is None and takes_labels and adversary.knows_batch_labels and simulates_batches(attack):
        attack = recipe(table.name, **options | {"labels": OracleBatchLabels()})
    if not adversary.knows_training:
        _check_ignorant(where, attack, adversary)
    return attack


def _check_ignorant(where: str, attack: AnyAttack, adversary: AdversaryTable) -> None:
    """Refuse an attack for which the adversary would have to know the training, or at least its length."""
    if needs_training(attack):
        steps = "" if adversary.knows_steps else "adversary.knows_steps = true and "
        raise UsageError(
            f"{where} simulates the client, whose learning rate, epochs and batch size the adversary does not know: "
            f"set adversary.knows_training = true, or {steps}attack with sme or dlfa_unknown_epochs, or attack with "
            "inverting_gradients."
        )
    if isinstance(attack, TryEpochs) and not adversary.knows_steps:
        raise UsageError(
            f"{where} tries the trainings that have the client's number of local steps, which the adversary does not "
            "know: set adversary.knows_steps = true, or attack with inverting_gradients."
        )
    if isinstance(attack, TryEpochs) and "batch_labels" in oracle_facts(attack):
        raise UsageError(
            f"{where} supposes other batches than the client's, to which the labels of each true batch can not "
            'belong: set adversary.knows_labels = true and labels = "oracle", or attack with dlfa_published and '
            "adversary.knows_training = true."
        )


def _check_recordings(plan: Plan, attacks: Mapping[str, AnyAttack]) -> None:
    """Refuse a simulation of a client of whose training the recording says nothing."""
    untold = [table for table in plan.recording if table.training is None]
    for name, attack in attacks.items():
        if needs_training(attack) and untold:
            raise UsageError(
                f"attack {name!r} simulates the client, whose learning rate, epochs and batch size are missing: add "
                "recording.training = { lr = ..., epochs = ..., batch_size = ... }, or attack with "
                "inverting_gradients."
            )
        if isinstance(attack, TryEpochs) and any(table.steps is None for table in untold):
            raise UsageError(
                f"attack {name!r} tries the trainings of a number of local steps, which is missing: add recording.lr "
                "and recording.steps, or attack with inverting_gradients."
            )


def _check_batch_labels(adversary: AdversaryTable, attacks: Mapping[str, AnyAttack]) -> None:
    """Refuse knowledge that the report would state and no attack has a use for."""
    if adversary.knows_batch_labels and not any("batch_labels" in oracle_facts(a) for a in attacks.values()):
        raise UsageError(
            f"adversary.knows_batch_labels is of no use to {' and '.join(map(repr, attacks))}: leave it out "
            "(knows_labels tells labels without their batches), or attack with dlfa or dlfa_published."
        )


def _check_gate_metric(name: str, sources: Sequence[Source]) -> None:
    """Refuse a gate that could never be judged, before the attacks have run for hours."""
    for source in sources:
        reason = why_not(name, source.shape)
        if reason is not None:
            raise UsageError(f"gate.metric {name!r} can not be computed: {reason}")
