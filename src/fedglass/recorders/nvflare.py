"""NVFlare: filters that record the messages on the server, and the training on a client.

A job is sent to its sites as class names and plain arguments. Both filters of a site are made there, in one process,
and share a writer by the name of its folder. Give absolute paths; each site has its own.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from fedglass.core.errors import UsageError
from fedglass.recorders.canaries import NO_FILTER
from fedglass.recorders.client import ClientRecorder, copy_training, folder_name, log_and_continue
from fedglass.recorders.defences import nvflare_defence
from fedglass.recorders.hooks import TrainingReader
from fedglass.recordings import BundleWriter
from fedglass.recordings.facts import EXTRA_ARRAYS, sizes_of_extras
from fedglass.recordings.format import MANIFEST, Form
from fedglass.recordings.privacy import LEDGER, svt_ledger

log = logging.getLogger("fedglass")
SITE_FILTERS = "task_result_filters"
"""The attribute of a client's runner and of a site's scope that holds filters."""
HARMLESS = ("DXOBlocker", "ConvertWeights", "AddUpdateHeader")
"""Filters that let a model pass unchanged, or not at all."""
PLAIN = (bool, int, float, str)
CURRENT_ROUND = "current_round"
PAYLOAD = (ReservedHeaderKey.HEADERS, "DXO")
"""Keys of a reply under which its header and its model are."""
FORMS: Mapping[str, Form] = {DataKind.WEIGHTS: "state", DataKind.WEIGHT_DIFF: "update"}
MEANS = ("FedAvgRecipe", "FedProxRecipe")
"""Recipes that aggregate by the mean; FedProx differs from it on the clients only."""
SVT_LEDGERS = ("svt_privacy_budget", "svt_privacy_accountant")
"""Properties of a message in which SVTPrivacy counts its last release and all of them, as of NVFlare 2.9."""
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
    """Let a recipe's server record what it sends and receives: one line in the job's script.

    Args:
        clients: The folder of `record_clients`, if it is on the same machine, as in a simulation. The recorded
            trainings of the clients are then copied into the bundle.
        facts: Facts of the federation that no message shows: `model`, `classes`, `whitening`, ...
    """
    place = Path(folder).absolute()
    if (place / MANIFEST).exists():
        raise UsageError(f"{place} holds a bundle already: choose another folder for this job.")
    declared = {"rule": _rule(recipe), **(facts or {})}
    recipe.add_server_output_filter(SentFilter(str(place), declared), tasks=["train"])
    client_folder = None if clients is None else str(Path(clients).absolute())
    recipe.add_server_input_filter(ReceivedFilter(str(place), client_folder), tasks=["train"])


def record_clients(
    recipe: Any,
    folder: str | Path,
    *,
    truth: str | Path | None = None,
    model: str | None = None,
    whitening: tuple[Sequence[float], Sequence[float]] | None = None,
    canaries: int = 0,
) -> None:
    """Let a recipe's clients record how they train, each to a folder of its own below `folder`.

    The training must run in the client's own process, as it does unless a recipe launches an external one.

    Args:
        truth: Another folder for the clients' examples, which are private and stay with the client, for its own audit.
        model: The architecture as a plan names it, if it is not the class that is trained.
        whitening: Means and deviations of the pixels' normalisation, if they cannot be measured from the pixels.
        canaries: Only 0: NVFlare has no place for canaries.
    """
    if canaries:
        raise UsageError(NO_FILTER)
    place = str(Path(folder).absolute())
    private = None if truth is None else str(Path(truth).absolute())
    plain_whitening = None if whitening is None else [list(values) for values in whitening]
    recipe.add_client_input_filter(TrainingBegins(place, private is not None), tasks=["train"])
    recipe.add_client_output_filter(TrainingEnds(place, private, model, plain_whitening), tasks=["train"])


def _rule(recipe: Any) -> dict[str, Any]:
    """Return the mean for NVFlare's own recipes of it without a custom aggregator, else the name of the class."""
    kind, aggregator = type(recipe).__name__, getattr(recipe, "aggregator", None)
    if kind in MEANS and aggregator is None:
        return {"name": "mean"}
    return {"name": kind if aggregator is None else type(aggregator).__name__}


def _logs_errors(record: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], Any]:
    """Let a filter pass everything unchanged, and log its errors: one that raises would spoil the task."""

    @functools.wraps(record)
    def process(recorder: Any, shareable: Any, fl_ctx: Any) -> Any:
        def mark_incomplete() -> None:
            if recorder.folder in _writers:
                _writers[recorder.folder].mark_incomplete()

        with log_and_continue("could not record", mark_incomplete):
            record(recorder, shareable, fl_ctx)
        return shareable

    return process


class SentFilter(Filter):  # type: ignore[misc] # NVFlare has no types
    """Records the global model that goes out; that of the next round is the aggregate of the last one."""

    def __init__(self, folder: str, facts: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.folder = folder
        self.facts = facts or {}

    @_logs_errors
    def process(self, shareable: Any, fl_ctx: Any) -> None:
        writer = _writer(self.folder, self.facts)
        arrays, index = _arrays(shareable), _round(shareable)
        if arrays is None or index is None:
            log.warning("fedglass does not record a task that holds no model or no round number.")
            return
        tensors = arrays[0]
        round_, previous = writer.round(index), writer.round(index - 1) if index else None
        if round_.state.sent is None:
            round_.sent(tensors)
            if previous is not None and previous.state.sent is not None and previous.state.aggregated is None:
                previous.aggregated(tensors)
        elif not _equal(writer.arrays(round_.state.sent), tensors):
            client = _peer(fl_ctx)
            if round_.message(client).sent is None:
                round_.sent(tensors, client=client)


class ReceivedFilter(Filter):  # type: ignore[misc] # as above
    """Records what a client sent, before the server's other filters and its workflow touch it."""

    def __init__(self, folder: str, clients: str | None = None) -> None:
        super().__init__()
        self.folder = folder
        self.clients = clients

    @_logs_errors
    def process(self, shareable: Any, fl_ctx: Any) -> None:
        writer, client, index = _writer(self.folder, {}), _peer(fl_ctx), _round(shareable)
        if index is None:
            log.warning("fedglass does not record a reply without a round number.")
            return
        round_, code = writer.round(index), shareable.get_return_code()
        arrays = _arrays(shareable) if code == ReturnCode.OK else None
        if code != ReturnCode.OK:
            round_.absent(client, code)
            return
        if arrays is None:  # filters see no payload of another kind
            round_.not_recorded(client, "its reply holds no model that a filter can see")
            return
        tensors, form, dxo = arrays
        round_.received(client, tensors, form=form)
        weight = dxo.get_meta_prop(FLMetaKey.NUM_STEPS_CURRENT_ROUND)
        # Next to its model a reply may hold anything: SCAFFOLD's control variates are in the properties.
        entries = {name: value for name, value in shareable.items() if name not in PAYLOAD}
        properties = {name: value for name, value in dxo.meta.items() if name != MetaKey.INITIAL_METRICS}
        facts = {
            "weight": float(weight) if isinstance(weight, int | float) and weight > 0 else None,
            "metrics": dxo.get_meta_prop("initial_metrics") or None,
            "filters": [str(name) for name in dxo.get_filter_history() or [] if name not in HARMLESS] or None,
            EXTRA_ARRAYS: sizes_of_extras({**entries, **properties}) or None,
            LEDGER: svt_ledger(*(dxo.get_meta_prop(name) for name in SVT_LEDGERS)),
        }
        writer.training(client, index, facts, source="read")
        if self.clients is not None:
            copy_training(writer, Path(self.clients) / folder_name(client), index)


class TrainingBegins(Filter):  # type: ignore[misc] # as above
    """Starts to observe a client's training."""

    def __init__(self, folder: str, keep_examples: bool = False) -> None:
        super().__init__()
        self.folder = folder
        self.keep_examples = keep_examples

    @_logs_errors
    def process(self, shareable: Any, fl_ctx: Any) -> None:
        with _lock:
            _close(self.folder)
            reader = _readers[self.folder] = TrainingReader(keep_examples=self.keep_examples, any_thread=True)
            reader.__enter__()


class TrainingEnds(Filter):  # type: ignore[misc] # as above
    """Stops observing a client's training and records it, with the filters that the reply still passes."""

    def __init__(
        self,
        folder: str,
        truth: str | None = None,
        model: str | None = None,
        whitening: list[list[float]] | None = None,
    ) -> None:
        super().__init__()
        self.folder = folder
        self.truth, self.model, self.whitening = truth, model, whitening

    @_logs_errors
    def process(self, shareable: Any, fl_ctx: Any) -> None:
        with _lock:
            reader = _close(self.folder)
        index, arrays = _round(shareable), _arrays(shareable)
        if reader is None or index is None or not (reader.steps or reader.fault):
            log.warning("fedglass observed no training: it runs in another process, or not with torch.")
            return
        client = fl_ctx.get_identity_name()
        defences = list[dict[str, Any]]()
        if arrays is not None:
            steps = arrays[2].get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND, 1)
            defences = defences_of(fl_ctx, arrays[2].data_kind, steps)
        place = Path(self.folder) / folder_name(client)
        recorder = ClientRecorder(place, client, truth=self.truth, model=self.model, whitening=self.whitening)
        recorder.trained(index, reader, defences)


def _close(folder: str) -> TrainingReader | None:
    reader = _readers.pop(folder, None)
    if reader is not None:
        reader.__exit__()
    return reader


def _writer(folder: str, facts: Mapping[str, Any]) -> BundleWriter:
    with _lock:
        if folder not in _writers:
            framework = {"framework": f"nvflare {version('nvflare')}", "sees": "each"}
            _writers[folder] = BundleWriter(folder, writer="server", facts=framework, source="read")
        if facts:
            _writers[folder].facts(facts)
        return _writers[folder]


def _arrays(shareable: Any) -> tuple[dict[str, Any], Form, DXO] | None:
    """Return the model in a payload, with its form; None if the payload is something else."""
    try:
        dxo = from_shareable(shareable)
    except (ValueError, TypeError, KeyError):
        return None
    if dxo.data_kind not in FORMS or not dxo.data:
        return None
    return {str(name): value for name, value in dxo.data.items()}, FORMS[dxo.data_kind], dxo


def _round(shareable: Any) -> int | None:
    index = shareable.get_header(CURRENT_ROUND)
    return int(index) if isinstance(index, int) else None


def _peer(fl_ctx: Any) -> str:
    peer = fl_ctx.get_peer_context()
    return str(peer.get_identity_name()) if peer is not None else "unknown"


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Any]) -> bool:
    return list(one) == list(other) and all(np.array_equal(one[n].numpy(), np.asarray(other[n])) for n in one)


def defences_of(fl_ctx: Any, kind: str, steps: object = 1) -> list[dict[str, Any]]:
    """Return the filters that a model of this kind passes on its way out of a client, with their options.

    Those that fedglass can run again have its names, all others that of their class. `steps` are the message's.
    A filter does not know its neighbours. The client's runner, which is in the context, has all of them: those of the
    job and those that the site itself adds.
    """
    protecting = (part for part in _filters(fl_ctx) if type(part).__name__ not in HARMLESS)
    return [
        nvflare_defence(part, _options(part), kind, steps)
        for part in protecting
        if type(part).__module__.partition(".")[0] != "fedglass"
        and not (isinstance(part, DXOFilter) and part.data_kinds and kind not in part.data_kinds)
    ]


def _filters(fl_ctx: Any) -> Iterator[Any]:
    """Yield filters in the order in which they act."""
    scope, runner = fl_ctx.get_prop(FLContextKey.SCOPE_OBJECT), fl_ctx.get_prop(FLContextKey.RUNNER)
    yield from (getattr(scope, SITE_FILTERS, None) or {}).get(FilterKey.OUT, [])
    task = f"{fl_ctx.get_prop(FLContextKey.TASK_NAME)}{FilterKey.DELIMITER}{FilterKey.OUT}"
    yield from (getattr(runner, SITE_FILTERS, None) or {}).get(task) or []


def _options(part: Any) -> dict[str, Any]:
    """Return the arguments of a filter, as far as it keeps them under the same names in plain values."""
    arguments = {name: getattr(part, name, None) for name in inspect.signature(type(part).__init__).parameters}
    plain = {name: value.pattern if isinstance(value, re.Pattern) else value for name, value in arguments.items()}
    return {
        name: value
        for name, value in plain.items()
        if all(isinstance(entry, PLAIN) for entry in (value if isinstance(value, list) else [value]))
    }
