"""The clients of a simulated federation, trained where the cases are played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fedglass.attack.parts import Progress
from fedglass.execution.executor import FAILURES, Executor, Lost, Ready, Unsendable, Watch
from fedglass.federation.client import Client, TrainClients, TrainRequest, train_sequentially
from fedglass.federation.transcript import Message

SHARES = 2
"""Groups of clients for each worker: some clients train longer than others."""

UNWATCHED: Watch[Group] = Watch(lambda group: None, lambda group, done, total: None)


def answers_of(executor: Executor) -> TrainClients:
    """In the executor's workers where they wait for the next round, else here: a queue takes longer than a round."""
    return Crew(executor) if isinstance(executor, Ready) else train_sequentially


@dataclass(frozen=True, eq=False)
class Group:
    """Clients that respond to one call in one process: the model travels once for all of them."""

    clients: Sequence[Client]
    call: TrainRequest


@dataclass(frozen=True, eq=False)
class Crew:
    """Has clients respond in the workers of an executor; what no worker could do is done here.

    That covers parts that can not be sent, workers that were killed, and clients that fail: the error is then raised
    here, as it is without workers.
    """

    executor: Ready

    def __call__(self, clients: Sequence[Client], call: TrainRequest) -> list[Message]:
        groups = [Group(members, call) for members in _shared_out(clients, SHARES * self.executor.slots())]
        if len(groups) <= 1:
            return train_sequentially(clients, call)
        answered: dict[int, list[Message]] = {}
        try:
            for group, answer in self.executor.run(respond_all, groups, UNWATCHED):
                if answer is not None and not isinstance(answer, Lost):
                    answered[id(group)] = answer
        except Unsendable:
            return train_sequentially(clients, call)
        return [
            message
            for group in groups
            for message in (answered.get(id(group)) or train_sequentially(group.clients, call))
        ]


def respond_all(group: Group, progress: Progress) -> list[Message] | None:
    """What these clients say; None where one of them fails."""
    try:
        return train_sequentially(group.clients, group.call)
    except FAILURES:
        return None


def _shared_out(clients: Sequence[Client], groups: int) -> list[list[Client]]:
    """The clients in their order, in so many groups of nearly equal size, none of them empty."""
    count = min(groups, len(clients))
    bounds = pairwise(round(i * len(clients) / count) for i in range(count + 1))
    alone = list(map(_alone, clients))
    return [alone[first:last] for first, last in bounds]


def _alone(client: Client) -> Client:
    """The client with examples that are no part of a larger tensor, which would travel with the whole of it."""
    if all(t.untyped_storage().nbytes() == t.nbytes for t in (client.images, client.labels)):
        return client
    return replace(client, images=client.images.clone(), labels=client.labels.clone())
