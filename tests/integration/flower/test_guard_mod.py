"""The guard as a client's outermost mod: what it lets out, and that nothing else leaves, whatever an app does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.nn import functional as F

from fedglass.guard import REFUSED, Guard, Reason
from fedglass.guard.flower import CODE, STATE, GuardMod, Quorum, load_memory
from fedglass.guard.runners import InlineRunner

HERE: dict[str, Any] = {"runner": InlineRunner(), "budget_seconds": 600.0, "starts": 1, "min_examples": 1}
Respond = Callable[[Message, Context], Message]


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 5))


def context() -> Context:
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})


def instruction(kind: str = "train") -> Message:
    torch.manual_seed(0)
    records = RecordDict({"arrays": ArrayRecord(Net().state_dict()), "config": ConfigRecord({"lr": 0.1})})
    return Message(records, dst_node_id=1, message_type=kind)


def trained(msg: Message) -> tuple[nn.Module, float]:
    """What an app's own function does, without a word of the guard."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(4)
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimiser.step()
    return model, float(loss.detach())


def honest(msg: Message, ctxt: Context) -> Message:
    model, loss = trained(msg)
    figures = MetricRecord({"num-examples": 4, "train_loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": figures}), reply_to=msg)


def noisy(multiplier: float) -> Respond:
    """Clips and adds noise, as a mod inside of the guard does."""

    def respond(msg: Message, ctxt: Context) -> Message:
        model, _ = trained(msg)
        before = msg.content["arrays"].to_torch_state_dict()
        update = {name: t - before[name] for name, t in model.state_dict().items()}
        norm = torch.stack([t.norm() for t in update.values()]).norm()
        draws = torch.Generator().manual_seed(98765432101)  # nobody tries it: predictable noise is refused
        sent = {
            name: before[name]
            + t * min(1.0, 0.5 / float(norm))
            + 0.5 * multiplier * torch.randn(t.shape, generator=draws)
            for name, t in update.items()
        }
        records = {"arrays": ArrayRecord(sent), "metrics": MetricRecord({"num-examples": 4})}
        return Message(RecordDict(records), reply_to=msg)

    return respond


def is_refusal(reply: Message) -> bool:
    return bool(reply.has_error() and (reply.error.code, reply.error.reason) == (CODE, REFUSED))


def test_a_leaking_update_becomes_the_fixed_error() -> None:
    ctxt = context()
    assert is_refusal(GuardMod(Guard(**HERE))(instruction(), ctxt, honest))
    assert load_memory(ctxt).counts.refused == 1
    assert f"{STATE}sent" not in ctxt.state, "what did not leave is not kept as sent"


def test_a_protected_update_leaves_as_it_is() -> None:
    guard, msg, ctxt = Guard(clip=0.5, noise_multiplier=1.0, **HERE), instruction(), context()
    reply = GuardMod(guard)(msg, ctxt, noisy(1.0))
    assert not reply.has_error()
    expected = noisy(1.0)(msg, ctxt).content["arrays"].to_torch_state_dict()
    sent = reply.content["arrays"].to_torch_state_dict()
    assert list(sent) == list(expected)
    assert all(torch.equal(sent[name], expected[name]) for name in expected)
    assert dict(reply.content["metrics"]) == {"num-examples": 4}
    assert load_memory(ctxt).counts.checked == 1
    assert load_memory(ctxt).sent is not None


def test_noise_that_a_mod_forgot_is_noticed() -> None:
    guard = Guard(clip=0.5, noise_multiplier=1.0, **HERE)
    assert is_refusal(GuardMod(guard)(instruction(), context(), noisy(0.1)))


def raising(msg: Message, ctxt: Context) -> Message:
    raise RuntimeError("patient 4711 has no scan")


def failing(msg: Message, ctxt: Context) -> Message:
    return Message(Error(code=2, reason="patient 4711 has no scan"), reply_to=msg)


def stowaway(record: str, content: Any) -> Respond:
    def respond(msg: Message, ctxt: Context) -> Message:
        reply = noisy(1.0)(msg, ctxt)
        reply.content[record] = content
        return reply

    return respond


@pytest.mark.parametrize(
    "respond",
    [
        raising,
        failing,
        stowaway("config", ConfigRecord({"note": "patient 4711"})),
        stowaway("more", ArrayRecord({"w": torch.rand(3)})),
        stowaway("metrics", MetricRecord({"num-examples": 4, "pixels": [0.1, 0.2]})),
        stowaway("metrics", MetricRecord({"num-examples": 4, "pixel 1": 0.1})),
        stowaway("patient 4711", MetricRecord({"num-examples": 4})),
        lambda msg, ctxt: None,
    ],
    ids=["raises", "error", "config", "second arrays", "list", "unknown figure", "name of a record", "nothing"],
)
def test_nothing_else_leaves_and_nothing_raises(respond: Respond) -> None:
    guard = Guard(clip=0.5, noise_multiplier=1.0, **HERE)
    assert is_refusal(GuardMod(guard)(instruction(), context(), respond))


def test_only_figures_leave_an_evaluation() -> None:
    mod = GuardMod(Guard(**HERE))

    def figures(msg: Message, ctxt: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"eval_loss": 0.5, "num-examples": 3})}), reply_to=msg)

    def arrays(msg: Message, ctxt: Context) -> Message:
        return Message(RecordDict({"arrays": ArrayRecord({"w": torch.rand(3)})}), reply_to=msg)

    assert dict(mod(instruction("evaluate"), context(), figures).content["metrics"]) == {
        "eval_loss": 0.5,
        "num-examples": 3,
    }
    assert is_refusal(mod(instruction("evaluate"), context(), arrays))
    assert is_refusal(mod(instruction("query"), context(), figures))


def test_a_client_that_was_alone_falls_silent() -> None:
    guard, ctxt, msg = Guard(clip=0.5, noise_multiplier=1.0, **HERE), context(), instruction()
    first = GuardMod(guard)(msg, ctxt, noisy(1.0))
    following = instruction()
    following.content["arrays"] = first.content["arrays"]
    assert is_refusal(GuardMod(guard)(following, ctxt, noisy(1.0)))
    assert load_memory(ctxt).counts.alone == 1


def test_a_mean_over_one_that_is_left_is_not_made() -> None:
    class Mean:
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            return len(list(replies)), None

    class Mine(Quorum, Mean):
        least = 2

    sound, msg = noisy(1.0)(instruction(), context()), instruction()
    refused = GuardMod(Guard(**HERE))(msg, context(), raising)
    assert Mine().aggregate_train(1, iter([sound, refused, refused])) == (None, None)
    assert Mine().aggregate_train(1, iter([sound, sound, refused])) == (3, None)


def test_a_reason_is_written_down_for_the_client_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="fedglass.guard"):
        GuardMod(Guard(**HERE))(instruction(), context(), honest)
    assert Reason.SINGLED_OUT.value in caplog.text


def test_a_whole_federation_trains_behind_its_guards(federation: Callable[..., Any]) -> None:
    """Real strategy and apps: momentum, batches in another order each epoch, batch normalisation by the batch."""
    figures = ("num-examples", "partition-id")
    plain, guarded = federation(), federation([GuardMod(Guard(attacks={}, false_alarms=0, **HERE), metrics=figures)])
    expected, found = (each.play(FedAvg(fraction_evaluate=0.0)) for each in (plain, guarded))
    assert list(found) == list(expected)
    assert all((found[name] == expected[name]).all() for name in expected)
    assert [len(turn) for turn in guarded.answers] == [5, 5]


def test_a_federation_whose_clients_all_refuse_learns_nothing(federation: Callable[..., Any]) -> None:
    class Strategy(Quorum, FedAvg):
        pass

    silent = federation([GuardMod(Guard(clip=0.01, **HERE), metrics=("num-examples", "partition-id"))])
    after = silent.play(Strategy(fraction_evaluate=0.0), rounds=1)
    assert silent.answers == []
    assert not after, "there is no aggregate"
