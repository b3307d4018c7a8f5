"""The training of simulated clients in the workers that also run the cases of an audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from fedglass.attack.parts import Progress
from fedglass.execution.executor import FAILURES, Callbacks, Executor, FailedJob, PooledExecutor, UnsendableJob
from fedglass.federation.client import Client, TrainClients, TrainRequest, train_sequentially
from fedglass.federation.transcript import Message

GROUPS_PER_WORKER = 2
"""Groups of clients for each worker: several, since some clients train longer than others."""

ClientGroup = tuple[Sequence[Client], TrainRequest]
"""Clients that train in one process: the model is sent once for all of them."""
NO_CALLBACKS: Callbacks[ClientGroup] = Callbacks(lambda group: None, lambda group, done, total: None)


def client_trainer(executor: Executor) -> TrainClients:
    """Return a function that trains clients: in the workers of a pool, else here (a queue is longer than a round)."""
    return partial(train_in_workers, executor) if isinstance(executor, PooledExecutor) else train_sequentially


def train_in_workers(executor: PooledExecutor, clients: Sequence[Client], call: TrainRequest) -> list[Message]:
    """Train clients in the workers of an executor, and in this process where no worker could.

    That covers parts that cannot be sent, workers that were killed, and clients that fail: their error is then raised
    here, as it is without workers.
    """
    groups = [(members, call) for members in _split(clients, GROUPS_PER_WORKER * executor.slots())]
    if len(groups) <= 1:
        return train_sequentially(clients, call)
    messages_by_group: dict[int, list[Message]] = {}
    try:
        for group, messages in executor.run(train_group, groups, NO_CALLBACKS):
            if messages is not None and not isinstance(messages, FailedJob):
                messages_by_group[id(group)] = messages
    except UnsendableJob:
        return train_sequentially(clients, call)
    return [message for group in groups for message in (messages_by_group.get(id(group)) or train_sequentially(*group))]


def train_group(group: ClientGroup, progress: Progress) -> list[Message] | None:
    """Return the messages of these clients, or None if one of them fails."""
    try:
        return train_sequentially(*group)
    except FAILURES:
        return None


def _split(clients: Sequence[Client], groups: int) -> list[list[Client]]:
    """Split the clients, in their order, into groups of nearly equal size, none of them empty."""
    count = min(groups, len(clients))
    bounds = pairwise(round(i * len(clients) / count) for i in range(count + 1))
    compact = list(map(_without_views, clients))
    return [compact[first:last] for first, last in bounds]


def _without_views(client: Client) -> Client:
    """Return the client with examples of their own memory: a view would be sent with all of its larger tensor."""
    if all(t.untyped_storage().nbytes() == t.nbytes for t in (client.images, client.labels)):
        return client
    return replace(client, images=client.images.clone(), labels=client.labels.clone())
