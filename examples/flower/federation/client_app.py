"""The client. Recording is the mod that the app is made with, and the metric that gives the client a name."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from federation.task import MEAN, RECORDINGS, STD, Net, data_of, train
from fedglass.recorders.flower import recording_mod

app = ClientApp(
    mods=[recording_mod(RECORDINGS / "clients", truth=RECORDINGS / "bundle-truth", whitening=(MEAN, STD))],
)


@app.train()
def trained(message: Message, context: Context) -> Message:
    partition, config = int(context.node_config["partition-id"]), context.run_config
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    batches = data_of(partition, str(config["data"]), int(config["examples"]), int(config["batch-size"]))
    loss = train(model, batches, int(config["epochs"]), float(config["lr"]), float(config["momentum"]))
    metrics = {"num-examples": int(config["examples"]), "loss": loss, "partition-id": partition}
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=message)
