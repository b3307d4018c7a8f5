"""Flower apps that a test runs in a process of their own: `python simulations.py plain|secure <folder>`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from torch.nn import functional as F

from fedglass.recorders.flower import recorded, recording_mod

CLIENTS, EXAMPLES = 3, 4
NONE = ((0.0,), (1.0,))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Sigmoid(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 5))


def train(model: nn.Module, partition: int) -> None:
    generator = torch.Generator().manual_seed(partition)
    images = torch.rand(EXAMPLES, 1, 8, 8, generator=generator)
    labels = torch.randint(5, (EXAMPLES,), generator=generator)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    F.cross_entropy(model(images), labels).backward()
    optimiser.step()


def plain(folder: Path) -> tuple[ServerApp, ClientApp]:
    """FedAvg by the message API."""
    client = ClientApp(mods=[recording_mod(folder / "clients", truth=folder / "bundle-truth", whitening=NONE)])
    server = ServerApp()

    @client.train()
    def _train(message: Message, context: Context) -> Message:
        model, partition = network(), int(context.node_config["partition-id"])
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train(model, partition)
        metrics = MetricRecord({"num-examples": EXAMPLES, "partition-id": partition})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    @server.main()
    def _main(grid: Grid, context: Context) -> None:
        strategy = recorded(
            FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS), folder / "bundle", clients=folder / "clients"
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(network().state_dict()),
            num_rounds=2,
            train_config=ConfigRecord({"lr": 0.1}),
        )

    return server, client


def arrays(model: nn.Module) -> list[Any]:
    return [tensor.numpy() for tensor in model.state_dict().values()]


class LegacyClient(NumPyClient):
    """A client of the older API."""

    def __init__(self, partition: int) -> None:
        self.partition = partition

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        model = network()
        named = zip(model.state_dict(), parameters, strict=True)
        model.load_state_dict({name: torch.tensor(array) for name, array in named})
        train(model, self.partition)
        return arrays(model), EXAMPLES, {"partition-id": self.partition}


def secure(folder: Path) -> tuple[ServerApp, ClientApp]:
    """SecAgg+, which the message API does not have: nobody but a client itself sees its update."""

    def client_fn(context: Context) -> Any:
        return LegacyClient(int(context.node_config["partition-id"])).to_client()

    client = ClientApp(client_fn=client_fn, mods=[recording_mod(folder / "clients"), secaggplus_mod])
    server = ServerApp()

    @server.main()
    def _main(grid: Grid, context: Context) -> None:
        first = ndarrays_to_parameters(arrays(network()))
        strategy = LegacyFedAvg(
            fraction_evaluate=0.0,
            min_fit_clients=CLIENTS,
            min_available_clients=CLIENTS,
            initial_parameters=first,
        )
        legacy = LegacyContext(context, ServerConfig(num_rounds=1), recorded(strategy, folder / "bundle"))
        DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2))(grid, legacy)

    return server, client


if __name__ == "__main__":
    server_app, client_app = {"plain": plain, "secure": secure}[sys.argv[1]](Path(sys.argv[2]).absolute())
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 2, "include_dashboard": False},
        },
    )
