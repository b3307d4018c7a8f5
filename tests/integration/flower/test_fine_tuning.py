"""A federation whose clients train the last layer of a network that all of them have, and send it alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from safetensors.torch import save_file
from tests.integration.flower.conftest import EXAMPLES, Federation, Net, examples_of, whitened
from torch.nn import functional as F

from fedglass.audit.recorded import Recorded
from fedglass.audit.target import ready_target
from fedglass.checks.replay import replay
from fedglass.plan.compile import compile_plan
from fedglass.plan.schema import parse_plan
from fedglass.recorders.flower import recorded, recording_mod
from fedglass.recordings.reader import read_bundle

WHITENING = ((0.5,), (0.25,))
PLAN = """
[recording]
bundle = "bundle"
truth = "truth"
model = "tests.integration.flower.conftest:Net"
weights = "backbone.safetensors"
rounds = [1]
[[attacks]]
name = "inverting_gradients"
iterations = 3
"""


def pretrained() -> Net:
    torch.manual_seed(7)
    return Net().eval()


def head(model: Net) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("body.")}


def fine_tuning(mods: list[Any]) -> ClientApp:
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        model = pretrained()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
        model.body.requires_grad_(False)
        images, labels = examples_of(partition)
        optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        F.cross_entropy(model(whitened(images)), labels).backward()
        optimiser.step()
        metrics = MetricRecord({"num-examples": EXAMPLES, "partition-id": partition})
        content = RecordDict({"arrays": ArrayRecord(head(model)), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


def test_messages_of_the_last_layer_alone_are_explained_and_attacked(tmp_path: Path) -> None:
    mod = recording_mod(tmp_path / "clients", truth=tmp_path / "truth", whitening=WHITENING)
    strategy = recorded(
        FedAvg(fraction_evaluate=0.0, min_available_nodes=5, min_train_nodes=5),
        tmp_path / "bundle",
        clients=tmp_path / "clients",
    )
    strategy.start(grid=Federation(fine_tuning([mod])), initial_arrays=ArrayRecord(head(pretrained())), num_rounds=2)
    body = {name: tensor for name, tensor in pretrained().state_dict().items() if name.startswith("body.")}
    save_file(body, tmp_path / "backbone.safetensors")

    told = read_bundle(tmp_path / "bundle").facts_of("client-0", 1)
    sources = compile_plan(parse_plan(PLAN), tmp_path).sources
    assert all(isinstance(source, Recorded) for source in sources)
    targets = [ready_target(target) for source in sources for target in source.targets(lambda done, total: None)]

    assert told["untrained"] == {"read": [name for name, _ in Net().named_parameters() if name.startswith("body.")]}
    assert len(targets) == 5
    for target in targets:
        assert set(target.observation.update) == {"head.weight", "head.bias", "scale"}
        assert target.claim is not None
        found = replay(target.claim)
        assert found is not None
        assert found.explained
