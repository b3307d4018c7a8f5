"""Any strategy of Flower can be recorded, and is not changed by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.common import ndarrays_to_parameters
from flwr.serverapp import strategy as flower

from fedglass.bounds.success import gdp_epsilon
from fedglass.core.errors import UsageError
from fedglass.recorders.flower import RecordedStrategy, recorded
from fedglass.recorders.flower_recorder import StrategyRecorder
from fedglass.recordings.facts import preferred
from fedglass.recordings.observed import contradictions_of
from fedglass.recordings.privacy import recorded_epsilons
from fedglass.recordings.reader import read_bundle

Make = Callable[..., Any]
ALL = {"fraction_evaluate": 0.0, "min_available_nodes": 5, "min_train_nodes": 5}


def dp(kind: Any, **options: Any) -> Any:
    return kind(flower.FedAvg(**ALL), 0.0, num_sampled_clients=5, **options)


STRATEGIES: dict[str, Callable[[], Any]] = {
    "mean": lambda: flower.FedAvg(**ALL),
    "mean with a proximal term": lambda: flower.FedProx(**ALL, proximal_mu=0.1),
    "momentum": lambda: flower.FedAvgM(**ALL, server_momentum=0.9),
    "adam": lambda: flower.FedAdam(**ALL),
    "median": lambda: flower.FedMedian(**ALL),
    "trimmed mean": lambda: flower.FedTrimmedAvg(**ALL, beta=0.2),
    "krum": lambda: flower.Krum(**ALL, num_malicious_nodes=1),
    "multi-krum": lambda: flower.MultiKrum(**ALL, num_malicious_nodes=1, num_nodes_to_select=2),
    "bulyan": lambda: flower.Bulyan(**ALL, num_malicious_nodes=0),
    "server clips": lambda: dp(flower.DifferentialPrivacyServerSideFixedClipping, clipping_norm=0.1),
    "server clips adaptively": lambda: dp(flower.DifferentialPrivacyServerSideAdaptiveClipping),
}
RULES = {
    "mean": ("mean", {}),
    "mean with a proximal term": ("mean", {}),
    "median": ("median", {}),
    "trimmed mean": ("trimmed_mean", {"byzantine": 1}),
    "krum": ("krum", {"byzantine": 1}),
    "multi-krum": ("multi_krum", {"byzantine": 1, "keep": 2, "iterative": False}),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_recording_changes_nothing_and_takes_down_what_was_said(name: str, federation: Make, tmp_path: Path) -> None:
    plain, watched = federation(), federation()
    expected = plain.play(STRATEGIES[name]())

    found = watched.play(recorded(STRATEGIES[name](), tmp_path / "bundle"))

    assert all(np.array_equal(found[key], expected[key]) for key in expected)
    bundle = read_bundle(tmp_path / "bundle")
    assert sorted(bundle.rounds) == [1, 2]
    for index, past in bundle.rounds.items():
        for message in past.messages:
            node = watched.nodes[int(message.client.removeprefix("client-"))]
            said = watched.answers[index - 1][node]
            assert message.received is not None
            taken = bundle.arrays(message.received)
            assert all(np.array_equal(taken[key].numpy(), said[key]) for key in said)
            config = preferred(bundle.facts_of(message.client, index), "config")
            assert (config["lr"], config["server-round"]) == (0.1, index)
    last = bundle.rounds[2].aggregated
    assert last is not None
    assert all(np.array_equal(tensor.numpy(), expected[key]) for key, tensor in bundle.arrays(last).items())


@pytest.mark.parametrize("name", RULES)
def test_the_rule_and_its_options_are_read_off_the_strategy(name: str, federation: Make, tmp_path: Path) -> None:
    federation().play(recorded(STRATEGIES[name](), tmp_path / "bundle"), rounds=1)

    rule = read_bundle(tmp_path / "bundle").rounds[1].facts["rule"]["read"]

    assert (rule["name"], rule["options"]) == RULES[name]


def test_a_wrapper_is_a_rule_of_its_own_and_tells_its_numbers(federation: Make, tmp_path: Path) -> None:
    federation().play(recorded(STRATEGIES["server clips"](), tmp_path / "bundle"), rounds=1)

    rule = preferred(read_bundle(tmp_path / "bundle").facts, "rule")

    assert rule["name"] == "DifferentialPrivacyServerSideFixedClipping"
    assert rule["options"]["clipping_norm"] == 0.1
    assert rule["options"]["of"]["name"] == "mean"


def test_krum_passes_on_one_client(federation: Make, tmp_path: Path) -> None:
    federation().play(recorded(STRATEGIES["krum"](), tmp_path / "bundle"), rounds=1)

    kept = read_bundle(tmp_path / "bundle").rounds[1].facts["kept"]["read"]

    assert len(kept) == 1


def test_the_mean_is_found_to_be_the_mean_of_the_messages(federation: Make, tmp_path: Path) -> None:
    federation().play(recorded(STRATEGIES["mean"](), tmp_path / "bundle"))

    bundle = read_bundle(tmp_path / "bundle")

    assert [finding.text for index in bundle.rounds for finding in contradictions_of(bundle, index)] == []


@pytest.mark.parametrize(
    ("kind", "mod", "options"),
    [
        (flower.DifferentialPrivacyClientSideFixedClipping, fixedclipping_mod, {"clipping_norm": 0.1}),
        (flower.DifferentialPrivacyClientSideAdaptiveClipping, adaptiveclipping_mod, {"initial_clipping_norm": 0.1}),
    ],
)
def test_clipping_by_clients_is_what_the_server_asked_for(
    kind: Any, mod: Any, options: dict[str, float], federation: Make, tmp_path: Path
) -> None:
    federation([mod]).play(recorded(dp(kind, **options), tmp_path / "bundle"), rounds=1)

    bundle = read_bundle(tmp_path / "bundle")

    for client in bundle.clients:
        declared = bundle.facts_of(client, 1)["defences"]["declared"]
        marked = {"adaptive": True} if mod is adaptiveclipping_mod else {}
        assert declared == [{"name": "flower_fixed_clipping", "options": {"clipping_norm": 0.1, **marked}}]
    # Flower's clipping passes over 0-d tensors: the network's scalar parameter leaves as it is, and so does a counter.
    words = " ".join(finding.text for finding in contradictions_of(bundle, 1))
    assert "scale" in words
    assert "num_batches_tracked" in words


def test_a_wrapper_with_an_accountant_counts_as_ever_and_its_count_is_recorded(
    federation: Make, tmp_path: Path
) -> None:
    accounting = pytest.importorskip("flwr.supercore.privacy_accounting")
    events: list[Any] = []
    method = accounting.SamplingMethod.NO_AMPLIFICATION
    accountant = SimpleNamespace(
        config=SimpleNamespace(sampling_method=method, population_size=5, max_epsilon=None),
        compose=events.append,
        get_privacy_spent=lambda: accounting.PrivacySpent(float(len(events)), 1e-5, len(events), "counted"),
    )
    strategy = flower.DifferentialPrivacyServerSideFixedClipping(
        flower.FedAvg(**ALL), 1.0, 0.1, 5, accountant=accountant
    )

    federation().play(recorded(strategy, tmp_path / "bundle"))

    bundle = read_bundle(tmp_path / "bundle")
    assert len(events) == 2
    assert [bundle.rounds[i].facts["x-privacy-spent"]["read"]["epsilon"] for i in (1, 2)] == [1.0, 2.0]
    # Two releases with the noise multiplier 1 cost more than this accountant says.
    ((found,),) = recorded_epsilons(bundle).values()
    assert (found.source, found.declared, found.releases) == ("Flower's accountant", 2.0, 2)
    assert found.real == pytest.approx(gdp_epsilon(2**0.5, 1e-5))
    assert found.exceeded


def test_who_did_not_answer_is_absent(federation: Make, tmp_path: Path) -> None:
    strategy = recorded(STRATEGIES["mean"](), tmp_path / "bundle")

    federation(failing=(80,), silent=(110,)).play(strategy)

    bundle = read_bundle(tmp_path / "bundle")
    absent = {m.client: m.absent for m in bundle.rounds[2].messages if m.absent is not None}
    assert absent == {"node-80": "error 6: refused", "node-110": "no reply"}
    assert len([m for m in bundle.rounds[2].messages if m.received is not None]) == 3


def test_local_privacy_is_in_the_message_that_is_recorded(federation: Make, tmp_path: Path) -> None:
    noisy = LocalDpMod(clipping_norm=0.1, sensitivity=0.1, epsilon=10.0, delta=1e-5)

    federation([noisy]).play(recorded(STRATEGIES["mean"](), tmp_path / "bundle"), rounds=1)

    bundle = read_bundle(tmp_path / "bundle")
    sent, message = bundle.rounds[1].sent, bundle.rounds[1].messages[0].received
    assert sent is not None
    assert message is not None
    moved = bundle.arrays(message)["head.bias"] - bundle.arrays(sent)["head.bias"]
    assert float(moved.abs().max()) > 0.01


def test_as_a_mixin(federation: Make, tmp_path: Path) -> None:
    class Mine(RecordedStrategy, flower.FedAvg):
        """Somebody's own."""

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            return super().aggregate_train(server_round, replies)

    federation().play(Mine(**ALL, bundle=tmp_path / "bundle", facts={"classes": 5}), rounds=1)

    bundle = read_bundle(tmp_path / "bundle")
    assert preferred(bundle.facts, "classes") == 5
    assert len(bundle.clients) == 5


class Personal(flower.FedAvg):
    """Sends some nodes other models than the rest."""

    special: tuple[int, ...] = (80,)

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            node = message.metadata.dst_node_id
            if node in self.special:
                state = arrays.to_torch_state_dict()
                own = ArrayRecord({name: tensor + node / 80 for name, tensor in state.items()})
                message.content = RecordDict({"arrays": own, "config": config})  # that of all is one object
        return messages


def test_a_model_of_its_own_belongs_to_the_client_by_the_name_that_it_answers_with(
    federation: Make, tmp_path: Path
) -> None:
    """When it is sent, only the node's number is known: under that, its message would be read from another start."""
    federation().play(recorded(Personal(**ALL), tmp_path / "bundle"))

    bundle = read_bundle(tmp_path / "bundle")

    assert sorted(bundle.clients) == [f"client-{i}" for i in range(5)]
    for past in bundle.rounds.values():
        common, own = past.sent, {message.client: message.sent for message in past.messages if message.sent is not None}
        assert list(own) == ["client-1"]
        assert common is not None
        moved = bundle.arrays(own["client-1"])["head.bias"] - bundle.arrays(common)["head.bias"]
        assert np.allclose(moved.numpy(), 1)


def test_where_each_has_its_own_there_is_none_of_all(federation: Make, tmp_path: Path) -> None:
    strategy, plays = Personal(**ALL), federation()
    strategy.special = plays.nodes
    plays.play(recorded(strategy, tmp_path / "bundle"))

    for past in read_bundle(tmp_path / "bundle").rounds.values():
        assert past.sent is None
        assert all(message.sent is not None for message in past.messages)


def test_the_same_of_the_older_api(tmp_path: Path) -> None:
    def parameters(value: float) -> Any:
        return ndarrays_to_parameters([np.full(3, value, dtype=np.float32)])

    recorder = StrategyRecorder(tmp_path / "bundle", None, None)
    common, clients = parameters(0.0), [SimpleNamespace(node_id=node) for node in (70, 80, 90)]
    sent = (common, parameters(1.0), parameters(0.0))
    calls = [(c, SimpleNamespace(parameters=p, config={})) for c, p in zip(clients, sent, strict=True)]
    recorder.sending_fit(1, calls, flower.FedAvg())
    results = [
        (c, SimpleNamespace(parameters=parameters(2.0), metrics={"partition-id": i}, num_examples=1))
        for i, c in enumerate(clients)
    ]
    recorder.received_fit(1, results, flower.FedAvg())

    messages = read_bundle(tmp_path / "bundle").rounds[1].messages

    assert [(m.client, m.sent is not None) for m in messages] == [
        ("client-0", False),
        ("client-1", True),
        ("client-2", False),
    ]


def test_another_way_to_aggregate_is_not_called_the_mean(federation: Make, tmp_path: Path) -> None:
    class Odd(flower.FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            return super().aggregate_train(server_round, list(replies)[:1])

    federation().play(recorded(Odd(**ALL), tmp_path / "bundle"), rounds=1)

    assert preferred(read_bundle(tmp_path / "bundle").facts, "rule")["name"] == "Odd"


def test_a_folder_that_holds_another_recording_is_refused_before_anything_runs(tmp_path: Path) -> None:
    recorded(STRATEGIES["mean"](), tmp_path / "bundle")

    with pytest.raises(UsageError, match="holds a bundle already: choose another folder for this run"):
        recorded(STRATEGIES["mean"](), tmp_path / "bundle")


@pytest.mark.parametrize("other", [flower.FedAvg, "FedAvg", None])
def test_what_is_no_strategy_is_named(other: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"such as FedAvg\(\)"):
        recorded(other, tmp_path / "bundle")


def test_a_recorder_that_can_not_write_lets_the_training_go_on(federation: Make, tmp_path: Path) -> None:
    strategy = recorded(STRATEGIES["mean"](), tmp_path / "bundle")
    for file in (tmp_path / "bundle").iterdir():
        file.unlink()
    (tmp_path / "bundle").rmdir()
    (tmp_path / "bundle").write_text("no folder any more")

    assert federation().play(strategy)


def adding(record: Any) -> Any:
    """A mod of a client that sends more than its model."""

    def mod(message: Any, context: Any, call_next: Any) -> Any:
        reply = call_next(message, context)
        reply.content["more"] = record
        return reply

    return mod


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (ConfigRecord({"site": "a", "epoch": 3}), None),
        (ConfigRecord({"picture": b"0123", "site": "a"}), {"more": {"picture": [4]}}),
        (ConfigRecord({"pixels": [0.5] * 144}), {"more": {"pixels": [144]}}),
    ],
    ids=["words", "bytes", "a list"],
)
def test_what_a_reply_holds_beside_its_model_is_told(
    record: Any, told: dict[str, Any] | None, federation: Make, tmp_path: Path
) -> None:
    federation([adding(record)]).play(recorded(STRATEGIES["mean"](), tmp_path / "bundle"), rounds=1)

    assert preferred(read_bundle(tmp_path / "bundle").facts_of("client-0", 1), "x-further-arrays") == told


def test_a_recorder_that_stopped_is_seen_in_its_bundle(federation: Make, tmp_path: Path) -> None:
    """Two clients with one name can not be taken down; what follows is not either."""

    def same_name(message: Any, context: Any, call_next: Any) -> Any:
        reply = call_next(message, context)
        reply.content["metrics"]["partition-id"] = 0
        return reply

    federation([same_name]).play(recorded(STRATEGIES["mean"](), tmp_path / "bundle"))

    bundle = read_bundle(tmp_path / "bundle")
    assert sorted(bundle.rounds) == [1]
    assert preferred(bundle.facts, "x-lost") is True
