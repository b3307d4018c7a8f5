"""What a Flower node is called: by what its reply says of itself, on the server as on the client.

Node ids are drawn anew in every run. A client that returns its `partition-id` as a metric keeps its name.
"""

from __future__ import annotations

from typing import Any

METRIC = "partition-id"


def name_of(reply: Any, node: int) -> str:
    """`client-<partition-id>` where the reply has that metric, else by its node's id."""
    for record in reply.content.metric_records.values():
        told = record.get(METRIC)
        if isinstance(told, int | float):
            return f"client-{int(told)}"
    return node_name(node)


def node_name(node: int) -> str:
    return f"node-{node}"
