"""The server. Recording is one line: the strategy is wrapped."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from federation.task import RECORDINGS, first_model
from fedglass.recorders.flower import recorded

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_evaluate=0.0)
    strategy = recorded(strategy, RECORDINGS / "bundle", clients=RECORDINGS / "clients")
    first = ArrayRecord(first_model().state_dict())
    strategy.start(grid=grid, initial_arrays=first, num_rounds=int(context.run_config["rounds"]))
