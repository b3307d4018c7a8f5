"""The guard as a filter of an NVFlare client. Needs `nvflare`.

`guard_clients(recipe, ...)` adds it to a job, for what comes in and, as the last filter, for what leaves. The training
must run in the client's own process, as it does unless a recipe launches an external one: the update of a training that
was not observed is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from torch import Tensor

from fedglass.guard.guard import Guard
from fedglass.guard.report import GuardMemory, GuardRefusal, GuardReport, Policy, Reason
from fedglass.recorders.hooks import TrainingReader

META = ("NUM_STEPS_CURRENT_ROUND", "current_round", "start_round", "total_rounds", "initial_metrics")
"""Properties that may leave together with the arrays; the framework's other properties stay on the client."""
HEADERS = ("start_round", "current_round", "num_rounds", "total_rounds")
METRICS = ("train_loss", "loss", "val_loss", "accuracy")
"""Figures that may leave together with an update."""

_RECEIVED: dict[str, dict[str, Tensor]] = {}
_READERS: dict[str, TrainingReader] = {}
_MEMORIES: dict[str, GuardMemory] = {}
"""By client: the filters for both directions are two objects, and a process may serve several clients."""


def guard_clients(recipe: Any, **options: Any) -> None:
    """Let a recipe's clients check what they send, with options of `GuardFilter`. Add other filters before this one."""
    recipe.add_client_input_filter(GuardFilter(**options), tasks=["train"])
    recipe.add_client_output_filter(GuardFilter(**options), tasks=["train"])


class GuardFilter(Filter):  # type: ignore[misc] # nvflare has no types
    """Checks each reply of a client; a refused reply becomes NVFlare's TASK_RESULT_FILTER_ERROR, without a text.

    The options are those of `Guard` that a job's configuration can hold. A filter of DXOs would let everything else
    pass: this one refuses it.
    """

    def __init__(
        self,
        policy: Policy = "block",
        budget_seconds: float = 30.0,
        min_examples: int = 2,
        clip: float | None = None,
        noise_multiplier: float = 0.0,
        false_alarms: float = 0.05,
    ) -> None:
        super().__init__()
        self.policy = policy
        self.budget_seconds = budget_seconds
        self.min_examples = min_examples
        self.clip = clip
        self.noise_multiplier = noise_multiplier
        self.false_alarms = false_alarms

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Store a copy of what comes in, and check what leaves."""
        client = str(fl_ctx.get_identity_name())
        if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN:
            self._begin(shareable, client)
            return shareable
        reader = _READERS.pop(client, None)
        if reader is not None:
            reader.__exit__(None, None, None)
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return make_reply(code)  # only the code, without anything that an app added
        try:
            report, checked = self._checked(shareable, client, reader)
        except Exception:  # noqa: BLE001 # it fails closed, and without the exception's text
            report, checked = self.guard(client).refused(Reason.FAULT), None
        if not report.allowed:
            raise GuardRefusal
        return checked if report.sound and checked is not None else shareable

    def _begin(self, shareable: Shareable, client: str) -> None:
        """Start to observe the client, in every thread."""
        try:
            _RECEIVED[client] = tensors(from_shareable(shareable).data) or {}
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
            clip=self.clip,
            noise_multiplier=self.noise_multiplier,
            false_alarms=self.false_alarms,
            memory=_MEMORIES.setdefault(client, GuardMemory()),
        )

    def _checked(
        self, shareable: Shareable, client: str, reader: TrainingReader | None
    ) -> tuple[GuardReport, Shareable | None]:
        guard, dxo, received = self.guard(client), from_shareable(shareable), _RECEIVED.pop(client, None)
        leaving, checked = tensors(dxo.data), rebuilt(shareable, dxo)
        if received is None or leaving is None or checked is None or set(leaving) != set(received):
            return guard.refused(Reason.STRUCTURE), None
        sent = {name: leaving[name] for name in received}
        if dxo.data_kind == DataKind.WEIGHTS:
            return guard.check_watched(reader, received, after=sent), checked
        if dxo.data_kind == DataKind.WEIGHT_DIFF:
            return guard.check_watched(reader, received, update=sent), checked
        return guard.refused(Reason.STRUCTURE), None


def tensors(data: Any) -> dict[str, Tensor] | None:
    """Return copies of named arrays; None if something else is among them."""
    if not isinstance(data, Mapping) or not data:
        return None
    if not all(isinstance(name, str) and isinstance(value, np.ndarray | Tensor) for name, value in data.items()):
        return None
    return {name: torch.as_tensor(value).detach().clone() for name, value in data.items()}


def rebuilt(shareable: Shareable, dxo: DXO) -> Shareable | None:
    """Return the reply with its arrays, allowed figures and the framework's counts; None if an app added more."""
    figures = dxo.meta.get("initial_metrics") or {}
    if not isinstance(figures, Mapping) or not all(n in METRICS and _number(v) for n, v in figures.items()):
        return None
    if not set(shareable) <= {"DXO", ReservedHeaderKey.HEADERS}:
        return None
    meta = {name: value for name, value in dxo.meta.items() if name in META and (value is figures or _number(value))}
    built = DXO(dxo.data_kind, dict(dxo.data), meta).to_shareable()
    for name in HEADERS:
        if _number(shareable.get_header(name)):
            built.set_header(name, shareable.get_header(name))
    return built


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
