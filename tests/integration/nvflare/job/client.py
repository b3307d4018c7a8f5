"""A client's script as NVFlare's users write it; it knows nothing of fedglass."""

from __future__ import annotations

import nvflare.client as flare
import torch
from network import Net, examples
from torch.nn import functional as F

flare.init()
images, labels = examples(flare.get_site_name())
while flare.is_running():
    model = Net()
    model.load_state_dict(flare.receive().params)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        for rows in torch.randperm(len(labels)).split(3):
            optimiser.zero_grad()
            F.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimiser.step()
    flare.send(flare.FLModel(params=model.state_dict(), metrics={"loss": 1.0}, meta={"NUM_STEPS_CURRENT_ROUND": 4}))
