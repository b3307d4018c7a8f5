"""The simulated federation of a plan: its data and clients, their defences and behaviours, the adversary's views."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from torch import nn

from fedglass.audit.public import Public
from fedglass.audit.simulated import Simulated
from fedglass.core.errors import DataError
from fedglass.core.rng import stream
from fedglass.core.types import Whitening
from fedglass.data.catalogue import is_embedded, load, located
from fedglass.data.dataset import Dataset
from fedglass.data.held_out import stratified_rows
from fedglass.data.partition import ByWriter, Dirichlet, Iid, Partition, Sizes
from fedglass.federation.behaviours import Behaviour, Honest, PerRound, RejoinAfterRejection
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation
from fedglass.federation.peer import PeerView
from fedglass.federation.transcript import ParticipantsByRound
from fedglass.federation.truth import Examples
from fedglass.federation.views import AggregateView, ServerView, View
from fedglass.fl.aggregate.rule import Aggregator, WeightedMean
from fedglass.fl.release import Protection
from fedglass.models.catalogue import build
from fedglass.models.fixed import matching_parameters, with_fixed
from fedglass.models.init import Initialisation, by_name
from fedglass.models.init import located as initialisation_at
from fedglass.plan.code import code_named
from fedglass.plan.loose_files import knows_of
from fedglass.plan.options import defences_of, joined, made, public_of
from fedglass.plan.schema import AdversaryTable
from fedglass.plan.tables import FederationTable, GroupTable


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
) -> Simulated:
    """Return a federation of the plan with the adversary's views of it."""
    own_seed = seed if table.seed is None else table.seed
    init = by_name(initialisation_at(table.init, folder))
    data = _dataset(table, folder, own_seed)
    model = _model(table, data, init, own_seed)
    examples, test, at_server, unused = _split(table, data, own_seed)
    federation = Federation(
        model,
        _clients(table, examples, protection),
        table.training.value(),
        data.classes,
        data.whitening,
        aggregator=WeightedMean() if table.rule is None else cast(Aggregator, made("rules", table.rule)),
        participation=table.participation,
        seed=own_seed,
        server=None if at_server is None else Client("the server", at_server.images, at_server.labels),
    )
    views = views_of(adversary, federation.participants_by_round(table.rounds))
    public = public_of(adversary, data.shape, folder)
    if public is None and unused:
        public = Public.of(data.images, data.labels, unused)
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
    model = build(table.model, shape=data.shape, classes=data.classes, init=init, seed=seed)
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
    kind = PeerView if adversary.view == "peer" else ServerView
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
    read = _embedded if is_embedded(table.data) else load
    data = read(located(table.data, folder), split=table.split, size=table.size, whitening=whitening)
    if table.relabel_classes is not None:
        data = data.relabelled(table.relabel_classes, stream(seed, "labels of", table.data))
    if table.classes is None or table.classes == data.classes:
        return data
    return replace(data, classes=table.classes, class_names=None)


@functools.cache
def _embedded(source: str, *, split: str, size: int | None, whitening: Whitening | None) -> Dataset:
    """Load an embedded set once: drawing it takes seconds, and it never changes."""
    return load(source, split=split, size=size, whitening=whitening)


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
