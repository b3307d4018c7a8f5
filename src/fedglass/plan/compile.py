"""Compile a plan into an audit: load the data, build the models, compose the attacks, and expand sweeps.

A plan can also be checked without running code outside fedglass. The second half makes the simulated federation of a
plan: its data and clients, their defences and behaviours, the adversary's views.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from torch import nn

from fedglass.attack.best_of import AnyAttack, refined_by, start_from
from fedglass.attack.defaults import locate_paths
from fedglass.attack.malicious_server import CraftedModel
from fedglass.attack.parts import Refine, needs_of, uses_of
from fedglass.audit.audit import Effort, Job, rehearse
from fedglass.audit.probes import iterations_of
from fedglass.audit.public_data import Public
from fedglass.audit.recorded import Recorded
from fedglass.audit.simulated import Simulated, Source
from fedglass.audit.target import Section
from fedglass.core.errors import DataError, UsageError, no_code, unknown_name
from fedglass.core.facts import Fact
from fedglass.core.registry import factory, find, make, takes
from fedglass.core.rng import stream
from fedglass.data.catalogue import is_embedded, load, located
from fedglass.data.dataset import ByWriter, Dataset, Dirichlet, Iid, Partition, Sizes, stratified_rows
from fedglass.diffusion.stored import located_model
from fedglass.federation.behaviours import Behaviour, Honest, PerRound, RejoinAfterRejection
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation
from fedglass.federation.peer import PeerView
from fedglass.federation.transcript import ParticipantsByRound
from fedglass.federation.truth import Examples
from fedglass.federation.views import AggregateView, MaliciousServerView, ServerView, View
from fedglass.fl.aggregate.rule import Aggregator, WeightedMean
from fedglass.fl.loss.targets import targets_from_classes
from fedglass.fl.release import Protection
from fedglass.metrics.catalogue import metric, why_not
from fedglass.models.catalogue import build
from fedglass.models.init import Initialisation, by_name
from fedglass.models.init import located as initialisation_at
from fedglass.models.names import matching_parameters, with_fixed
from fedglass.plan.bundles import check_adversary, model_spec, open_bundle, recorded_bundle
from fedglass.plan.loose_files import check_recording, knows_of, recorded_message
from fedglass.plan.options import (
    checked_options,
    code_named,
    code_of,
    crafted_model_of,
    defences_of,
    joined,
    made,
    public_of,
    public_sample,
)
from fedglass.plan.schema import AdversaryTable, AttackTable, Plan, read_plan
from fedglass.plan.tables import BundleTable, FederationTable, GroupTable, PartTable, RecordingTable
from fedglass.recipes import recipe
from fedglass.recordings.reader import read_bundle
from fedglass.verdict.texts import count

ORACLE, ORACLE_BATCHES = "oracle", "oracle_batches"
"""Labels parts for an adversary that knows the true labels, and for one that knows those of each batch."""
_load_once = functools.cache(load)
"""For embedded data: drawing them takes seconds, and they never change."""


def _simulations(
    table: FederationTable, plan: Plan, adversary: AdversaryTable, folder: Path, crafted: CraftedModel | None
) -> Iterator[Simulated]:
    """Yield one federation for each value of the sweep, named after it; without a sweep yield one."""
    sweep, defences = table.sweep, plan.defences
    if sweep is None:
        protection = defences_of(defences if table.defended else ())
        yield simulated(table, adversary, plan.seed, folder, protection, crafted=crafted)
        return
    names = [defence.name for defence in defences]
    if names.count(sweep.defence) > 1:
        raise UsageError(f"federation.sweep: the plan has {sweep.defence!r} more than once: keep one of them.")
    if sweep.defence not in names:
        raise UsageError(f"federation.sweep: {unknown_name('defence of the plan', sweep.defence, names)}")
    for value in sweep.values:
        changed = [
            PartTable.model_validate({"name": defence.name, **defence.options, sweep.option: value})
            if defence.name == sweep.defence
            else defence
            for defence in defences
        ]
        name = f"{table.name}{', ' if table.name else ''}{sweep.option} {value:g}"
        swept, protection = {sweep.option: float(value)}, defences_of(changed)
        named = table.model_copy(update={"name": name})
        yield simulated(named, adversary, plan.seed, folder, protection, swept, crafted)


def read_job(path: Path) -> Job:
    """Return the audit that a plan file describes; its paths are relative to the file."""
    plan, text = read_plan(path)
    return compile_plan(plan, path.resolve().parent, text)


def compile_plan(plan: Plan, folder: Path, text: str | None = None, recorded: Sequence[Recorded] | None = None) -> Job:
    """Load the data, build the models and compose the attacks of a plan.

    `recorded` are the sources of the plan's recordings if they were read already.
    """
    # Names are cheap to check and often wrong, so they are checked before the data.
    attacks = _attacks(plan.attacks, plan.adversary, folder)
    for name in plan.metrics.names:
        metric(name)
    gate, crafted = plan.gate.value(), crafted_model_of(attacks, plan.adversary.view)
    defences_of(plan.defences)  # checked even if no federation uses them
    sources: list[Source] = [
        source for table in plan.federation for source in _simulations(table, plan, plan.adversary, folder, crafted)
    ]
    if recorded is None:
        recorded = list(_recordings(plan.recording, plan.adversary, folder))
    sources += recorded
    if plan.adversary.knows_batch_labels and not any(Fact.BATCH_LABELS in needs_of(a) for a in attacks.values()):
        raise UsageError(
            f"None of the attacks {', '.join(map(repr, attacks))} uses adversary.knows_batch_labels: leave it out "
            "(knows_labels gives labels without batches), or attack with dlfa or dlfa_published."
        )
    _check_gate_metric(gate.metric, sources)
    metrics = tuple(dict.fromkeys(plan.metrics.names))
    texts = _descriptions(plan.attacks, attacks)
    job = Job(sources, attacks, metrics, gate, plan.repeats, plan.seed, text, texts, Effort(plan.effort))
    rehearse(sources, attacks)
    return job


def _recordings(
    tables: Sequence[RecordingTable | BundleTable], adversary: AdversaryTable, folder: Path
) -> Iterator[Recorded]:
    """Yield the sources of recordings: one message, or those of a bundle, which is read once for all its tables."""
    read = functools.cache(read_bundle)
    for table in tables:
        if isinstance(table, BundleTable):
            check_adversary(table, adversary)
            yield from recorded_bundle(table, adversary, folder, open_bundle(table, folder, read))
        else:
            yield recorded_message(table, adversary, folder)


def check_without_code(plan: Plan, folder: Path) -> list[Section]:
    """Check names, options, files and data, as far as they need no code outside fedglass.

    Return the threat model as far as it could be checked.
    """
    with no_code():
        tables = [table for table in plan.attacks if not code_of(table, "attacks")]
        attacks = _attacks(tables, plan.adversary, folder)
        for name in plan.metrics.names:
            if not list(code_named("metrics", name)):
                metric(name)
        # An attack of the plan's own code may be the one that crafts the model.
        crafted = crafted_model_of(attacks, plan.adversary.view) if len(tables) == len(plan.attacks) else None
        sources = _sources_without_code(plan, folder, crafted)
        parts = {"Attacks": list(_descriptions(tables, attacks).values())}
        if not list(code_named("metrics", plan.gate.metric)):
            gate = plan.gate.value()
            _check_gate_metric(gate.metric, sources)
            parts["Judgement"] = [f"An image counts as recovered with {gate.rule}."]
        rehearse(sources, attacks)
        sections = [section for source in sources for section in source.threat()]
    return [*sections, *((title, texts) for title, texts in parts.items() if texts)]


def _sources_without_code(plan: Plan, folder: Path, crafted: CraftedModel | None) -> list[Source]:
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
            sources += _simulations(table, plan, adversary, folder, crafted)
    for recording in filter(code_of, plan.recording):
        if isinstance(recording, BundleTable):
            model_spec(recording, *open_bundle(recording, folder))
        else:
            check_recording(recording, plan.adversary, folder)
    return [*sources, *_recordings([table for table in plan.recording if not code_of(table)], adversary, folder)]


def _attacks(tables: Sequence[AttackTable], adversary: AdversaryTable, folder: Path) -> dict[str, AnyAttack]:
    return {table.label or table.name: _attack(table, adversary, folder) for table in tables}


def _descriptions(tables: Sequence[AttackTable], attacks: Mapping[str, AnyAttack]) -> dict[str, str]:
    """Return a sentence about each attack: what its recipe does, its options, and how long it searches."""
    return {name: _description(name, table, attacks[name]) for table in tables if (name := table.label or table.name)}


def _description(name: str, table: AttackTable, attack: AnyAttack) -> str:
    does = find("attacks", table.name).summary.rstrip(".")
    restarts, iterations = getattr(attack, "restarts", 1), iterations_of(attack)
    details = [
        *([] if table.label is None else [table.name]),
        *([] if iterations is None else [count(iterations, "iteration")]),
        *([] if restarts == 1 else [f"{restarts} starts"]),
        *([] if table.start is None else [f"starts from {table.start}"]),
        *([] if table.labels is None else [f"labels by {table.labels}"]),
        *(f"{option} {value}" for option, value in table.options.items() if option not in ("iterations", "restarts")),
        *([] if not table.refine else [f"refined by {', '.join(part.name for part in table.refine)}"]),
    ]
    how = f" ({', '.join(details)})" if details else ""
    return f"{name}{how}: {does}."


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


# The simulated federation of a plan.


def behaviour_of(group: GroupTable) -> Behaviour:
    """Return the behaviour of a group: honest by default, one for each round, or one that rejoins under new names."""
    behaviours = [cast(Behaviour, made("behaviours", table)) for table in group.behaviour]
    behaviour = Honest() if not behaviours else behaviours[0] if len(behaviours) == 1 else PerRound(tuple(behaviours))
    return behaviour if group.rejoins_after is None else RejoinAfterRejection(behaviour, group.rejoins_after)


def simulated(
    table: FederationTable,
    adversary: AdversaryTable,
    seed: int,
    folder: Path,
    protection: Protection,
    swept: Mapping[str, float] | None = None,
    crafted: CraftedModel | None = None,
) -> Simulated:
    """Return a federation of the plan with the adversary's views of it; a malicious server replaces its model."""
    own_seed = seed if table.seed is None else table.seed
    init = by_name(initialisation_at(table.init, folder))
    training = table.training.value()
    data = _dataset(table, folder, own_seed)
    data = replace(data, labels=targets_from_classes(training.loss, data.labels, data.classes))
    model = _model(table, data, init, own_seed)
    examples, test, at_server, unused = _split(table, data, own_seed)
    public = public_of(adversary, data.shape, folder)
    if public is None and unused:
        public = Public.of(data.images, data.labels, unused)
    if crafted is not None:
        model = crafted.craft(model, public_sample(public, data.whitening))
    federation = Federation(
        model,
        _clients(table, examples, protection),
        training,
        data.classes,
        data.whitening,
        aggregator=WeightedMean() if table.rule is None else cast(Aggregator, made("rules", table.rule)),
        participation=table.participation,
        seed=own_seed,
        server=None if at_server is None else Client("the server", at_server.images, at_server.labels),
    )
    views = views_of(adversary, federation.participants_by_round(table.rounds))
    return Simulated(
        federation,
        table.rounds,
        views,
        knows_of(adversary),
        table.name,
        data.class_names,
        None if test is None else Examples(test.images, test.labels),
        public,
        swept or {},
    )


def check_parts(table: FederationTable, seed: int, folder: Path) -> None:
    """Check the data, the model and the initial weights, as far as they need no code outside fedglass."""
    own_seed = seed if table.seed is None else table.seed
    names = {"datasets": table.data, "models": table.model, "initialisations": table.init}
    built_in = {kind for kind, name in names.items() if not list(code_named(kind, name))}
    init = by_name(initialisation_at(table.init, folder)) if "initialisations" in built_in else None
    if "datasets" not in built_in:
        return
    data = _dataset(table, folder, own_seed)
    _split(table, data, own_seed)
    if "models" in built_in and init is not None:
        _model(table, data, init, own_seed)


def _model(table: FederationTable, data: Dataset, init: Initialisation, seed: int) -> nn.Module:
    single = table.training.loss is not None
    model = build(table.model, shape=data.shape, classes=data.classes, init=init, seed=seed, single_output=single)
    return with_fixed(model, matching_parameters(model, table.untrained)) if table.untrained else model


def _clients(table: FederationTable, parts: Sequence[Dataset], protection: Protection) -> list[Client]:
    """Return the clients, with the keys of their groups."""
    groups = {client: group for group in table.group for client in group.clients}
    clients = []
    for i, part in enumerate(parts):
        group = groups.get(i, GroupTable(clients=[i]))
        chosen = protection if group.defences is None else defences_of(group.defences)
        training = None if group.training is None else group.training.value()
        behaviour = behaviour_of(group)
        name, (gradient, release) = f"client {i}", (chosen.gradient, chosen.release)
        clients.append(Client(name, part.images, part.labels, gradient, release, behaviour, training))
    return clients


def views_of(adversary: AdversaryTable, attendance: ParticipantsByRound) -> tuple[View, ...]:
    """Return one view for each round, and for each client that a server sees or that is the peer."""
    rounds = dict.fromkeys(adversary.round if isinstance(adversary.round, list) else [adversary.round])
    kinds: dict[str, Callable[[int, int], View]] = {"peer": PeerView, "malicious_server": MaliciousServerView}
    kind = kinds.get(adversary.view, ServerView)
    views: list[tuple[View, int | None]] = (
        [(AggregateView(index), None) for index in rounds]
        if adversary.view == "aggregate"
        else [(kind(c, index), c) for index in rounds for c in _audited_clients(adversary, attendance, index)]
    )
    return tuple(view for view, _ in joined(views, adversary.together))


def _audited_clients(adversary: AdversaryTable, attendance: ParticipantsByRound, index: int) -> Sequence[int]:
    """Return the positions of the audited clients; "all" are those that take part in that round."""
    chosen = adversary.client
    if isinstance(chosen, str):
        present = set(attendance.in_round(index))
        return [position for position, name in enumerate(attendance.clients) if name in present]
    return list(dict.fromkeys(chosen)) if isinstance(chosen, list) else [chosen]


def _dataset(table: FederationTable, folder: Path, seed: int) -> Dataset:
    whitening = None if table.whitening is None else table.whitening.value()
    read: Callable[..., Dataset] = _load_once if is_embedded(table.data) else load
    data = read(located(table.data, folder), split=table.split, size=table.size, whitening=whitening)
    if table.relabel_classes is not None:
        data = data.relabelled(table.relabel_classes, stream(seed, "labels of", table.data))
    if table.classes is None or table.classes == data.classes:
        return data
    return replace(data, classes=table.classes, class_names=None)


def _split(
    table: FederationTable, data: Dataset, seed: int
) -> tuple[list[Dataset], Dataset | None, Dataset | None, list[int]]:
    """Return the examples of each client, of the test and of the server, and the rows that no client has."""
    shuffle = stream(seed, "partition")
    tests, at_server = table.test_examples, table.server_examples
    if tests + at_server >= len(data):
        text = f"test_examples must leave some of the {len(data)} examples of {data.name} for the clients, got {tests}"
        text = text if not at_server else f"{text}, and server_examples {at_server}"
        raise DataError(f"federation.{text}: ask for fewer.")
    test_rows = stratified_rows(data.labels, tests, stream(seed, "test examples")).tolist()
    others = _without(range(len(data)), test_rows)
    server_rows = [
        others[i] for i in stratified_rows(data.labels[others], at_server, stream(seed, "server examples")).tolist()
    ]
    test = data.subset(test_rows) if tests else None
    server = data.subset(server_rows) if at_server else None
    free = _without(others, server_rows)
    pool = data.subset(free)
    sizes = [table.examples] * table.clients if isinstance(table.examples, int) else table.examples
    if sizes is not None and sum(sizes) > len(pool):
        raise DataError(
            f"federation.examples asks for {sum(sizes)} examples in all ({table.clients} clients), but "
            f"{data.name} has {len(pool)}: ask for fewer examples or clients, or bring more data."
        )
    rule = partition_of(table, sizes)
    rows = rule.split(pool, table.clients, shuffle)
    parts = [pool.subset(indices) for indices in rows]
    if sizes is not None and not isinstance(rule, Sizes):
        parts = [_cut(part, size, i) for i, (part, size) in enumerate(zip(parts, sizes, strict=True))]
    used = [free[int(row)] for indices, part in zip(rows, parts, strict=True) for row in indices[: len(part)]]
    return parts, test, server, _without(range(len(data)), used)


def _without(rows: Iterable[int], taken: Iterable[int]) -> list[int]:
    gone = set(taken)
    return [row for row in rows if row not in gone]


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
