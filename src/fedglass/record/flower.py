"""Flower's message API: a recorder for any strategy, and a mod that reads how a client trains.

Nothing of Flower is imported: strategies, messages and mods are used as they come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fedglass.core.errors import UsageError
from fedglass.record.flower_legacy import arrays_of
from fedglass.record.flower_recorder import StrategyRecorder

S = TypeVar("S")


class Recorded:
    """A mixin to the left of a strategy: `class MyStrategy(Recorded, FedAvg)`, made with `bundle="folder"`.

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
    both = type(kind.__name__, (Recorded, kind), {"__module__": __name__})
    made: S = object.__new__(both)
    vars(made).update(vars(strategy), _recorder=StrategyRecorder(bundle, clients, facts))
    return made
