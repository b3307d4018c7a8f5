"""The federation of `bench.rounds` as apps of Flower."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from bench import rounds
from fedglass.core.tensors import Params, add, buffers_of
from fedglass.federation.client import TrainRequest, train_client
from fedglass.federation.federation import Federation

app = ClientApp()


@functools.cache
def known(index: int) -> tuple[Federation, Any]:
    """Made once in each actor, as a Flower app keeps its data."""
    return rounds.federation(1), rounds.client(index)


@app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    crowd, client = known(int(context.node_config["partition-id"]))
    before = message.content["arrays"].to_torch_state_dict()
    index = int(message.content["config"]["server-round"]) - 1
    call = TrainRequest(
        crowd.model, before, buffers_of(crowd.model), crowd.training, crowd.whitening, crowd.seed, index
    )
    after = add(before, train_client(client, call).update)
    metrics = MetricRecord({"num-examples": len(client.labels)})
    return Message(content=RecordDict({"arrays": ArrayRecord(after), "metrics": metrics}), reply_to=message)


class Timed(FedAvg):
    """Knows when each round began."""

    began: list[float]

    def configure_train(self, *arguments: Any, **more: Any) -> Iterable[Message]:
        self.began.append(time.perf_counter())
        found: Iterable[Message] = super().configure_train(*arguments, **more)
        return found


def simulate(clients: int, count: int, actors: int) -> tuple[float, Params]:
    """Rounds per minute after a first one, in which the actors start, by the fastest; and the weights at the end."""
    server, found = ServerApp(), list[Any]()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Timed(fraction_evaluate=0.0, min_available_nodes=clients, min_train_nodes=clients)
        strategy.began = []
        first = ArrayRecord(rounds.federation(1).model.state_dict())
        result = strategy.start(grid=grid, initial_arrays=first, num_rounds=count + 1)
        ends = [*strategy.began[2:], time.perf_counter()]
        fastest = min(end - began for began, end in zip(strategy.began[1:], ends, strict=True))
        found.extend([fastest, result.arrays.to_torch_state_dict()])

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    own = {"num_cpus": actors, "include_dashboard": False}
    settings = {"client_resources": resources, "init_args": own}
    run_simulation(server_app=server, client_app=app, num_supernodes=clients, backend_config=settings)
    seconds, weights = found
    return 60 / seconds, weights
