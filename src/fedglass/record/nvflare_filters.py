"""What NVFlare's own filters do to a client's answer, read off the running client, and what leaves beside the model.

A filter is not told of its neighbours, but the client's runner is in its context, and has all of them: those of the job
and those that the site itself adds.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_constant import FilterKey, FLContextKey

SITE_FILTERS = "task_result_filters"
"""What both the runner and a site's scope call them."""
HARMLESS = ("DXOBlocker", "ConvertWeights", "AddUpdateHeader")
"""Filters that let a model pass as it is, or not at all."""
PLAIN = (bool, int, float, str)


def defences_of(fl_ctx: Any, kind: str) -> list[dict[str, Any]]:
    """The filters that a model of this kind passes on its way out of a client, by their classes, with their options."""
    return [
        {"name": type(each).__name__, "options": _options(each)}
        for each in _filters(fl_ctx)
        if _protects(each) and not (isinstance(each, DXOFilter) and each.data_kinds and kind not in each.data_kinds)
    ]


def passed(history: Any) -> list[str]:
    """The filters that a message says it passed."""
    return [str(name) for name in history or [] if name not in HARMLESS]


def _filters(fl_ctx: Any) -> Iterator[Any]:
    """In the order in which they act."""
    scope, runner = fl_ctx.get_prop(FLContextKey.SCOPE_OBJECT), fl_ctx.get_prop(FLContextKey.RUNNER)
    yield from (getattr(scope, SITE_FILTERS, None) or {}).get(FilterKey.OUT, [])
    task = f"{fl_ctx.get_prop(FLContextKey.TASK_NAME)}{FilterKey.DELIMITER}{FilterKey.OUT}"
    yield from (getattr(runner, SITE_FILTERS, None) or {}).get(task) or []


def _protects(each: Any) -> bool:
    ours = type(each).__module__.partition(".")[0] == "fedglass"
    return not ours and type(each).__name__ not in HARMLESS


def _options(each: Any) -> dict[str, Any]:
    """What it was made with, as far as it keeps that under the same names in plain values."""
    found = {name: getattr(each, name, None) for name in inspect.signature(type(each).__init__).parameters}
    plain = {name: value.pattern if isinstance(value, re.Pattern) else value for name, value in found.items()}
    return {name: value for name, value in plain.items() if _plain(value)}


def _plain(value: Any) -> bool:
    return isinstance(value, PLAIN) or (isinstance(value, list) and all(isinstance(each, PLAIN) for each in value))
