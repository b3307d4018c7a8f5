"""The guard as a filter of an NVFlare client. Needs `nvflare`.

`guard_clients(recipe, ...)` adds it to a job, for what comes in and, as the last filter, for what leaves. The training
must run in the client's own process, as it does unless a recipe launches an external one: the update of a training that
was not observed is refused.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from torch import Tensor

from fedglass.core.tensors import Params
from fedglass.guard.guard import Guard
from fedglass.guard.message import figure
from fedglass.guard.report import GuardMemory, GuardRefusal, GuardReport, Level, Policy, Reason
from fedglass.recorders.client import folder_name
from fedglass.recorders.hooks import TrainingReader

STEPS, FIGURES = "NUM_STEPS_CURRENT_ROUND", "initial_metrics"
"""Properties that leave together with the arrays: the number of steps, which the guard counted, and figures."""
ROUNDS = ("start_round", "current_round", "num_rounds", "total_rounds")
"""Headers and properties that leave as they came."""
METRICS = ("train_loss", "loss", "val_loss", "accuracy")
"""Figures that may leave together with an update."""


@dataclass(frozen=True)
class SentByItself:
    """Data that NVFlare sends with every answer: the cookies of the task and the public properties of the context.

    An app may write into both. They are copied before it runs, and put back before the answer is sent.
    """

    task: Shareable
    cookies: Any
    public: Mapping[str, tuple[Any, bool]]
    """The value of each property, and whether it is sticky."""
    manager: FLContextManager | None
    """Gives sticky properties to the contexts of all other messages."""
    stickers: Mapping[str, Any]

    @classmethod
    def of(cls, shareable: Shareable, fl_ctx: FLContext) -> SentByItself:
        details = ((name, fl_ctx.get_prop_detail(name)) for name in fl_ctx.get_all_public_props())
        public = {name: (copy.deepcopy(detail["value"]), detail["sticky"]) for name, detail in details}
        manager = fl_ctx.get_prop(ReservedKey.MANAGER)
        stickers = {} if manager is None else copy.deepcopy(manager.public_stickers)
        return cls(shareable, copy.deepcopy(shareable.get_cookie_jar()), public, manager, stickers)

    def put_back(self, fl_ctx: FLContext) -> None:
        self.task[ReservedHeaderKey.HEADERS] = {}
        if self.cookies:
            self.task.set_cookie_jar(copy.deepcopy(self.cookies))
        if self.manager is not None:
            self.manager.public_stickers.clear()
            self.manager.public_stickers.update(self.stickers)
        for name in set(fl_ctx.get_all_public_props()) - set(self.public):
            fl_ctx.remove_prop(name, force_removal=True)
        for name, (value, sticky) in self.public.items():
            fl_ctx.put(name, value, private=False, sticky=sticky)

    def fix_cookies(self) -> None:
        """Let NVFlare find the cookies that came, also where the executor raises and no filter runs.

        The answer is then made before anything else is asked.
        """
        self.task.get_cookie_jar = lambda: copy.deepcopy(self.cookies)


@dataclass(frozen=True)
class ReceivedTask:
    """The task that came, copied before the app runs."""

    arrays: dict[str, Tensor]
    as_numpy: bool
    headers: dict[str, int | float]
    meta: dict[str, int | float]

    @classmethod
    def of(cls, shareable: Shareable) -> ReceivedTask:
        dxo = from_shareable(shareable)
        headers, meta = (
            {name: value for name, value in ((name, read(name)) for name in ROUNDS) if _is_number(value)}
            for read in (shareable.get_header, dxo.meta.get)
        )
        as_numpy = isinstance(dxo.data, Mapping) and any(isinstance(a, np.ndarray) for a in dxo.data.values())
        return cls(tensors(dxo.data) or {}, as_numpy, headers, meta)

    def reply(self, kind: str, message: Params, figures: Mapping[str, float], steps: int) -> Shareable:
        """Return the guard's message as the framework sends it: nothing in it is the app's, but for figures."""
        arrays = {name: tensor.numpy() if self.as_numpy else tensor for name, tensor in message.items()}
        meta = {**self.meta, STEPS: steps, **({FIGURES: dict(figures)} if figures else {})}
        built = DXO(kind, arrays, meta).to_shareable()
        for name, value in self.headers.items():
            built.set_header(name, value)
        return built


_SENT_BY_ITSELF: WeakKeyDictionary[FLContext, SentByItself] = WeakKeyDictionary()
"""By context: it is the same one for both directions of a task, and an app may rename the client in it."""
_RECEIVED: dict[str, ReceivedTask] = {}
_READERS: dict[str, TrainingReader] = {}
_MEMORIES: dict[str, GuardMemory] = {}
"""By client: the filters for both directions are two objects, and a process may serve several clients."""


def guard_clients(recipe: Any, **options: Any) -> None:
    """Let a recipe's clients check what they send, with options of `GuardFilter`. Add other filters before this one."""
    recipe.add_client_input_filter(GuardFilter(**options), tasks=["train"])
    # A model for cross-site evaluation would leave as it is: it is no reply to a training, and is refused.
    recipe.add_client_output_filter(GuardFilter(**options), tasks=["train", "submit_model"])


class GuardFilter(Filter):  # type: ignore[misc] # nvflare has no types
    """Checks each reply of a client; a refused reply becomes NVFlare's TASK_RESULT_FILTER_ERROR, without a text.

    The options are those of `Guard` that a job's configuration can hold; `log` is a folder, with a file for each
    client. A filter of DXOs would let everything else
    pass: this one refuses it.
    """

    def __init__(
        self,
        policy: Policy = "block",
        budget_seconds: float = 30.0,
        min_examples: int = 2,
        clip: float | None = None,
        noise_multiplier: float = 0.0,
        level: Level = "reconstruction",
        false_alarms: float | None = None,
        max_examples: int = 4096,
        log: str | None = None,
    ) -> None:
        super().__init__()
        self.policy = policy
        self.budget_seconds = budget_seconds
        self.min_examples = min_examples
        self.clip = clip
        self.noise_multiplier = noise_multiplier
        self.level = level
        self.false_alarms = false_alarms
        self.max_examples = max_examples
        self.log = log

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Store a copy of what comes in, and check what leaves."""
        comes_in = fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN
        if not comes_in and fl_ctx in _SENT_BY_ITSELF:
            _SENT_BY_ITSELF[fl_ctx].put_back(fl_ctx)
        client = str(fl_ctx.get_identity_name())
        if comes_in:
            self._begin(shareable, fl_ctx, client)
            task = _RECEIVED.get(client)
            if not self.guard(client).check_received(task.arrays if task else {}, preliminary=True).allowed:
                _end(client)
                raise GuardRefusal
            return shareable
        reader = _end(client)
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)  # an app writes what it likes into a code
        try:
            report, message = self._checked(shareable, client, reader)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 # it fails closed, and without the exception's text
            report, message = self.guard(client).refused(Reason.FAULT), None
        if not report.allowed:
            raise GuardRefusal
        return shareable if message is None else message

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Put back what NVFlare sends by itself, also where no filter ran: the executor raised, or was aborted."""
        if event_type == EventType.BEFORE_SEND_TASK_RESULT and fl_ctx in _SENT_BY_ITSELF:
            _SENT_BY_ITSELF.pop(fl_ctx).put_back(fl_ctx)
            _end(str(fl_ctx.get_identity_name()))

    def _begin(self, shareable: Shareable, fl_ctx: FLContext, client: str) -> None:
        """Start to observe the client, in every thread."""
        try:
            sent_by_itself = _SENT_BY_ITSELF[fl_ctx] = SentByItself.of(shareable, fl_ctx)
            sent_by_itself.fix_cookies()
            _RECEIVED[client] = ReceivedTask.of(shareable)
            unfinished, _READERS[client] = _READERS.get(client), self.guard(client).watch(any_thread=True)
            if unfinished is not None:
                unfinished.__exit__(None, None, None)
            _READERS[client].__enter__()
        except Exception:  # noqa: BLE001 # what leaves later is then refused
            _RECEIVED.pop(client, None)

    def guard(self, client: str) -> Guard:
        """Return the guard of one client, with its memory of earlier rounds."""
        return Guard(
            self.policy,
            self.budget_seconds,
            self.min_examples,
            self.max_examples,
            clip=self.clip,
            noise_multiplier=self.noise_multiplier,
            level=self.level,
            false_alarms=self.false_alarms,
            log=None if self.log is None else f"{self.log}/{folder_name(client)}.jsonl",
            memory=_MEMORIES.setdefault(client, GuardMemory()),
        )

    def _checked(
        self, shareable: Shareable, client: str, reader: TrainingReader | None
    ) -> tuple[GuardReport, Shareable | None]:
        guard, dxo, received = self.guard(client), from_shareable(shareable), _RECEIVED.pop(client, None)
        leaving, figures = tensors(dxo.data), figures_of(shareable, dxo)
        known = dxo.data_kind in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF)
        if received is None or leaving is None or figures is None or set(leaving) != set(received.arrays) or not known:
            return guard.refused(Reason.STRUCTURE), None
        sent = {name: leaving[name] for name in received.arrays}
        after, update = (sent, None) if dxo.data_kind == DataKind.WEIGHTS else (None, sent)
        report = guard.check_watched(reader, received.arrays, after=after, update=update)
        if report.message is None or reader is None:
            return report, None
        kind = DataKind.WEIGHT_DIFF if after is None else DataKind.WEIGHTS
        return report, received.reply(kind, report.message, figures, len(reader.steps))


def _end(client: str) -> TrainingReader | None:
    """Stop observing a client, and return what was observed."""
    reader = _READERS.pop(client, None)
    if reader is not None:
        reader.__exit__(None, None, None)
    return reader


def tensors(data: Any) -> dict[str, Tensor] | None:
    """Return copies of named arrays; None if something else is among them."""
    if not isinstance(data, Mapping) or not data:
        return None
    if not all(isinstance(name, str) and isinstance(value, np.ndarray | Tensor) for name, value in data.items()):
        return None
    return {name: torch.as_tensor(value).detach().clone() for name, value in data.items()}


def figures_of(shareable: Shareable, dxo: DXO) -> dict[str, float] | None:
    """Return the allowed figures as they leave, in the order of their names; None if an app added more."""
    figures = dxo.meta.get(FIGURES) or {}
    if not isinstance(figures, Mapping) or not all(n in METRICS and _is_number(v) for n, v in figures.items()):
        return None
    if not set(shareable) <= {"DXO", ReservedHeaderKey.HEADERS}:
        return None
    return {name: figure(figures[name]) for name in sorted(METRICS) if name in figures}  # never the app's own object


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
