"""Flower's message API: a recorder for any strategy, and a client mod that records how the client trains.

Nothing of Flower is imported: strategies, messages and mods are used as they come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedglass.core.errors import UsageError
from fedglass.recorders.canaries import ANNOUNCED, insert_canaries, store_canaries
from fedglass.recorders.client import ClientRecorder, folder_name, log_and_continue
from fedglass.recorders.defences import closure_variables, flower_defences
from fedglass.recorders.flower_recorder import StrategyRecorder, config_of, name_of
from fedglass.recorders.hooks import TrainingReader
from fedglass.recordings.privacy import CanaryKey

log = logging.getLogger("fedglass")
S = TypeVar("S")
Mod = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]
ROUND_KEYS = ("server-round", "server_round", "current_round", "round")


class RecordedStrategy:
    """A mixin to the left of a strategy: `class MyStrategy(RecordedStrategy, FedAvg)`, made with `bundle="folder"`.

    If strategies wrap each other, record the outermost one. It stores what goes out and what comes back before the
    strategy touches it: wrappers for differential privacy clip in place. If the recorder cannot write, it logs that
    and the training continues.
    """

    _recorder: StrategyRecorder

    def __init__(
        self,
        *args: Any,
        bundle: str | Path,
        clients: str | Path | None = None,
        facts: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._recorder = StrategyRecorder(bundle, clients, facts)

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Iterable[Any]:
        messages = list(super().configure_train(server_round, arrays, config, grid))  # type: ignore[misc] # of the strategy
        self._recorder.sending(server_round, messages, self)
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> Any:
        all_replies = list(replies)
        self._recorder.received(server_round, all_replies, self)
        result = super().aggregate_train(server_round, all_replies)  # type: ignore[misc] # of the strategy
        self._recorder.aggregated(server_round, result[0], self)
        return result

    # The same for strategies of the older API, which secure aggregation still needs.

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[Any]:
        calls = list(super().configure_fit(server_round, parameters, client_manager))  # type: ignore[misc] # as above
        self._recorder.sending_fit(server_round, calls, self)
        return calls

    def aggregate_fit(self, server_round: int, results: list[Any], failures: list[Any]) -> Any:
        self._recorder.received_fit(server_round, results, self)
        result = super().aggregate_fit(server_round, results, failures)  # type: ignore[misc] # as above
        self._recorder.aggregated(server_round, result[0], self)
        return result


def recorded(
    strategy: S,
    bundle: str | Path,
    *,
    clients: str | Path | None = None,
    facts: Mapping[str, Any] | None = None,
) -> S:
    """Return a copy of a strategy that records to a folder: `strategy = recorded(FedAvg(), "bundle")`.

    Args:
        clients: The folder of the clients' `recording_mod`, if it is on the same machine, as in a simulation. The
            recorded trainings of the clients are then copied into the bundle.
        facts: Facts of the federation that no message shows: `model`, `classes`, `whitening`, ...
    """
    if isinstance(strategy, type) or not any(hasattr(strategy, name) for name in ("aggregate_train", "aggregate_fit")):
        raise UsageError(f"recorded() expects an instance of a strategy, such as FedAvg(), got {strategy!r:.100}.")
    kind = type(strategy)
    both = type(kind.__name__, (RecordedStrategy, kind), {"__module__": __name__})
    copy: S = object.__new__(both)
    vars(copy).update(vars(strategy), _recorder=StrategyRecorder(bundle, clients, facts))
    return copy


def recording_mod(
    folder: str | Path,
    *,
    truth: str | Path | None = None,
    model: str | None = None,
    whitening: tuple[Sequence[float], Sequence[float]] | None = None,
    facts: Mapping[str, Any] | None = None,
    canaries: int = 0,
) -> Mod:
    """Return a mod for `ClientApp(mods=[recording_mod("clients"), ...])`; put it first to include later mods.

    Every client writes to a folder of its own below `folder`. Give absolute paths: each client process has its own
    working directory.

    Args:
        truth: Another folder for the client's examples. They are private and stay with the client; an audit uses them
            to score what an attack reconstructs.
        model: The architecture as a plan names it, if it is not the class that is trained.
        whitening: Means and deviations of the pixels' normalisation, if they cannot be measured from the pixels.
        facts: Any other fact of the federation that a bundle has a name for.
        canaries: Insert so many canaries into each update, before LocalDpMod clips it and adds noise, for `fedglass
            epsilon`. Next to nothing is left of the client's own update. Their keys are stored in `<folder>-canaries`.
    """
    place = Path(folder)
    CanaryKey.drawn(canaries or 1, "update")  # refuses what is not a number
    if not place.is_absolute():
        log.warning(
            "fedglass records to %s. Give an absolute path, since every process has its own working directory.",
            place.absolute(),
        )

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        defences = flower_defences(list(inner_mods(call_next)), config_of(message))
        key = CanaryKey.drawn(canaries, "update") if canaries else None

        def trained(message: Any, context: Any, call_client: Callable[[Any, Any], Any]) -> Any:
            nonlocal key
            reply = call_client(message, context)
            if key is not None and not reply.has_error() and _returns_model(message, reply):
                log.warning(ANNOUNCED, canaries, name_of(reply, message.metadata.dst_node_id))
                with log_and_continue("could not insert canaries"):
                    key = insert_canaries(key, reply, defences)
            return reply

        with TrainingReader(keep_examples=truth is not None) as reader:
            reply = (_with_innermost(call_next, trained) if canaries else call_next)(message, context)
        if not reply.has_error() and (reader.steps or reader.fault or _returns_model(message, reply)):
            with log_and_continue("could not record this training"):
                name = name_of(reply, message.metadata.dst_node_id)
                own_place = place / folder_name(name)
                recorder = ClientRecorder(own_place, name, truth=truth, model=model, whitening=whitening, facts=facts)
                recorder.trained(_round(message), reader, defences)
                if key is not None:
                    store_canaries(recorder, place, _round(message), key)
        return reply

    return mod


def _returns_model(message: Any, reply: Any) -> bool:
    """Check that the reply to a training holds a model, even if the training ran out of sight."""
    return str(message.metadata.message_type).partition(".")[0] == "train" and bool(reply.content.array_records)


def _round(message: Any) -> int:
    """Return the round's number, from the message's configuration or, with older strategies, its group."""
    config = config_of(message)
    for key in ROUND_KEYS:
        if isinstance(config.get(key), int):
            return int(config[key])
    return int(message.metadata.group_id) if str(message.metadata.group_id).isdecimal() else 0


def inner_mods(call_next: Any) -> Iterator[Any]:
    """Yield the mods between this one and the client, innermost first: the order in which they see the reply.

    Flower's chain is made of closures. A mod outside of these closures is not found.
    """
    link = _link(call_next)
    if link is not None:
        mod, inner = link
        yield from inner_mods(inner)
        yield mod


def _with_innermost(call_next: Any, innermost: Mod) -> Callable[[Any, Any], Any]:
    """Return Flower's chain with one more mod, next to the client."""
    link = _link(call_next)
    if link is None:
        return lambda message, context: innermost(message, context, call_next)
    mod, inner = link[0], _with_innermost(link[1], innermost)
    return lambda message, context: mod(message, context, inner)


def _link(call_next: Any) -> tuple[Any, Any] | None:
    """Return the next mod of Flower's chain, and what it calls; None where the chain ends."""
    variables = closure_variables(call_next)
    return (variables["_mod"], variables["_ffn"]) if "_mod" in variables and "_ffn" in variables else None
