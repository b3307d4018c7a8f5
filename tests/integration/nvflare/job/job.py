"""A job of two clients and two rounds: `python job.py <folder>`."""

from __future__ import annotations

import sys
from pathlib import Path

from network import Net
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

from fedglass.recorders.nvflare import record_clients, record_server

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    recipe = FedAvgRecipe(name="tiny", model=Net(), min_clients=2, num_rounds=2, train_script="client.py")
    record_server(recipe, folder / "bundle", clients=folder / "clients")
    record_clients(recipe, folder / "clients", truth=folder / "bundle-truth", whitening=((0.0,), (1.0,)))
    # One that changes nothing, so that the aggregate stays the mean of what was recorded.
    recipe.add_client_output_filter(PercentilePrivacy(percentile=0, gamma=1000.0), tasks=["train"])
    recipe.execute(SimEnv(num_clients=2, num_threads=2, workspace_root=str(folder / "workspace")))
