"""The guard as a filter of an NVFlare client. Needs `nvflare`.

`guard_clients(recipe, ...)` adds it to a job, for what comes and, as the last filter, for what leaves. The training
must run in the client's own process, as it does unless a recipe is told to launch an external one: what nobody saw is
refused.
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
"""Numbers that may leave beside the arrays, and figures; what else the framework sends along stays."""
HEADERS = ("start_round", "current_round", "num_rounds", "total_rounds")
METRICS = ("train_loss", "loss", "val_loss", "accuracy")
"""Figures that may leave beside an update."""

_CAME: dict[str, dict[str, Tensor]] = {}
_READERS: dict[str, TrainingReader] = {}
_MEMORIES: dict[str, GuardMemory] = {}
"""By client: the filters for both ways are two objects, and a process may serve several clients."""


def guard_clients(recipe: Any, **options: Any) -> None:
    """Let a recipe's clients check what they send; options are those of `GuardFilter`. Add other filters before."""
    recipe.add_client_input_filter(GuardFilter(**options), tasks=["train"])
    recipe.add_client_output_filter(GuardFilter(**options), tasks=["train"])


class GuardFilter(Filter):  # type: ignore[misc] # nvflare has no types
    """Checks each answer of a client; one that is refused becomes NVFlare's TASK_RESULT_FILTER_ERROR, without a text.

    The options are those of `Guard` that a job's configuration can hold. A filter of DXOs only would be passed by
    whatever is no DXO: this one refuses it.
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
        """What comes is remembered, and what leaves is checked."""
        client = str(fl_ctx.get_identity_name())
        if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN:
            self._begin(shareable, client)
            return shareable
        reader = _READERS.pop(client, None)
        if reader is not None:
            reader.__exit__(None, None, None)
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return make_reply(code)  # the code alone, without what an app put beside it
        try:
            report, built = self._checked(shareable, client, reader)
        except Exception:  # noqa: BLE001 # it fails closed, and without the exception's text
            report, built = self.guard(client).refused(Reason.FAULT), None
        if not report.allowed:
            raise GuardRefusal
        return built if report.sound and built is not None else shareable

    def _begin(self, shareable: Shareable, client: str) -> None:
        """From here on the client is watched, in whichever thread it trains."""
        try:
            _CAME[client] = tensors(from_shareable(shareable).data) or {}
            stale, _READERS[client] = _READERS.get(client), self.guard(client).watch(any_thread=True)
            if stale is not None:
                stale.__exit__(None, None, None)
            _READERS[client].__enter__()
        except Exception:  # noqa: BLE001 # what leaves later is then refused
            _CAME.pop(client, None)

    def guard(self, client: str) -> Guard:
        """That of one client, with what it remembers of earlier rounds."""
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
        guard, dxo, came = self.guard(client), from_shareable(shareable), _CAME.pop(client, None)
        left, built = tensors(dxo.data), rebuilt(shareable, dxo)
        if came is None or left is None or built is None or set(left) != set(came):
            return guard.refused(Reason.STRUCTURE), None
        sent = {name: left[name] for name in came}
        if dxo.data_kind == DataKind.WEIGHTS:
            return guard.check_watched(reader, came, after=sent), built
        if dxo.data_kind == DataKind.WEIGHT_DIFF:
            return guard.check_watched(reader, came, update=sent), built
        return guard.refused(Reason.STRUCTURE), None


def tensors(data: Any) -> dict[str, Tensor] | None:
    """Copies of named arrays; None where something else is among them."""
    if not isinstance(data, Mapping) or not data:
        return None
    if not all(isinstance(name, str) and isinstance(value, np.ndarray | Tensor) for name, value in data.items()):
        return None
    return {name: torch.as_tensor(value).detach().clone() for name, value in data.items()}


def rebuilt(shareable: Shareable, dxo: DXO) -> Shareable | None:
    """The answer with its arrays, allowed figures and the framework's counts; None where an app put more there."""
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
