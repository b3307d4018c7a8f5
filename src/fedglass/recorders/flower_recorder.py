"""Takes down what a Flower strategy sends, receives and makes of it; nothing of Flower is imported."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedglass.core.errors import FedglassError, UsageError
from fedglass.recorders.client import folder_name, take_training
from fedglass.recorders.flower_strategy import defences_asked, layers_of, privacy_spent, rule_of
from fedglass.recorders.read import sizes_of_extras
from fedglass.recordings import BundleWriter
from fedglass.recordings.format import EXTRA_ARRAYS, MANIFEST

# Flower's older API: results of clients as lists of bytes, which secure aggregation still uses.


def arrays_of(parameters: Any) -> dict[str, Any]:
    """The arrays of a model, which have no names but their numbers; no pickle is read."""
    return {str(i): np.load(BytesIO(data), allow_pickle=False) for i, data in enumerate(parameters.tensors)}


def same_parameters(one: Any, other: Any) -> bool:
    return bool(one.tensors == other.tensors)


def aggregated_securely(results: Sequence[tuple[Any, Any]]) -> bool:
    """Whether the replies were summed up before anybody saw them: Flower then gives each client the sum as its own."""
    return len(results) > 1 and all(result.parameters is results[0][1].parameters for _, result in results)


def config_of(told: Any) -> dict[str, Any]:
    return dict(told.config or {})


def metrics_of(result: Any) -> dict[str, Any]:
    return dict(result.metrics or {})


# What a Flower node is called: by what its reply says of itself, on the server as on the client.
#
# Node ids are drawn anew in every run. A client that returns its `partition-id` as a metric keeps its name.


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


log = logging.getLogger("fedglass")


class StrategyRecorder:
    """Takes down a strategy's messages."""

    def __init__(self, bundle: str | Path, clients: str | Path | None, facts: Mapping[str, Any] | None) -> None:
        self._clients = None if clients is None else Path(clients)
        if (Path(bundle) / MANIFEST).exists():
            raise UsageError(f"{bundle} holds a bundle already: choose another folder for this run.")
        self._writer = BundleWriter(bundle, writer="server", facts=facts)
        self._writer.facts(_framework(), source="read")
        self._called: dict[int, list[int]] = {}
        self._names: dict[int, str] = {}
        self._answers: dict[str, dict[str, Any]] = {}
        self._configs: dict[int, dict[str, Any]] = {}
        self._own: dict[int, dict[str, Any]] = {}
        """By node, the model that it alone was sent: a node has its name only when it has answered."""
        self._broken = False

    def sending(self, index: int, messages: list[Any], strategy: Any) -> None:
        """What goes out, and to whom; the configuration is that of the messages themselves."""
        self._try(self._sending, index, messages, strategy)

    def received(self, index: int, replies: list[Any], strategy: Any) -> None:
        """What came back, as it came back; and who did not answer."""
        self._try(self._received, index, replies, strategy)

    def aggregated(self, index: int, arrays: Any, strategy: Any) -> None:
        """What the strategy made of it; None where it refused."""
        if arrays is not None:
            self._try(self._aggregated, index, arrays, strategy)

    def calling(self, index: int, calls: list[Any], strategy: Any) -> None:
        """`sending` of the older API."""
        self._try(self._calling, index, calls, strategy)

    def fitted(self, index: int, results: list[Any], strategy: Any) -> None:
        """`received` of the older API."""
        self._try(self._fitted, index, results, strategy)

    def _try(self, take: Any, *told: Any) -> None:
        if self._broken:
            return
        try:
            take(*told)
        except FedglassError as error:
            self._stop()
            log.error("fedglass stops recording, the training goes on: %s", error)
        except Exception:  # whatever it is, a recorder is no reason to lose a training
            self._stop()
            log.exception("fedglass stops recording, the training goes on.")

    def _stop(self) -> None:
        self._broken = True
        self._writer.lost()

    def _sending(self, index: int, messages: list[Any], strategy: Any) -> None:
        self._called[index] = [message.metadata.dst_node_id for message in messages]
        self._configs = {m.metadata.dst_node_id: _config(m) for m in messages}
        self._writer.facts({"rule": rule_of(strategy), "sees": "each"}, source="read")
        records = {m.metadata.dst_node_id: _arrays_of(m, strategy) for m in messages}
        self._send(index, {node: record for node, record in records.items() if record is not None}, _same, _numpy)

    def _received(self, index: int, replies: list[Any], strategy: Any) -> None:
        past = self._writer.round(index)
        answered, self._answers = set(), {}
        for reply in sorted(replies, key=_by_name):
            node = reply.metadata.src_node_id
            answered.add(node)
            if reply.has_error():
                past.absent(self._name(node), _first_line(f"error {reply.error.code}: {reply.error.reason}"))
                continue
            name = self._names[node] = name_of(reply, node)
            record = _arrays_of(reply, strategy)
            if record is None:
                past.unseen(name, "its reply has no arrays that are known as such")
                continue
            self._sent_own(index, node, name)
            arrays = self._answers[name] = _numpy(record)
            examples, told = _told(reply, record, strategy)
            # The number of examples is the client's own word.
            config = self._configs.get(node) or None
            declared = {"defences": defences_asked(config)}
            past.received(name, arrays, examples=examples, facts=declared, source="declared")
            self._writer.training(name, index, {**told, "config": config}, source="read")
            self._take(name, index)
        for node in self._called.get(index, []):
            if node not in answered:
                past.absent(self._name(node), "no reply")
        past.facts({"rule": rule_of(strategy, len(self._answers))}, source="read")

    def _calling(self, index: int, calls: list[Any], strategy: Any) -> None:
        self._called[index] = [client.node_id for client, _ in calls]
        self._configs = {client.node_id: config_of(told) for client, told in calls}
        self._writer.facts({"rule": rule_of(strategy)}, source="read")
        self._send(index, {client.node_id: told.parameters for client, told in calls}, same_parameters, arrays_of)

    def _send(self, index: int, models: dict[int, Any], same: Any, arrays: Any) -> None:
        """What most were sent, by node, is the round's; the others' wait until these have answered."""
        alike: list[list[int]] = []
        for node, model in models.items():
            group = next((g for g in alike if models[g[0]] is model or same(models[g[0]], model)), None)
            if group is None:
                alike.append([node])
            else:
                group.append(node)
        most = max(alike, key=len, default=[])
        # Where no two have the same, none of them is everybody's.
        common = most if len(most) > 1 or len(alike) == 1 else []
        if common:
            self._writer.round(index).sent(arrays(models[common[0]]))
        self._own = {node: arrays(model) for node, model in models.items() if node not in common}

    def _fitted(self, index: int, results: list[Any], strategy: Any) -> None:
        past, self._answers = self._writer.round(index), {}
        secure = aggregated_securely(results)
        self._writer.facts({"sees": "aggregate" if secure else "each"}, source="read")
        answered = set()
        for client, result in results:
            answered.add(client.node_id)
            name = self._names[client.node_id] = metric_name(result.metrics or {}, client.node_id)
            self._sent_own(index, client.node_id, name)
            if not secure:
                arrays = self._answers[name] = arrays_of(result.parameters)
                past.received(name, arrays)
            self._writer.training(name, index, {"examples": result.num_examples or None}, source="declared")
            told = {"metrics": metrics_of(result), "config": self._configs.get(client.node_id) or None}
            self._writer.training(name, index, told, source="read")
            self._take(name, index)
        for node in self._called.get(index, []):
            if node not in answered:
                past.absent(self._name(node), "no reply")
        past.facts({"rule": rule_of(strategy, len(results))}, source="read")

    def _aggregated(self, index: int, arrays: Any, strategy: Any) -> None:
        after = _numpy(arrays)
        alike = [name for name, own in self._answers.items() if _equal(own, after)]
        # One client's message unchanged, as Krum passes it on; of a single one nobody is left out.
        kept = alike if len(alike) == 1 and len(self._answers) > 1 else None
        past = self._writer.round(index)
        past.aggregated(after, kept=kept)
        spent = privacy_spent(strategy)
        if spent is not None:
            past.facts({"x-privacy-spent": spent}, source="read")
        self._answers = {}

    def _sent_own(self, index: int, node: int, name: str) -> None:
        if node in self._own:
            self._writer.round(index).sent(self._own.pop(node), client=name)

    def _take(self, name: str, index: int) -> None:
        if self._clients is not None:
            take_training(self._writer, self._clients / folder_name(name), index)

    def _name(self, node: int) -> str:
        return self._names.get(node, node_name(node))


def _by_name(reply: Any) -> tuple[bool, int, str]:
    """Replies by their clients' names, 2 before 10, whichever came first; those with errors have none and come last."""
    if reply.has_error():
        return True, 0, ""
    name = name_of(reply, reply.metadata.src_node_id)
    return False, len(name), name


def _first_line(text: str) -> str:
    """An error's reason without its traceback, which may quote what a client would not say."""
    return text.splitlines()[0][:200]


def _framework() -> dict[str, str]:
    try:
        return {"framework": f"flwr {version('flwr')}"}
    except PackageNotFoundError:
        return {"framework": "flwr"}


def _arrays_of(message: Any, strategy: Any) -> Any:
    """The record that holds the model: the strategy's own key, or the first."""
    records = message.content.array_records
    *_, inner = layers_of(strategy)
    key = getattr(inner, "arrayrecord_key", "arrays")
    return records.get(key, next(iter(records.values()), None))


def _config(message: Any) -> dict[str, Any]:
    return {key: value for record in message.content.config_records.values() for key, value in record.items()}


def _told(reply: Any, record: Any, strategy: Any) -> tuple[int | None, dict[str, Any]]:
    """The number of examples, and the weight in a mean, the metrics and what else a reply carries."""
    *_, inner = layers_of(strategy)
    key = getattr(inner, "weighted_by_key", "num-examples")
    metrics = {name: value for each in reply.content.metric_records.values() for name, value in each.items()}
    weight: Any = metrics.get(key)
    plain = isinstance(weight, int | float) and weight > 0
    examples = int(weight) if plain and key == "num-examples" and int(weight) == weight else None
    others: dict[str, Any] = {
        name: {key: list(array.shape) for key, array in other.items()}
        for name, other in reply.content.array_records.items()
        if other is not record
    }
    others |= {name: found for name, told in reply.content.config_records.items() if (found := sizes_of_extras(told))}
    weight = float(weight) if plain else None
    return examples, {"weight": weight, "metrics": metrics, EXTRA_ARRAYS: others or None}


def _numpy(record: Any) -> dict[str, Any]:
    return {name: array if isinstance(array, np.ndarray) else array.numpy() for name, array in record.items()}


def _same(one: Any, other: Any) -> bool:
    return list(one) == list(other) and all(one[name].data == other[name].data for name in one)


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return set(one) == set(other) and all(np.allclose(one[n], other[n], rtol=1e-6, atol=0) for n in one)
