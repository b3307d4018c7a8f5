"""A site's training script, as NVFlare's users write it; it knows nothing of fedglass."""

from __future__ import annotations

import nvflare.client as flare
import torch
from network import Net, data_of
from torch.nn import functional as F

flare.init()
batches = data_of(flare.get_site_name())
while flare.is_running():
    model = Net()
    model.load_state_dict(flare.receive().params)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels in batches:
        optimiser.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call] # of torch
        optimiser.step()
    meta = {"NUM_STEPS_CURRENT_ROUND": len(batches)}
    flare.send(flare.FLModel(params=model.state_dict(), metrics={"loss": loss.item()}, meta=meta))
