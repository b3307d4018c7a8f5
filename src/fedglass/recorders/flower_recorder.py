"""Stores what a Flower strategy sends, receives and aggregates; nothing of Flower is imported.

Node ids differ from run to run. A client that returns its `partition-id` as a metric keeps its name, on the
server as on the client.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedglass.core.errors import UsageError
from fedglass.recorders.client import copy_training, folder_name, log_and_continue
from fedglass.recorders.defences import Part, flower_clipping, is_adaptive
from fedglass.recordings import BundleWriter
from fedglass.recordings.facts import EXTRA_ARRAYS, sizes_of_extras
from fedglass.recordings.format import MANIFEST
from fedglass.recordings.privacy import SPENT

NAME_METRIC = "partition-id"

PLAIN = (bool, int, float, str)


def _logs_errors(store: Callable[..., None]) -> Callable[..., None]:
    """Let a method of the recorder log its errors: these end the recording, but never the training."""

    @functools.wraps(store)
    def store_or_stop(recorder: StrategyRecorder, *args: Any) -> None:
        if not recorder.stopped:
            with log_and_continue("stops recording", recorder.stop):
                store(recorder, *args)

    return store_or_stop


class StrategyRecorder:
    """Stores the messages of a strategy."""

    def __init__(self, bundle: str | Path, clients: str | Path | None, facts: Mapping[str, Any] | None) -> None:
        self._clients = None if clients is None else Path(clients)
        if (Path(bundle) / MANIFEST).exists():
            raise UsageError(f"{bundle} holds a bundle already: choose another folder for this run.")
        self.writer = BundleWriter(bundle, writer="server", facts=facts)
        framework = "flwr"
        with suppress(PackageNotFoundError):
            framework = f"flwr {version('flwr')}"
        self.writer.facts({"framework": framework}, source="read")
        self._called: dict[int, list[int]] = {}
        """By round, the nodes that were called."""
        self._names: dict[int, str] = {}
        self._replies: dict[str, dict[str, Any]] = {}
        self._configs: dict[int, dict[str, Any]] = {}
        self._own_starts: dict[int, dict[str, Any]] = {}
        """By node, the model that was sent to it alone: a node has its name only when it has replied."""
        self.stopped = False

    def stop(self) -> None:
        """Record nothing more."""
        self.stopped = True
        self.writer.mark_incomplete()

    @_logs_errors
    def sending(self, index: int, messages: list[Any], strategy: Any) -> None:
        """Store the models that go out; the configuration is that of the messages themselves."""
        self._configs = {message.metadata.dst_node_id: config_of(message) for message in messages}
        self.writer.facts({"rule": rule_of(strategy), "sees": "each"}, source="read")
        records = {message.metadata.dst_node_id: _model_record(message, strategy) for message in messages}
        models = {node: record for node, record in records.items() if record is not None}
        self._store_sent(index, models)

    @_logs_errors
    def sending_fit(self, index: int, calls: list[Any], strategy: Any) -> None:
        """Store what `sending` does, for the older API."""
        self._configs = {client.node_id: dict(instruction.config or {}) for client, instruction in calls}
        self.writer.facts({"rule": rule_of(strategy)}, source="read")
        models = {client.node_id: instruction.parameters for client, instruction in calls}
        self._store_sent(index, models)

    def _store_sent(self, index: int, models: dict[int, Any]) -> None:
        """Store the model that most nodes were sent as the round's; that of other nodes waits for their replies."""
        self._called[index] = list(self._configs)
        groups: list[list[int]] = []
        for node, model in models.items():
            group = next((g for g in groups if _same_model(models[g[0]], model)), None)
            if group is None:
                groups.append([node])
            else:
                group.append(node)
        largest = max(groups, key=len, default=[])
        # If no two nodes have the same model, none of these is the round's.
        common = largest if len(largest) > 1 or len(groups) == 1 else []
        if common:
            self.writer.round(index).sent(arrays_of(models[common[0]]))
        self._own_starts = {node: arrays_of(model) for node, model in models.items() if node not in common}

    @_logs_errors
    def received(self, index: int, replies: list[Any], strategy: Any) -> None:
        """Store the replies as they came, and the clients that did not reply."""
        round_ = self.writer.round(index)
        replied, self._replies = set(), {}
        for reply in sorted(replies, key=_by_name):
            node = reply.metadata.src_node_id
            replied.add(node)
            if reply.has_error():
                # Without the traceback, which may quote private values.
                error = f"error {reply.error.code}: {reply.error.reason}".splitlines()[0][:200]
                round_.absent(self._name(node), error)
                continue
            name = self._names[node] = name_of(reply, node)
            record = _model_record(reply, strategy)
            if record is None:
                round_.not_recorded(name, "its reply holds no array record of a model")
                continue
            self._store_own_start(index, node, name)
            arrays = self._replies[name] = arrays_of(record)
            examples, facts = _reply_facts(reply, record, strategy)
            # The number of examples is what the client claims.
            config = self._configs.get(node) or None
            adaptive = is_adaptive(list(layers_of(strategy)))
            requested = {"defences": flower_clipping(config, adaptive=adaptive)}
            round_.received(name, arrays, examples=examples, facts=requested, source="declared")
            self._store_training(name, index, {**facts, "config": config})
        self._store_absent(index, replied)
        round_.facts({"rule": rule_of(strategy, len(self._replies))}, source="read")

    @_logs_errors
    def received_fit(self, index: int, results: list[Any], strategy: Any) -> None:
        """Store what `received` does, for the older API."""
        round_, self._replies = self.writer.round(index), {}
        # Where only the sum of the replies is visible, Flower hands it out as each client's reply.
        secure = len(results) > 1 and all(result.parameters is results[0][1].parameters for _, result in results)
        self.writer.facts({"sees": "aggregate" if secure else "each"}, source="read")
        replied = set()
        for client, result in results:
            replied.add(client.node_id)
            metrics = dict(result.metrics or {})
            name = self._names[client.node_id] = _metric_name(metrics, client.node_id)
            self._store_own_start(index, client.node_id, name)
            if not secure:
                arrays = self._replies[name] = arrays_of(result.parameters)
                round_.received(name, arrays)
            self.writer.training(name, index, {"examples": result.num_examples or None}, source="declared")
            config = self._configs.get(client.node_id) or None
            self._store_training(name, index, {"metrics": metrics, "config": config})
        self._store_absent(index, replied)
        round_.facts({"rule": rule_of(strategy, len(results))}, source="read")

    @_logs_errors
    def aggregated(self, index: int, arrays: Any, strategy: Any) -> None:
        """Store the aggregate; `arrays` is None if the strategy refused to make one."""
        if arrays is None:
            return
        after = arrays_of(arrays)
        unchanged = [name for name, reply in self._replies.items() if _equal(reply, after)]
        # Krum passes on one client's message unchanged; with a single client no other one is left out.
        accepted = unchanged if len(unchanged) == 1 and len(self._replies) > 1 else None
        round_ = self.writer.round(index)
        round_.aggregated(after, kept=accepted)
        spent = privacy_spent(strategy)
        if spent is not None:
            round_.facts({SPENT: spent}, source="read")
        self._replies = {}

    def _store_own_start(self, index: int, node: int, name: str) -> None:
        if node in self._own_starts:
            self.writer.round(index).sent(self._own_starts.pop(node), client=name)

    def _store_training(self, name: str, index: int, facts: dict[str, Any]) -> None:
        """Store the facts of a reply, and those that the client itself has recorded on this machine."""
        self.writer.training(name, index, facts, source="read")
        if self._clients is not None:
            copy_training(self.writer, self._clients / folder_name(name), index)

    def _store_absent(self, index: int, replied: set[int]) -> None:
        for node in self._called.get(index, []):
            if node not in replied:
                self.writer.round(index).absent(self._name(node), "no reply")

    def _name(self, node: int) -> str:
        return self._names.get(node, _node_name(node))


def name_of(reply: Any, node: int) -> str:
    """Return `client-<partition-id>` if the reply has that metric, else a name with the node's id.

    The older API sends metrics as a record of configuration.
    """
    records = [*reply.content.config_records.values(), *reply.content.metric_records.values()]
    return _metric_name({key: value for record in records for key, value in record.items()}, node)


def _metric_name(metrics: Mapping[str, Any], node: int) -> str:
    partition = metrics.get(NAME_METRIC)
    return f"client-{int(partition)}" if isinstance(partition, int | float) else _node_name(node)


def _node_name(node: int) -> str:
    return f"node-{node}"


def config_of(message: Any) -> dict[str, Any]:
    """Return the configuration of a message."""
    return {key: value for record in message.content.config_records.values() for key, value in record.items()}


def _by_name(reply: Any) -> tuple[bool, int, str]:
    """Return a sort key: by client name, 2 before 10; replies with errors have no name and come last."""
    if reply.has_error():
        return True, 0, ""
    name = name_of(reply, reply.metadata.src_node_id)
    return False, len(name), name


def _model_record(message: Any, strategy: Any) -> Any:
    """Return the record that holds the model: under the strategy's own key, or the first."""
    records = message.content.array_records
    *_, inner = layers_of(strategy)
    key = getattr(inner, "arrayrecord_key", "arrays")
    return records.get(key, next(iter(records.values()), None))


def _reply_facts(reply: Any, record: Any, strategy: Any) -> tuple[int | None, dict[str, Any]]:
    """Return the number of examples, and facts: the weight in a mean, the metrics, and what else a reply carries."""
    *_, inner = layers_of(strategy)
    key = getattr(inner, "weighted_by_key", "num-examples")
    metrics = {name: value for metric in reply.content.metric_records.values() for name, value in metric.items()}
    weight: Any = metrics.get(key)
    positive = isinstance(weight, int | float) and weight > 0
    examples = int(weight) if positive and key == "num-examples" and int(weight) == weight else None
    extras: dict[str, Any] = {
        name: {key: list(array.shape) for key, array in extra.items()}
        for name, extra in reply.content.array_records.items()
        if extra is not record
    }
    configs = {name: sizes_of_extras(config) for name, config in reply.content.config_records.items()}
    extras |= {name: sizes for name, sizes in configs.items() if sizes}
    weight = float(weight) if positive else None
    return examples, {"weight": weight, "metrics": metrics, EXTRA_ARRAYS: extras or None}


def arrays_of(model: Any) -> dict[str, Any]:
    """Return the arrays of a model; in the older API they have no names but numbers, and no pickle is read."""
    if hasattr(model, "tensors"):
        return {str(i): np.load(BytesIO(data), allow_pickle=False) for i, data in enumerate(model.tensors)}
    return {name: array if isinstance(array, np.ndarray) else array.numpy() for name, array in model.items()}


def _same_model(one: Any, other: Any) -> bool:
    if one is other or hasattr(one, "tensors"):
        return one is other or bool(one.tensors == other.tensors)
    return list(one) == list(other) and all(one[name].data == other[name].data for name in one)


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return set(one) == set(other) and all(np.allclose(one[n], other[n], rtol=1e-6, atol=0) for n in one)


# Facts that a strategy shows: the aggregation rule with options, and the privacy that it counts.


def layers_of(strategy: object) -> Iterator[object]:
    """Yield a strategy and the strategies that it wraps, from the outside in."""
    while strategy is not None:
        yield strategy
        strategy = getattr(strategy, "strategy", None)


def rule_of(strategy: object, clients: int | None = None) -> Part:
    """Return the rule that makes one model of the replies.

    The rule has fedglass's name if fedglass has it, else the name of its class with plain attributes. The class that
    defines the aggregation counts: a subclass with a method of its own is another rule. A strategy that wraps another
    one is a rule of its own too: a wrapper for differential privacy changes what comes in or goes out.
    """
    outer, *inner = layers_of(strategy)
    if inner:
        own_class = next(_classes(outer))
        return {"name": own_class.__name__, "options": {**_attributes(outer), "of": rule_of(inner[0], clients)}}
    methods = ("aggregate_train", "aggregate_fit")
    defining = (kind for kind in _classes(outer) if any(name in vars(kind) for name in methods))
    kind = next(defining, type(outer))
    return _known_rule(kind, outer, clients) or {"name": kind.__name__, "options": _attributes(outer)}


def privacy_spent(strategy: Any) -> dict[str, Any] | None:
    """Return the privacy budget that a wrapper's accountant has counted so far; None without an accountant."""
    spent = strategy.privacy_spent() if hasattr(strategy, "privacy_spent") else None
    return (
        None if spent is None else {name: getattr(spent, name, None) for name in ("epsilon", "delta", "num_releases")}
    )


def _classes(strategy: object) -> Iterator[type]:
    """Yield the classes of a strategy without those of fedglass."""
    return (kind for kind in type(strategy).__mro__ if not kind.__module__.startswith("fedglass."))


def _attributes(strategy: object) -> dict[str, Any]:
    """Return public attributes of plain types."""
    return {
        name: value
        for name, value in vars(strategy).items()
        if not name.startswith("_")
        and isinstance(value, PLAIN)
        and not (isinstance(value, float) and math.isnan(value))
    }


def _known_rule(kind: type, strategy: Any, clients: int | None) -> Part | None:
    """Return a rule that fedglass has, for Flower's classes that define how they aggregate; None for any other.

    FedProx inherits its rule from FedAvg, and Flower's Krum is its Multi-Krum that selects one client.
    """
    name = kind.__name__ if kind.__module__.startswith("flwr.") else None
    if name in ("FedAvg", "FedMedian"):
        return {"name": "mean" if name == "FedAvg" else "median", "options": {}}
    if name == "FedTrimmedAvg" and clients is not None:
        # Flower's beta is a share of the clients at each end: the number depends on the round.
        return {"name": "trimmed_mean", "options": {"byzantine": int(strategy.beta * clients)}}
    if name == "MultiKrum":
        selected, byzantine = strategy.num_nodes_to_select, strategy.num_malicious_nodes
        if selected == 1:
            return {"name": "krum", "options": {"byzantine": byzantine}}
        return {"name": "multi_krum", "options": {"byzantine": byzantine, "keep": selected, "iterative": False}}
    return None
