"""From a plan to the audit that it describes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from fedglass.attack.hypotheses import AnyAttack, TryEpochs
from fedglass.attack.labels.catalogue import labels_part
from fedglass.attack.labels.given import OracleBatchLabels, OracleLabels
from fedglass.audit.audit import Job
from fedglass.audit.isolation import needs_training, oracle_facts, simulates_batches
from fedglass.audit.rehearsal import rehearse
from fedglass.audit.sources import Examples, Simulated, Source
from fedglass.core.errors import DataError, UsageError
from fedglass.core.registry import factory, takes
from fedglass.core.rng import stream
from fedglass.core.types import Whitening
from fedglass.data.catalogue import is_embedded, load, located
from fedglass.data.dataset import Dataset
from fedglass.data.partition import ByWriter, Dirichlet, Iid, Partition, Sizes
from fedglass.defend.catalogue import defence
from fedglass.fl.local import GradientFn, MeanGradient
from fedglass.fl.release import AsIs, Chain, Release
from fedglass.metrics.catalogue import metric, why_not
from fedglass.models.catalogue import build
from fedglass.models.init_names import by_name
from fedglass.models.init_names import located as initialisation_at
from fedglass.plan.options import checked_options
from fedglass.plan.recording import recorded
from fedglass.plan.schema import AdversaryTable, AttackTable, DefenceTable, FederationTable, Plan, read_plan
from fedglass.recipes.catalogue import recipe
from fedglass.rounds.client import Client
from fedglass.rounds.federation import Federation
from fedglass.rounds.views import AggregateView, Knows, ServerView, View

NO_DEFENCE = MeanGradient(), AsIs()


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
        simulated(table, plan.adversary, plan.seed, folder, *(protection if table.defended else NO_DEFENCE))
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


def defences_of(tables: Sequence[DefenceTable]) -> tuple[GradientFn, Release]:
    """At most one gradient function, and the releases one after another."""
    gradients: list[GradientFn] = []
    releases: list[Release] = []
    for table in tables:
        options = checked_options(f"defence {table.name!r}", factory("defences", table.name), table.options)
        part = defence(table.name, **options)
        if hasattr(part, "gradient"):
            gradients.append(cast(GradientFn, part))
        else:
            releases.append(part)
    if len(gradients) > 1:
        raise UsageError(
            f"defences: at most one may change the gradient of a local step, got {len(gradients)}: keep one."
        )
    release = releases[0] if len(releases) == 1 else Chain(tuple(releases)) if releases else AsIs()
    return (gradients[0] if gradients else MeanGradient()), release


def simulated(
    table: FederationTable,
    adversary: AdversaryTable,
    seed: int,
    folder: Path,
    gradient: GradientFn,
    release: Release,
) -> Simulated:
    """A federation of the plan with the adversary's views of it."""
    own_seed = seed if table.seed is None else table.seed
    init = by_name(initialisation_at(table.init, folder))
    data = _dataset(table, folder, own_seed)
    model = build(table.model, shape=data.shape, classes=data.classes, init=init, seed=own_seed)
    parts, rest = _split(table, data, own_seed)
    clients = [Client(f"client {i}", part.images, part.labels, gradient, release) for i, part in enumerate(parts)]
    federation = Federation(
        model,
        clients,
        table.training.value(),
        data.classes,
        data.whitening,
        participation=table.participation,
        seed=own_seed,
    )
    test = None if rest is None else Examples(rest.images, rest.labels)
    views = views_of(adversary, len(clients))
    return Simulated(federation, table.rounds, views, knows_of(adversary), table.name, data.class_names, test)


def views_of(adversary: AdversaryTable, clients: int) -> tuple[View, ...]:
    if adversary.view == "aggregate":
        return (AggregateView(adversary.round),)
    chosen = adversary.client
    if isinstance(chosen, list):
        return tuple(ServerView(client, adversary.round) for client in dict.fromkeys(chosen))
    every = range(clients) if isinstance(chosen, str) else [chosen]
    return tuple(ServerView(client, adversary.round) for client in every)


def knows_of(adversary: AdversaryTable) -> Knows:
    return Knows(
        training=adversary.knows_training,
        steps=adversary.knows_steps,
        labels=adversary.knows_labels,
        batch_labels=adversary.knows_batch_labels,
    )


def _dataset(table: FederationTable, folder: Path, seed: int) -> Dataset:
    whitening = None if table.whitening is None else table.whitening.value()
    read = _embedded if is_embedded(table.data) else load
    data = read(located(table.data, folder), split=table.split, size=table.size, whitening=whitening)
    if table.relabel_classes is not None:
        data = data.relabelled(table.relabel_classes, stream(seed, "labels of", table.data))
    if table.classes is None or table.classes == data.classes:
        return data
    return replace(data, classes=table.classes, class_names=None)


@functools.cache
def _embedded(source: str, *, split: str, size: int | None, whitening: Whitening | None) -> Dataset:
    """Embedded sets never change, and drawing one takes seconds."""
    return load(source, split=split, size=size, whitening=whitening)


def _split(table: FederationTable, data: Dataset, seed: int) -> tuple[list[Dataset], Dataset | None]:
    """The clients' examples, and the test examples where they are asked for."""
    shuffle = stream(seed, "partition")
    held = table.test_examples
    if held >= len(data):
        raise DataError(
            f"federation.test_examples must leave some of the {len(data)} examples of {data.name} for the "
            f"clients, got {held}: ask for fewer."
        )
    # Test examples are taken from the end, so that asking for them does not move the embedded sets' first ones.
    rest = data.subset(range(len(data) - held, len(data))) if held else None
    pool = data.take(len(data) - held)
    sizes = [table.examples] * table.clients if isinstance(table.examples, int) else table.examples
    if sizes is not None and sum(sizes) > len(pool):
        raise DataError(
            f"federation.examples asks for {sum(sizes)} examples in all ({table.clients} clients), but "
            f"{data.name} has {len(pool)}: ask for fewer examples or clients, or bring more data."
        )
    rule = partition_of(table, sizes)
    parts = [pool.subset(indices) for indices in rule.split(pool, table.clients, shuffle)]
    if sizes is None or isinstance(rule, Sizes):
        return parts, rest
    return [_cut(part, size, i) for i, (part, size) in enumerate(zip(parts, sizes, strict=True))], rest


def partition_of(table: FederationTable, sizes: Sequence[int] | None) -> Partition:
    if table.partition == "dirichlet":
        assert table.alpha is not None, "the plan's validation demands it"
        return Dirichlet(table.alpha)
    if table.partition == "writers":
        return ByWriter()
    return Iid() if sizes is None else Sizes(tuple(sizes))


def _cut(part: Dataset, size: int, client: int) -> Dataset:
    if size > len(part):
        raise DataError(
            f"federation.examples asks for {size} examples of client {client}, but the partition gives it "
            f"{len(part)}: ask for fewer, or leave examples out to take what there is."
        )
    return part.take(size)


def _check_gate_metric(name: str, sources: Sequence[Source]) -> None:
    """Refuse a gate that could never be judged, before the attacks have run for hours."""
    for source in sources:
        if isinstance(source, Simulated):
            shape = tuple(source.federation.clients[0].images.shape[1:])
            reason = why_not(name, shape)
            if reason is not None:
                raise UsageError(f"gate.metric {name!r} can not be computed: {reason}")
