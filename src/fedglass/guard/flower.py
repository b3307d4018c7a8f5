"""The guard as a mod of a Flower client, and the server's count of sound replies. Needs `flwr`.

`ClientApp(mods=[GuardMod(Guard(...)), ...])`: the first mod of the list is the outermost, so that it sees what the
other mods made of the update. A mod that masks updates for secure aggregation must stand before it: a masked update
cannot be checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.guard.guard import Guard
from fedglass.guard.report import REFUSED, GuardCounts, GuardMemory, GuardReport, Reason
from fedglass.recorders.hooks import TrainingReader

CODE = 6
"""Flower's number for a mod whose precondition failed."""
METRICS = ("num-examples", "num_examples", "train_loss", "loss", "eval_loss", "eval_acc", "accuracy")
"""Figures that may leave together with an update."""
STATE = "fedglass.guard."
"""The prefix of entries in the client's context, which stays on the client."""

CallNext = Callable[[Message, Context], Message]
Others = Callable[[Context], Tensor]


class GuardMod:
    """Sends the model's arrays if the guard clears them, and allowed figures; never raises.

    Replies to `train` are checked by the guard. Replies to `evaluate` may hold only allowed figures. All other replies
    are refused. The reply is rebuilt from what was checked: anything else that an app put into it stays on the client.

    Args:
        metrics: The names of allowed figures.
        others: Gives inputs that the client does not train on.
        distinct: Gives the number of the client's examples, if augmentation makes more of them.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        metrics: Iterable[str] = METRICS,
        others: Others | None = None,
        distinct: Callable[[Context], int] | None = None,
    ) -> None:
        self.guard = guard
        self.metrics = frozenset(metrics)
        self.others = others
        self.distinct = distinct

    def __call__(self, msg: Message, ctxt: Context, call_next: CallNext) -> Message:
        try:
            return self._reply(msg, ctxt, call_next)
        except Exception:  # noqa: BLE001 # an exception's text would reach the server
            return refusal(msg)

    def _reply(self, msg: Message, ctxt: Context, call_next: CallNext) -> Message:
        kind = msg.metadata.message_type.partition(".")[0]
        # Copied before the app runs, which may write into its message.
        received = _arrays(msg) if kind == "train" else None
        with self.guard.watch() as reader:
            reply = call_next(msg, ctxt)
        if reply.has_error():
            return refusal(msg)
        if kind != "train":
            figures = self._figures(reply) if kind == "evaluate" and not reply.content.array_records else None
            if figures is not None:
                return Message(RecordDict(figures), reply_to=msg)
            return reply if self.guard.policy != "block" else refusal(msg)
        report, rebuilt = self._checked(reader, received, reply, msg, ctxt)
        if report.sound and rebuilt is not None:
            return rebuilt
        return reply if report.allowed else refusal(msg)

    def _checked(
        self, reader: TrainingReader, received: dict[str, Tensor] | None, reply: Message, msg: Message, ctxt: Context
    ) -> tuple[GuardReport, Message | None]:
        guard = replace(self.guard, memory=load_memory(ctxt))
        leaving = _arrays(reply)
        rebuilt = self._rebuilt(leaving, reply, msg)
        if received is None or leaving is None or rebuilt is None or list(received) != list(leaving):
            report = guard.refused(Reason.STRUCTURE)
        else:
            others = None if self.others is None else self.others(ctxt)
            distinct = None if self.distinct is None else self.distinct(ctxt)
            report = guard.check_watched(reader, received, after=leaving, others=others, distinct=distinct)
        save_memory(ctxt, guard.memory)
        return report, rebuilt

    def _rebuilt(self, leaving: dict[str, Tensor] | None, reply: Message, msg: Message) -> Message | None:
        """Return the reply made of the checked arrays and allowed figures; None if the reply holds anything else."""
        figures, names = self._figures(reply), set(reply.content.array_records)
        if figures is None or leaving is None or not names <= {"arrays", *msg.content.array_records}:
            return None
        return Message(RecordDict({names.pop(): ArrayRecord(dict(leaving)), **figures}), reply_to=msg)

    def _figures(self, reply: Message) -> dict[str, Any] | None:
        """Return a copy of the metrics; None if one of them is not an allowed finite number."""
        records = reply.content.metric_records
        if reply.content.config_records or len(records) > 1 or not set(records) <= {"metrics"}:
            return None
        for record in records.values():
            for name, value in record.items():
                if name not in self.metrics or not isinstance(value, int | float) or not math.isfinite(value):
                    return None
        return {name: MetricRecord(dict(record)) for name, record in records.items()}


def refusal(msg: Message) -> Message:
    """Return the one reply to a refused update."""
    return Message(Error(code=CODE, reason=REFUSED), reply_to=msg)


def _arrays(message: Message) -> dict[str, Tensor] | None:
    """Return a copy of the only record of arrays; None if there is not exactly one."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        return None
    return {name: tensor.clone() for name, tensor in records[0].to_torch_state_dict().items()}


def load_memory(ctxt: Context) -> GuardMemory:
    """Read the guard's memory of earlier rounds from the client's context: a process may serve several clients."""
    state = ctxt.state
    if f"{STATE}counts" not in state:
        return GuardMemory()
    counts = GuardCounts(**{name: int(value) for name, value in state[f"{STATE}counts"].items()})
    before, sent = (
        state[f"{STATE}{name}"].to_torch_state_dict() if f"{STATE}{name}" in state else None
        for name in ("before", "sent")
    )
    return GuardMemory(counts, before, sent)


def save_memory(ctxt: Context, memory: GuardMemory) -> None:
    """Write the guard's memory to the client's context."""
    ctxt.state[f"{STATE}counts"] = MetricRecord(asdict(memory.counts))
    for name, params in (("before", memory.before), ("sent", memory.sent)):
        if params is not None:
            ctxt.state[f"{STATE}{name}"] = ArrayRecord(dict(params))
        elif f"{STATE}{name}" in ctxt.state:
            del ctxt.state[f"{STATE}{name}"]


class Quorum:
    """A mixin to the left of a strategy (`class Mine(Quorum, FedAvg)`): it needs `least` sound replies to aggregate.

    Guards refuse updates, and the mean over a single remaining client is that client's update, which its peers then see
    as the next global model. Only the server can count replies; a client must trust that it does.
    """

    least: int = 2

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        if self.least < 2:
            raise UsageError(f"Quorum.least must be at least 2, got {self.least}: one client's mean is its update.")
        all_replies = list(replies)
        if sum(not reply.has_error() for reply in all_replies) < self.least:
            return None, None
        return super().aggregate_train(server_round, all_replies)  # type: ignore[misc] # of the strategy on the right
