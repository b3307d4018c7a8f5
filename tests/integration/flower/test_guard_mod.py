"""The guard as a client's outermost mod: what it lets out, and that nothing else leaves, whatever an app does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from tests.integration.flower.conftest import Net as FederationNet
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


def test_a_protected_update_leaves_with_the_guards_noise() -> None:
    guard, msg, ctxt = Guard(clip=0.5, noise_multiplier=1.0, **HERE), instruction(), context()
    reply = GuardMod(guard)(msg, ctxt, noisy(1.0))
    assert not reply.has_error()
    own = noisy(1.0)(msg, ctxt).content["arrays"].to_torch_state_dict()
    sent = reply.content["arrays"].to_torch_state_dict()
    assert list(sent) == list(own)
    apart = torch.cat([(sent[name] - own[name]).flatten() for name in own])
    assert float(apart.std()) == pytest.approx(2**0.5 * 0.5, rel=0.1)
    assert dict(reply.content["metrics"]) == {"num-examples": 4}
    assert load_memory(ctxt).counts.checked == 1
    assert load_memory(ctxt).sent is not None


def test_a_crafted_model_is_refused_before_it_is_trained() -> None:
    msg, ctxt = instruction(), context()
    crafted = {n: t[:1].expand_as(t) for n, t in msg.content["arrays"].to_torch_state_dict().items()}  # one row
    msg.content["arrays"] = ArrayRecord({name: tensor.clone() for name, tensor in crafted.items()})
    calls: list[Message] = []
    assert is_refusal(GuardMod(Guard(**HERE))(msg, ctxt, counted(calls)))
    assert not calls, "the app must not run"


def test_the_last_accepted_model_is_kept_for_the_next_round() -> None:
    guard, ctxt = GuardMod(Guard(clip=0.5, noise_multiplier=1.0, **HERE)), context()
    assert not guard(instruction(), ctxt, noisy(1.0)).has_error()
    accepted = load_memory(ctxt).accepted
    assert accepted is not None
    msg = instruction()
    jumped = {n: t + 10 for n, t in msg.content["arrays"].to_torch_state_dict().items()}
    msg.content["arrays"] = ArrayRecord(jumped)
    calls: list[Message] = []
    assert is_refusal(guard(msg, ctxt, counted(calls)))
    assert not calls


def counted(calls: list[Message]) -> Respond:
    def respond(msg: Message, ctxt: Context) -> Message:
        calls.append(msg)
        return noisy(1.0)(msg, ctxt)

    return respond


def test_noise_that_a_mod_forgot_is_noticed() -> None:
    guard = Guard(clip=0.5, noise_multiplier=1.0, **HERE)
    assert is_refusal(GuardMod(guard)(instruction(), context(), noisy(0.1)))


def raising(msg: Message, ctxt: Context) -> Message:
    raise RuntimeError("patient 4711 has no scan")


def failing(msg: Message, ctxt: Context) -> Message:
    return Message(Error(code=2, reason="patient 4711 has no scan"), reply_to=msg)


def ending(msg: Message, ctxt: Context) -> Message:
    raise SystemExit("patient 4711 has no scan")


class Odd(BaseException):
    """An exception that no `except Exception` catches."""


def odd(msg: Message, ctxt: Context) -> Message:
    raise Odd("patient 4711 has no scan")


def stowaway(record: str, content: Any, otherwise: Respond | None = None) -> Respond:
    def respond(msg: Message, ctxt: Context) -> Message:
        reply = (otherwise or noisy(1.0))(msg, ctxt)
        reply.content[record] = content
        return reply

    return respond


@pytest.mark.parametrize(
    "respond",
    [
        raising,
        failing,
        ending,
        odd,
        stowaway("config", ConfigRecord({"note": "patient 4711"})),
        stowaway("more", ArrayRecord({"w": torch.rand(3)})),
        stowaway("metrics", MetricRecord({"num-examples": 4, "pixels": [0.1, 0.2]})),
        stowaway("metrics", MetricRecord({"num-examples": 4, "pixel 1": 0.1})),
        stowaway("patient 4711", MetricRecord({"num-examples": 4})),
        lambda msg, ctxt: None,
    ],
    ids=[
        "raises",
        "error",
        "exit",
        "odd",
        "config",
        "second arrays",
        "list",
        "unknown figure",
        "name of a record",
        "nothing",
    ],
)
def test_nothing_else_leaves_and_nothing_raises(respond: Respond) -> None:
    guard = Guard(clip=0.5, noise_multiplier=1.0, **HERE)
    assert is_refusal(GuardMod(guard)(instruction(), context(), respond))


def test_a_warning_lets_out_what_the_guard_made() -> None:
    low = stowaway("metrics", MetricRecord({"num-examples": 36 * 10**15}), honest)
    reply = GuardMod(Guard("warn", **HERE))(instruction(), context(), low)
    sent, own = (
        message.content["arrays"].to_torch_state_dict() for message in (reply, honest(instruction(), context()))
    )
    assert not any(torch.equal(sent[name], own[name]) for name in own), "rounded"
    assert all(torch.allclose(sent[name], own[name], atol=1e-2) for name in own)
    assert dict(reply.content["metrics"]) == {"num-examples": 4}


def test_an_interrupt_ends_the_process_without_a_text() -> None:
    def interrupted(msg: Message, ctxt: Context) -> Message:
        raise KeyboardInterrupt("patient 4711 has no scan")

    with pytest.raises(KeyboardInterrupt) as raised:
        GuardMod(Guard(**HERE))(instruction(), context(), interrupted)
    assert (raised.value.args, raised.value.__context__, raised.value.__cause__) == ((), None, None)


def test_figures_leave_with_three_digits_and_the_guards_count() -> None:
    figures = {"train_loss": 0.123456789, "num-examples": 36 * 10**15, "accuracy": -1e300, "loss": -0.0}
    respond = stowaway("metrics", MetricRecord(dict(reversed(figures.items()))))
    reply = GuardMod(Guard(clip=0.5, noise_multiplier=1.0, **HERE))(instruction(), context(), respond)
    told = list(reply.content["metrics"].items())
    assert told == [("accuracy", -1000.0), ("loss", 0.0), ("num-examples", 4), ("train_loss", 0.123)]
    assert str(told[1][1]) == "0.0"


def test_the_record_has_the_name_that_came() -> None:
    def renamed(msg: Message, ctxt: Context) -> Message:
        reply = noisy(1.0)(Message(RecordDict({"arrays": msg.content["model"]}), reply_to=msg), ctxt)
        return Message(reply.content, reply_to=msg)

    msg = instruction()
    msg.content["model"] = msg.content.pop("arrays")
    reply = GuardMod(Guard(clip=0.5, noise_multiplier=1.0, **HERE))(msg, context(), renamed)
    assert list(reply.content.array_records) == ["model"]


METADATA = ("group_id", "message_id", "message_type", "ttl", "reply_to_message_id", "run_id", "created_at")
SECRET = "patient 4711 has no scan"


def scribbling(then: Respond) -> Respond:
    """Answers soundly, and writes into everything that it was given."""

    def respond(msg: Message, ctxt: Context) -> Message:
        reply = then(msg, ctxt)
        msg.content["arrays " + SECRET] = msg.content.pop("arrays")
        for name in METADATA:
            msg.metadata.__dict__[f"_{name}"] = 4711.0 if name in ("ttl", "created_at") else SECRET
            reply.metadata.__dict__[f"_{name}"] = SECRET
        msg.metadata.src_task_id = msg.metadata.dst_task_id = 4711
        ctxt.state[f"{STATE}{SECRET}"] = ConfigRecord({"note": SECRET})
        return reply

    return respond


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
@pytest.mark.parametrize("then", [noisy(1.0), honest, failing], ids=["allowed", "refused", "error"])
def test_what_an_app_writes_into_its_message_stays(then: Respond, kind: str) -> None:
    def figures(msg: Message, ctxt: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"loss": 0.5})}), reply_to=msg)

    msg, answer = instruction(kind), then if kind == "train" else figures
    msg.metadata.group_id = "3"
    reply = GuardMod(Guard(clip=0.5, noise_multiplier=1.0, **HERE))(msg, context(), scribbling(answer))
    allowed = then is not failing and then is not honest if kind == "train" else kind == "evaluate"
    assert reply.has_error() is not allowed
    expected = Message(RecordDict(), reply_to=instruction(kind)).metadata.__dict__ | {"_group_id": "3"}
    found = dict(reply.metadata.__dict__)
    assert found.pop("_ttl") == pytest.approx(expected.pop("_ttl"), rel=0.1)
    assert found.pop("_created_at") < 4e9
    assert found == {name: expected[name] for name in found}
    assert SECRET not in repr(reply)
    assert "4711" not in repr(found)
    if allowed:
        assert list(reply.content) == (["arrays", "metrics"] if kind == "train" else ["metrics"])


def test_names_of_figures_are_the_guards_own() -> None:
    class Alike(str):
        """A name that passes for an allowed one."""

        def __eq__(self, other: object) -> bool:
            return other == "loss"

        def __hash__(self) -> int:
            return hash("loss")

    respond = stowaway("metrics", MetricRecord({Alike(SECRET): 0.5, "num-examples": 4}))
    reply = GuardMod(Guard(clip=0.5, noise_multiplier=1.0, **HERE))(instruction(), context(), respond)
    assert SECRET not in repr(reply)


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
    assert Reason.RECOVERED.value in caplog.text


def test_a_whole_federation_trains_behind_its_guards(federation: Callable[..., Any]) -> None:
    """Real strategy and apps: momentum, batches in another order each epoch, batch normalisation by the batch."""
    figures = ("num-examples", "partition-id")
    plain, guarded = federation(), federation([GuardMod(Guard(attacks={}, false_alarms=0, **HERE), metrics=figures)])
    expected, found = (each.play(FedAvg(fraction_evaluate=0.0)) for each in (plain, guarded))
    assert list(found) == list(expected)
    torch.manual_seed(0)
    came = {name: t.numpy() for name, t in FederationNet().state_dict().items()}
    for name in expected:
        moved = expected[name] - came[name]
        apart = ((found[name] - expected[name]) ** 2).sum() ** 0.5
        assert apart <= 0.05 * (moved**2).sum() ** 0.5, f"{name}: each message is rounded to the replay's tolerance"
    assert [len(turn) for turn in guarded.answers] == [5, 5]


def test_a_federation_whose_clients_all_refuse_learns_nothing(federation: Callable[..., Any]) -> None:
    class Strategy(Quorum, FedAvg):
        pass

    silent = federation([GuardMod(Guard(clip=0.01, **HERE), metrics=("num-examples", "partition-id"))])
    after = silent.play(Strategy(fraction_evaluate=0.0), rounds=1)
    assert silent.answers == []
    assert not after, "there is no aggregate"
