"""NVFlare: filters that record what passes, on the server, and how a client trains, on the client.

A job is sent to its sites as class names and plain arguments: both filters of a site are made there, in one process,
and share what they write to by the folder's name. Give absolute paths; on each site they are its own.
"""

from __future__ import annotations

import inspect
import logging
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, FLMetaKey, ReturnCode
from nvflare.apis.shareable import ReservedHeaderKey
from torch import Tensor

from fedglass.core.errors import FedglassError, UsageError
from fedglass.recorders.client import ClientRecorder, UserFacts, folder_name, take_training
from fedglass.recorders.hooks import TrainingReader
from fedglass.recorders.read import sizes_of_extras
from fedglass.recordings import BundleWriter
from fedglass.recordings.files import Form
from fedglass.recordings.format import EXTRA_ARRAYS, MANIFEST

# What NVFlare's own filters do to a client's answer, read off the running client, and what leaves beside the model.
#
# A filter is not told of its neighbours, but the client's runner is in its context, and has all of them: those of the
# job
# and those that the site itself adds.


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


log = logging.getLogger("fedglass")
CURRENT_ROUND = "current_round"
PAYLOAD = (ReservedHeaderKey.HEADERS, "DXO")
"""Keys of a reply under which its header and its model are."""
FORMS: Mapping[str, Form] = {DataKind.WEIGHTS: "state", DataKind.WEIGHT_DIFF: "update"}
MEANS = ("FedAvgRecipe", "FedProxRecipe")
"""Recipes that aggregate by the mean; what FedProx has of its own is the clients' affair."""
_lock = threading.Lock()
_writers: dict[str, BundleWriter] = {}
_readers: dict[str, TrainingReader] = {}


def record_server(
    recipe: Any,
    folder: str | Path,
    *,
    clients: str | Path | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Let a recipe's server record what it sends and gets: one line in the job's script.

    `clients` is the folder of `record_clients`, where it is on the same machine, as in a simulation: what the clients
    have read of their training is then taken over. `facts` are what a bundle tells of the whole federation and no
    message does: `model`, `classes`, `whitening`, ...
    """
    place = Path(folder).absolute()
    if (place / MANIFEST).exists():
        raise UsageError(f"{place} holds a bundle already: choose another folder for this job.")
    told = {"rule": _rule(recipe), **(facts or {})}
    recipe.add_server_output_filter(SentFilter(str(place), told), tasks=["train"])
    near = None if clients is None else str(Path(clients).absolute())
    recipe.add_server_input_filter(ReceivedFilter(str(place), near), tasks=["train"])


def record_clients(
    recipe: Any,
    folder: str | Path,
    *,
    truth: str | Path | None = None,
    model: str | None = None,
    whitening: tuple[Sequence[float], Sequence[float]] | None = None,
) -> None:
    """Let a recipe's clients read how they train, each to a folder of its own below `folder`.

    `truth` is another folder, for their examples, which are private and stay with the client, for its own audit. The
    training must run in the client's own process, as it does unless a recipe is told to launch an external one.
    """
    place = str(Path(folder).absolute())
    private = None if truth is None else str(Path(truth).absolute())
    told = None if whitening is None else [list(values) for values in whitening]
    recipe.add_client_input_filter(TrainingBegins(place, private is not None), tasks=["train"])
    recipe.add_client_output_filter(TrainingEnds(place, private, model, told), tasks=["train"])


def _rule(recipe: Any) -> dict[str, Any]:
    """The mean, where the recipe is one of NVFlare's own for it, without an aggregator of somebody's; else its name."""
    kind, aggregator = type(recipe).__name__, getattr(recipe, "aggregator", None)
    if kind in MEANS and aggregator is None:
        return {"name": "mean"}
    return {"name": kind if aggregator is None else type(aggregator).__name__}


class SentFilter(Filter):  # type: ignore[misc] # NVFlare has no types
    """Records the global model that goes out; with the next round's, what the last one was aggregated to."""

    def __init__(self, folder: str, facts: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.folder, self.facts = folder, facts or {}

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        _safely(self._take, shareable, fl_ctx, folder=self.folder)
        return shareable

    def _take(self, shareable: Any, fl_ctx: Any) -> None:
        writer = _writer(self.folder, self.facts)
        arrays, index = _arrays(shareable), _round(shareable)
        if arrays is None or index is None:
            log.warning("fedglass records nothing of a task that is no model.")
            return
        tensors = arrays[0]
        past, last = writer.round(index), writer.round(index - 1) if index else None
        if past.told.sent is None:
            past.sent(tensors)
            if last is not None and last.told.sent is not None and last.told.aggregated is None:
                last.aggregated(tensors)
        elif not _equal(writer.arrays(past.told.sent), tensors):
            client = _peer(fl_ctx)
            if past.message(client).sent is None:
                past.sent(tensors, client=client)


class ReceivedFilter(Filter):  # type: ignore[misc] # NVFlare has no types
    """Records what a client sent, before the server's other filters and its workflow touch it."""

    def __init__(self, folder: str, clients: str | None = None) -> None:
        super().__init__()
        self.folder, self.clients = folder, clients

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        _safely(self._take, shareable, fl_ctx, folder=self.folder)
        return shareable

    def _take(self, shareable: Any, fl_ctx: Any) -> None:
        writer, client, index = _writer(self.folder, {}), _peer(fl_ctx), _round(shareable)
        if index is None:
            log.warning("fedglass records nothing of a reply that tells no round.")
            return
        past, code = writer.round(index), shareable.get_return_code()
        arrays = _arrays(shareable) if code == ReturnCode.OK else None
        if code != ReturnCode.OK:
            past.absent(client, code)
            return
        if arrays is None:  # filters see no payload of another kind
            past.unseen(client, "its reply is no model that a filter can see")
            return
        tensors, form, dxo = arrays
        past.received(client, tensors, form=form)
        weight = dxo.get_meta_prop(FLMetaKey.NUM_STEPS_CURRENT_ROUND)
        facts = {
            "weight": float(weight) if isinstance(weight, int | float) and weight > 0 else None,
            "metrics": dxo.get_meta_prop("initial_metrics") or None,
            "filters": passed(dxo.get_filter_history()) or None,
            EXTRA_ARRAYS: _further(shareable, dxo) or None,
        }
        writer.training(client, index, facts, source="read")
        if self.clients is not None:
            take_training(writer, Path(self.clients) / folder_name(client), index)


class TrainingBegins(Filter):  # type: ignore[misc] # NVFlare has no types
    """On a client: from here on torch is listened to."""

    def __init__(self, folder: str, keep_examples: bool = False) -> None:
        super().__init__()
        self.folder, self.keep_examples = folder, keep_examples

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        _safely(self._begin)
        return shareable

    def _begin(self) -> None:
        with _lock:
            _close(self.folder)
            reader = _readers[self.folder] = TrainingReader(keep_examples=self.keep_examples, any_thread=True)
            reader.__enter__()


class TrainingEnds(Filter):  # type: ignore[misc] # NVFlare has no types
    """On a client: what was heard until here is how it trained, and its runner tells what else the answer passes."""

    def __init__(
        self,
        folder: str,
        truth: str | None = None,
        model: str | None = None,
        whitening: list[list[float]] | None = None,
    ) -> None:
        super().__init__()
        self.folder, self.truth, self.model, self.whitening = folder, truth, model, whitening

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        _safely(self._end, shareable, fl_ctx)
        return shareable

    def _end(self, shareable: Any, fl_ctx: Any) -> None:
        with _lock:
            reader = _close(self.folder)
        index, arrays = _round(shareable), _arrays(shareable)
        if reader is None or index is None or not (reader.steps or reader.fault):
            log.warning("fedglass has seen no training: it runs in another process, or not with torch.")
            return
        client = fl_ctx.get_identity_name()
        whitening = None if self.whitening is None else (self.whitening[0], self.whitening[1])
        told = UserFacts(self.model, whitening)
        defences = [] if arrays is None else defences_of(fl_ctx, arrays[2].data_kind)
        recorder = ClientRecorder(Path(self.folder) / folder_name(client), client, told=told, truth=self.truth)
        recorder.trained(index, reader, defences)


def _close(folder: str) -> TrainingReader | None:
    reader = _readers.pop(folder, None)
    if reader is not None:
        reader.__exit__()
    return reader


def _safely(take: Any, *told: Any, folder: str = "") -> None:
    """Take something down; where that fails, the bundle in the folder is told."""
    try:
        take(*told)
        return
    except FedglassError as error:
        log.error("fedglass could not record, the training goes on: %s", error)
    except Exception:  # a filter that raises makes the client's result an error: a recorder may not
        log.exception("fedglass could not record, the training goes on.")
    if folder in _writers:
        _writers[folder].lost()


def _writer(folder: str, facts: Mapping[str, Any]) -> BundleWriter:
    with _lock:
        if folder not in _writers:
            told = {"framework": f"nvflare {version('nvflare')}", "sees": "each"}
            _writers[folder] = BundleWriter(folder, writer="server", facts=told, source="read")
        if facts:
            _writers[folder].facts(facts)
        return _writers[folder]


def _arrays(shareable: Any) -> tuple[dict[str, Any], Form, DXO] | None:
    """The model in a payload, with its form; None where it is anything else."""
    try:
        dxo = from_shareable(shareable)
    except (ValueError, TypeError, KeyError):
        return None
    if dxo.data_kind not in FORMS or not dxo.data:
        return None
    return {str(name): value for name, value in dxo.data.items()}, FORMS[dxo.data_kind], dxo


def _further(shareable: Any, dxo: DXO) -> dict[str, Any]:
    """What a reply holds beside its model: SCAFFOLD's control variates, for one, travel among its properties."""
    beside = {name: value for name, value in shareable.items() if name not in PAYLOAD}
    told = {name: value for name, value in dxo.meta.items() if name != MetaKey.INITIAL_METRICS}
    return sizes_of_extras({**beside, **told})


def _round(shareable: Any) -> int | None:
    found = shareable.get_header(CURRENT_ROUND)
    return int(found) if isinstance(found, int) else None


def _peer(fl_ctx: Any) -> str:
    peer = fl_ctx.get_peer_context()
    return str(peer.get_identity_name()) if peer is not None else "unknown"


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Any]) -> bool:
    return list(one) == list(other) and all(np.array_equal(one[n].numpy(), np.asarray(other[n])) for n in one)
