"""The guard as a mod of a Flower client, and the server's count of who is left. Needs `flwr`.

`ClientApp(mods=[GuardMod(Guard(...)), ...])`: first in the list is outermost, so that it sees what the others made of
the update. A mod that masks updates for secure aggregation stands outside of it: nobody can check a masked one.
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
"""Figures that may leave beside an update."""
STATE = "fedglass.guard."
"""Before the names of what is kept in the client's context, which stays there."""

CallNext = Callable[[Message, Context], Message]
Others = Callable[[Context], Tensor]


class GuardMod:
    """Lets out the model's arrays if the guard clears them, allowed figures, and nothing else; never raises.

    Answers to `train` are checked by the guard; those to `evaluate` may hold allowed figures only; all others are
    refused. The answer is built anew out of what was checked: what an app put beside it stays here. `others` gives
    inputs that the client does not train on, and `distinct` the number of its examples where augmentation
    makes more of them.
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
            return self._answered(msg, ctxt, call_next)
        except Exception:  # noqa: BLE001 # an exception's text would reach the server
            return refusal(msg)

    def _answered(self, msg: Message, ctxt: Context, call_next: CallNext) -> Message:
        kind = msg.metadata.message_type.partition(".")[0]
        # Taken before the app runs, which may write into what it was given.
        came = _arrays(msg) if kind == "train" else None
        with self.guard.watch() as reader:
            reply = call_next(msg, ctxt)
        if reply.has_error():
            return refusal(msg)
        if kind != "train":
            built = self._figures_only(reply, msg) if kind == "evaluate" else None
            return built or (reply if self.guard.policy != "block" else refusal(msg))
        report, built = self._checked(reader, came, reply, msg, ctxt)
        if report.sound and built is not None:
            return built
        return reply if report.allowed else refusal(msg)

    def _checked(
        self, reader: TrainingReader, came: dict[str, Tensor] | None, reply: Message, msg: Message, ctxt: Context
    ) -> tuple[GuardReport, Message | None]:
        guard = replace(self.guard, memory=remembered(ctxt))
        leaving = _arrays(reply)
        built = self._built(leaving, reply, msg)
        if came is None or leaving is None or built is None or list(came) != list(leaving):
            report = guard.refused(Reason.STRUCTURE)
        else:
            others = None if self.others is None else self.others(ctxt)
            distinct = None if self.distinct is None else self.distinct(ctxt)
            report = guard.check_watched(reader, came, after=leaving, others=others, distinct=distinct)
        remember(ctxt, guard.memory)
        return report, built

    def _built(self, leaving: dict[str, Tensor] | None, reply: Message, msg: Message) -> Message | None:
        """The answer out of the arrays that are checked and allowed figures; None where it holds anything else."""
        figures, names = self._figures(reply), set(reply.content.array_records)
        if figures is None or leaving is None or not names <= {"arrays", *msg.content.array_records}:
            return None
        return Message(RecordDict({names.pop(): ArrayRecord(dict(leaving)), **figures}), reply_to=msg)

    def _figures_only(self, reply: Message, msg: Message) -> Message | None:
        figures = self._figures(reply)
        return None if figures is None or reply.content.array_records else Message(RecordDict(figures), reply_to=msg)

    def _figures(self, reply: Message) -> dict[str, Any] | None:
        records = reply.content.metric_records
        if reply.content.config_records or len(records) > 1 or not set(records) <= {"metrics"}:
            return None
        for record in records.values():
            for name, value in record.items():
                if name not in self.metrics or not isinstance(value, int | float) or not math.isfinite(value):
                    return None
        return {name: MetricRecord(dict(record)) for name, record in records.items()}


def refusal(msg: Message) -> Message:
    """The one answer in place of an update."""
    return Message(Error(code=CODE, reason=REFUSED), reply_to=msg)


def _arrays(message: Message) -> dict[str, Tensor] | None:
    """A copy of the one record of arrays; None where there is another number of them."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        return None
    return {name: tensor.clone() for name, tensor in records[0].to_torch_state_dict().items()}


def remembered(ctxt: Context) -> GuardMemory:
    """What the guard keeps from round to round in the client's own context: processes may serve several clients."""
    state = ctxt.state
    if f"{STATE}counts" not in state:
        return GuardMemory()
    counts = GuardCounts(**{name: int(value) for name, value in state[f"{STATE}counts"].items()})
    before, sent = (
        state[f"{STATE}{name}"].to_torch_state_dict() if f"{STATE}{name}" in state else None
        for name in ("before", "sent")
    )
    return GuardMemory(counts, before, sent)


def remember(ctxt: Context, memory: GuardMemory) -> None:
    ctxt.state[f"{STATE}counts"] = MetricRecord(asdict(memory.counts))
    for name, params in (("before", memory.before), ("sent", memory.sent)):
        if params is not None:
            ctxt.state[f"{STATE}{name}"] = ArrayRecord(dict(params))
        elif f"{STATE}{name}" in ctxt.state:
            del ctxt.state[f"{STATE}{name}"]


class Quorum:
    """Left of a strategy (`class Mine(Quorum, FedAvg)`): no aggregate of fewer than `least` sound answers is made.

    Guards make clients fall silent, and the mean over one that is left is that client's update, which its peers then
    see as the next global model. Only the server can count this; a client has to believe that it does.
    """

    least: int = 2

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        if self.least < 2:
            raise UsageError(f"Quorum.least must be at least 2, got {self.least}: one client's mean is its update.")
        answers = list(replies)
        if sum(not answer.has_error() for answer in answers) < self.least:
            return None, None
        return super().aggregate_train(server_round, answers)  # type: ignore[misc] # of the strategy on the right
