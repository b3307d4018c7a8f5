"""The guard as a mod of a Flower client, and the server's count of sound replies. Needs `flwr`.

`ClientApp(mods=[GuardMod(Guard(...)), ...])`: the first mod of the list is the outermost, so that it sees what the
other mods made of the update. A mod that masks updates for secure aggregation must stand before it: a masked update
cannot be checked.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any

from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.guard.guard import Guard
from fedglass.guard.message import count, figure
from fedglass.guard.report import REFUSED, GuardCounts, GuardMemory, GuardReport, Reason
from fedglass.recorders.hooks import TrainingReader

CODE = 6
"""Flower's number for a mod whose precondition failed."""
COUNTS = ("num-examples", "num_examples")
"""Names of the number of examples, which the guard writes itself where it saw the training."""
METRICS = (*COUNTS, "train_loss", "loss", "eval_loss", "eval_acc", "accuracy")
"""Figures that may leave together with an update."""
METRIC_RECORD = "metrics"
"""The name of the record of figures."""
STATE = "fedglass.guard."
"""The prefix of entries in the client's context, which stays on the client."""
KEPT = ("before", "sent", "draft", "accepted", "moved")
"""Fields of the guard's memory that are kept there as arrays."""

CallNext = Callable[[Message, Context], Message]
Others = Callable[[Context], Tensor]


class GuardMod:
    """Sends the guard's message if the guard clears the update, and allowed figures; never raises but an interrupt.

    Replies to `train` are checked by the guard. Replies to `evaluate` may hold only allowed figures. All other replies
    are refused. The reply is built anew: nothing that an app put into it leaves, but for rounded figures.

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
        # The app may write into its message: the answer is addressed and named by what came.
        came = copy.deepcopy(msg)
        try:
            return self._reply(came, ctxt, lambda: call_next(msg, ctxt))
        except KeyboardInterrupt:
            pass  # raised again below, without a text and without what it came from
        except BaseException:  # noqa: BLE001 # an exception's text would reach the server, SystemExit's too
            return refusal(came)
        raise KeyboardInterrupt

    def _reply(self, came: Message, ctxt: Context, run_app: Callable[[], Message]) -> Message:
        kind = came.metadata.message_type.partition(".")[0]
        received = _arrays(came) if kind == "train" else None
        guard = replace(self.guard, memory=load_memory(ctxt))  # the app may write into its context, too
        if received and not guard.check_received(received, preliminary=True).allowed:
            return refusal(came)
        with guard.watch() as reader:
            reply = run_app()
        if reply.has_error():
            return refusal(came)
        if kind != "train":
            figures = self._figures(reply) if kind == "evaluate" and not reply.content.array_records else None
            if figures is not None:
                return Message(RecordDict(figures), reply_to=came)
            return reply if guard.policy != "block" else refusal(came)
        report, figures = self._checked(guard, reader, received, reply, came, ctxt)
        if report.message is not None:
            (name,) = came.content.array_records
            return Message(RecordDict({name: ArrayRecord(dict(report.message)), **figures}), reply_to=came)
        return reply if report.allowed else refusal(came)

    def _checked(
        self,
        guard: Guard,
        reader: TrainingReader,
        received: dict[str, Tensor] | None,
        reply: Message,
        came: Message,
        ctxt: Context,
    ) -> tuple[GuardReport, dict[str, Any]]:
        leaving, names = _arrays(reply), set(reply.content.array_records)
        extra = self._figures(reply) is None or not names <= {"arrays", *came.content.array_records}
        if extra or received is None or leaving is None or list(received) != list(leaving):
            report = guard.refused(Reason.STRUCTURE)
        else:
            others = None if self.others is None else self.others(ctxt)
            distinct = None if self.distinct is None else self.distinct(ctxt)
            report = guard.check_watched(reader, received, after=leaving, others=others, distinct=distinct)
        save_memory(ctxt, guard.memory)
        return report, self._figures(reply, report.examples) or {}

    def _figures(self, reply: Message, examples: int | None = None) -> dict[str, Any] | None:
        """Return the metrics as they leave, in the order of their names, with the number of examples where it is known.

        None if one of them is not an allowed finite number.
        """
        records = reply.content.metric_records
        if reply.content.config_records or len(records) > 1 or not set(records) <= {METRIC_RECORD}:
            return None
        given = {name: value for record in records.values() for name, value in record.items()}
        if not set(given) <= self.metrics:
            return None
        figures: dict[str, int | float] = {}
        for name in (name for name in sorted(self.metrics) if name in given):  # never the app's own object
            value = given[name]
            if not isinstance(value, int | float) or not math.isfinite(value):
                return None
            seen = count(value) if examples is None else examples
            figures[name] = seen if name in COUNTS else figure(value)
        return {METRIC_RECORD: MetricRecord(figures)} if figures else {}


def refusal(came: Message) -> Message:
    """Return the one reply to a refused update."""
    return Message(Error(code=CODE, reason=REFUSED), reply_to=came)


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
    kept = {name: state[f"{STATE}{name}"].to_torch_state_dict() if f"{STATE}{name}" in state else None for name in KEPT}
    return GuardMemory(counts, **kept)


def save_memory(ctxt: Context, memory: GuardMemory) -> None:
    """Write the guard's memory to the client's context."""
    ctxt.state[f"{STATE}counts"] = MetricRecord(asdict(memory.counts))
    for name, params in ((name, getattr(memory, name)) for name in KEPT):
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
