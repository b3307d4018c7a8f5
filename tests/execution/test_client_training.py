"""Clients that train in workers say what they say when they train here, to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fedglass.attack.parts import Progress
from fedglass.audit.audit import Job, run
from fedglass.core.errors import DataError
from fedglass.core.registry import make
from fedglass.core.types import BatchNorm, Training
from fedglass.execution.executor import (
    Callbacks,
    FailedJob,
    InProcess,
    PooledExecutor,
    Result,
    client_trainer,
    persistent,
    train_group,
    train_in_workers,
)
from fedglass.execution.executor import Job as AnyJob
from fedglass.execution.processes import Processes
from fedglass.federation.behaviours import SignFlip
from fedglass.federation.client import Client, train_sequentially
from fedglass.federation.federation import Federation
from fedglass.federation.transcript import Round

Make = Callable[..., Federation]
Same = Callable[[Any, Any], bool]


@pytest.fixture(scope="module")
def team() -> Iterator[PooledExecutor]:
    with Processes(2).persistent() as found:
        yield found


def equal(left: Round, right: Round, same: Same) -> bool:
    pairs = zip(left.messages, right.messages, strict=True)
    alike = all(a.client == b.client and same(a.update, b.update) and same(a.buffers, b.buffers) for a, b in pairs)
    return alike and same(left.step, right.step) and same(left.after, right.after)


def test_rounds_are_bit_identical(toy: Any, team: PooledExecutor, same: Same) -> None:
    plain = toy.federation(Training(lr=0.1, epochs=2, batch_size=2), clients=5)
    first, second, *others = plain.clients
    noisy = replace(second, release=make("defences", "gaussian_noise", std=0.1))
    clients = [replace(first, behaviour=SignFlip()), noisy, *others]
    normalised = toy.federation(
        Training(lr=0.1, batch_norm=BatchNorm.BATCH), model=toy.normalised(), clients=3, examples=3
    )
    for federation in (replace(plain, clients=clients, participation=0.8), normalised):
        here, there = list(federation.play(3)), list(federation.play(3, train_clients=client_trainer(team)))
        assert all(equal(a, b, same) for a, b in zip(here, there, strict=True))


def test_every_number_of_clients_is_shared_out(toy: Any, team: PooledExecutor) -> None:
    for count in (1, 2, 3, 5, 9):
        federation = toy.federation(Training(lr=0.1), clients=count, examples=1)
        (past,) = federation.play(train_clients=partial(train_in_workers, team))
        assert [m.client for m in past.messages] == [c.name for c in federation.clients]


def test_what_fails_is_told_as_it_is_without_workers(toy: Any, team: PooledExecutor) -> None:
    @dataclass(frozen=True)
    class Forgetful:
        """A behaviour of this function alone, which no worker can be sent."""

        def examples(self, turn: Any) -> tuple[torch.Tensor, torch.Tensor]:
            return turn.images[:1], turn.labels[:1]

    federation = toy.federation(Training(lr=0.1), clients=3)
    wrong = [replace(client, behaviour=Forgetful()) for client in federation.clients]
    for answers in (train_sequentially, partial(train_in_workers, team)):
        with pytest.raises(DataError, match="gave 1 images"):
            list(replace(federation, clients=wrong).play(train_clients=answers))


@dataclass(frozen=True)
class Losing:
    """Loses every second group, and has the others fail."""

    def slots(self) -> int:
        return 2

    def run(
        self, work: Callable[[AnyJob, Progress], Result], jobs: Sequence[AnyJob], callbacks: Callbacks[AnyJob]
    ) -> Iterator[tuple[AnyJob, Result | FailedJob]]:
        for index, job in enumerate(reversed(jobs)):
            yield job, FailedJob("gone") if index % 2 else work(job, lambda done, total: None)


def test_what_no_worker_answered_is_answered_here(toy: Any, same: Same) -> None:
    federation = toy.federation(Training(lr=0.1), clients=7)
    (here,), (there,) = federation.play(), federation.play(train_clients=partial(train_in_workers, Losing()))
    assert equal(here, there, same)


def test_a_part_of_a_larger_tensor_travels_alone(toy: Any) -> None:
    sent: list[Client] = []

    class Watching(Losing):
        def run(self, work: Any, jobs: Any, watch: Any) -> Any:
            sent.extend(client for clients, _ in jobs for client in clients)
            return super().run(work, jobs, watch)

    images = toy.images(40, "many")
    labels = torch.zeros(40, dtype=torch.int64)
    clients = [Client(f"c{i}", images[4 * i : 4 * i + 4], labels[4 * i : 4 * i + 4]) for i in range(10)]
    federation = toy.federation(Training(lr=0.1))
    (past,) = replace(federation, clients=clients).play(train_clients=partial(train_in_workers, Watching()))
    assert len(past.messages) == len(sent) == 10
    assert all(client.images.untyped_storage().nbytes() == client.images.nbytes for client in sent)


def test_executors_that_wait_for_nothing_train_clients_here() -> None:
    with persistent(InProcess()) as executor:
        assert client_trainer(executor) is train_sequentially
    with persistent(Processes(2)) as executor:
        assert client_trainer(executor) is not train_sequentially
    assert train_group.__module__ == "fedglass.execution.executor", "workers find it by name"


def test_an_audit_has_the_same_records_whoever_trains(
    make_job: Callable[..., Job], make_federation: Make, tmp_path: Path
) -> None:
    job = make_job(federation=make_federation(clients=4))
    found = [
        sorted((r.model_dump(exclude={"seconds", "peak_mib", "finished"}) for r in result.records), key=str)
        for result in (
            run(job, tmp_path / "here", executor=InProcess()),
            run(job, tmp_path / "there", executor=Processes(2)),
        )
    ]
    assert found[0] == found[1]
