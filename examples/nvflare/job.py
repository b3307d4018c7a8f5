"""The job: two sites, two rounds, and two lines that record it."""

from __future__ import annotations

from network import MEAN, STD, Net
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

from fedglass.recorders.nvflare import record_clients, record_server

if __name__ == "__main__":
    recipe = FedAvgRecipe(name="photos", model=Net(), min_clients=2, num_rounds=2, train_script="client.py")
    record_server(recipe, "recordings/bundle", clients="recordings/clients")
    record_clients(recipe, "recordings/clients", truth="recordings/bundle-truth", whitening=(MEAN, STD))
    recipe.execute(SimEnv(num_clients=2))
