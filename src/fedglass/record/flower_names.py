"""What a Flower node is called: by what its reply says of itself, on the server as on the client.

Node ids are drawn anew in every run. A client that returns its `partition-id` as a metric keeps its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METRIC = "partition-id"


def name_of(reply: Any, node: int) -> str:
    """`client-<partition-id>` where the reply has that metric, else by its node's id.

    The older API sends metrics as a record of configuration.
    """
    records = [*reply.content.config_records.values(), *reply.content.metric_records.values()]
    return metric_name({key: value for record in records for key, value in record.items()}, node)


def metric_name(metrics: Mapping[str, Any], node: int) -> str:
    """The same, of metrics alone."""
    told = metrics.get(METRIC)
    return f"client-{int(told)}" if isinstance(told, int | float) else node_name(node)


def node_name(node: int) -> str:
    return f"node-{node}"
