"""Flower's message API: a recorder for any strategy, and a mod that reads how a client trains.

Nothing of Flower is imported: strategies, messages and mods are used as they come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedglass.core.errors import UsageError
from fedglass.recorders.client import ClientRecorder, UserFacts, folder_name, log_and_continue
from fedglass.recorders.flower_recorder import StrategyRecorder, arrays_of, name_of
from fedglass.recorders.flower_strategy import defences_of
from fedglass.recorders.hooks import TrainingReader

S = TypeVar("S")


class RecordedStrategy:
    """A mixin to the left of a strategy: `class MyStrategy(RecordedStrategy, FedAvg)`, made with `bundle="folder"`.

    Of strategies that are wrapped in others the outermost is to be recorded. It takes down what goes out and what comes
    back before the strategy touches it: wrappers for differential privacy clip in place. A recorder that can not write
    says so in the log and lets the training go on.
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
        answers = list(replies)
        self._recorder.received(server_round, answers, self)
        result = super().aggregate_train(server_round, answers)  # type: ignore[misc] # of the strategy
        self._recorder.aggregated(server_round, result[0], self)
        return result

    # The same of strategies of the older API, which secure aggregation still needs.

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[Any]:
        calls = list(super().configure_fit(server_round, parameters, client_manager))  # type: ignore[misc] # as above
        self._recorder.calling(server_round, calls, self)
        return calls

    def aggregate_fit(self, server_round: int, results: list[Any], failures: list[Any]) -> Any:
        self._recorder.fitted(server_round, results, self)
        result = super().aggregate_fit(server_round, results, failures)  # type: ignore[misc] # as above
        if result[0] is not None:
            self._recorder.aggregated(server_round, arrays_of(result[0]), self)
        return result


def recorded(
    strategy: S,
    bundle: str | Path,
    *,
    clients: str | Path | None = None,
    facts: Mapping[str, Any] | None = None,
) -> S:
    """A copy of a strategy that records to a folder: `strategy = recorded(FedAvg(), "bundle")`.

    `clients` is the folder of the clients' `recording_mod`, where it is on the same machine, as in a simulation: what
    they have read of their training is then taken over. `facts` are what a bundle tells of the whole federation and
    no message does: `model`, `classes`, `whitening`, ...
    """
    if isinstance(strategy, type) or not any(hasattr(strategy, name) for name in ("aggregate_train", "aggregate_fit")):
        raise UsageError(f"recorded() takes a strategy that was made, such as FedAvg(), got {strategy!r:.100}.")
    kind = type(strategy)
    both = type(kind.__name__, (RecordedStrategy, kind), {"__module__": __name__})
    made: S = object.__new__(both)
    vars(made).update(vars(strategy), _recorder=StrategyRecorder(bundle, clients, facts))
    return made


# A Flower client mod that reads how the client trains, and can keep its examples for its own audit.


log = logging.getLogger("fedglass")
Mod = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]
ROUND_KEYS = ("server-round", "server_round", "current_round", "round")


def recording_mod(
    folder: str | Path,
    *,
    truth: str | Path | None = None,
    model: str | None = None,
    whitening: tuple[Sequence[float], Sequence[float]] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Mod:
    """A mod for `ClientApp(mods=[recording_mod("clients"), ...])`; the first, so that it knows of those after it.

    Every client writes to a folder of its own below `folder`. `truth` is another folder, for its examples, which are
    private and stay with the client: by them an audit can say whether what an attack found is true. Give absolute
    paths: a client's process has a working directory of its own.

    `whitening` is the pixels' normalisation (means, deviations), where it can not be read off the pixels themselves.
    """
    told = UserFacts(model, whitening, {} if facts is None else facts)
    place = Path(folder)
    if not place.is_absolute():
        log.warning(
            "fedglass records to %s: give an absolute path, since every process has a folder of its own.",
            place.absolute(),
        )

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        with TrainingReader(keep_examples=truth is not None) as reader:
            reply = call_next(message, context)
        if not reply.has_error() and (reader.steps or reader.fault or _trained(message, reply)):
            with log_and_continue("this training"):
                name = name_of(reply, message.metadata.dst_node_id)
                recorder = ClientRecorder(place / folder_name(name), name, told=told, truth=truth)
                mods = list(inner_mods(call_next))
                recorder.trained(_round(message), reader, defences_of(mods, _config(message)))
        return reply

    return mod


def _trained(message: Any, reply: Any) -> bool:
    """Whether a model came back from a training, wherever that ran."""
    return str(message.metadata.message_type).partition(".")[0] == "train" and bool(reply.content.array_records)


def _config(message: Any) -> dict[str, Any]:
    return {key: value for record in message.content.config_records.values() for key, value in record.items()}


def _round(message: Any) -> int:
    """The round's number, from the message's configuration or, of older strategies, its group."""
    config = _config(message)
    for key in ROUND_KEYS:
        if isinstance(config.get(key), int):
            return int(config[key])
    return int(message.metadata.group_id) if str(message.metadata.group_id).isdecimal() else 0


def inner_mods(call_next: Any) -> Iterator[Any]:
    """The mods between this one and the client, innermost first, which is the order in which they see the reply.

    Flower's chain is made of closures; what is in none of them is not known, and not told.
    """
    cells = [cell.cell_contents for cell in getattr(call_next, "__closure__", None) or ()]
    names = getattr(getattr(call_next, "__code__", None), "co_freevars", ())
    held = dict(zip(names, cells, strict=False))
    if "_mod" in held and "_ffn" in held:
        yield from inner_mods(held["_ffn"])
        yield held["_mod"]
