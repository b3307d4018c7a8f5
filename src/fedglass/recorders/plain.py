"""Recorder for a loop of one's own in plain PyTorch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedglass.core.errors import FedglassError
from fedglass.models.names import unwrap
from fedglass.recorders.client import ClientRecorder, UserFacts, log_and_continue
from fedglass.recorders.hooks import TrainingReader
from fedglass.recorders.steps import ObservedStep
from fedglass.recordings import BundleWriter
from fedglass.recordings.reader import equal_up_to_rounding
from fedglass.recordings.writer import TRUTH

log = logging.getLogger("fedglass")


@contextmanager
def recording(
    folder: str | Path,
    model: nn.Module,
    *,
    client: str,
    round: int,
    truth: bool = False,
    architecture: str | None = None,
    whitening: tuple[Sequence[float], Sequence[float]] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Iterator[ClientRecorder]:
    """Record what a client makes of a model: its state on entry is what was sent, its state at the end the reply.

    How it trained is read off torch meanwhile. `truth` keeps the examples too, in `<folder>-truth`. `architecture`,
    where it is not the model's own class, is how a plan names the model; `whitening` the pixels' normalisation, where
    it can not be read off them. Several clients and rounds go to one folder; a block that raises leaves no message.
    A folder that can not be written to, or that holds this message already, is refused before the training; once that
    is done a full disk, or examples that can not be kept, are no reason to lose it, and are said in the log.

    >>> import tempfile
    >>> from fedglass.recordings.reader import read_bundle
    >>> folder, model = tempfile.mkdtemp() + "/bundle", nn.Linear(2, 3)
    >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with recording(folder, model, client="a", round=1):
    ...     nn.functional.cross_entropy(model(torch.ones(4, 2)), torch.tensor([0, 1, 2, 0])).backward()
    ...     optimiser.step()
    >>> told = read_bundle(folder).facts_of("a", 1)
    >>> told["optimiser"], told["steps"], told["examples"]
    ({'read': 'SGD'}, {'read': 1}, {'read': 4})
    """
    private = Path(folder).with_name(Path(folder).name + TRUTH) if truth else None
    recorder = ClientRecorder(folder, client, told=UserFacts(architecture, whitening, facts or {}), truth=private)
    recorder.writer.round(round).check_awaited(client)
    before = state_of(model)
    with recorder.reader() as reader:
        yield recorder
    reader.steps = _steps_of(model, reader.steps)
    with tolerate_io_errors(recorder.writer):
        _write(recorder, round, before, state_of(model), reader)


@contextmanager
def tolerate_io_errors(writer: BundleWriter | None = None) -> Iterator[None]:
    """What is wrong in a call is raised; a disk that is full or gone is said in the log."""
    try:
        yield
    except (OSError, FedglassError) as error:
        if not isinstance(error, OSError) and not isinstance(error.__cause__, OSError):
            raise
        log.error("fedglass could not record, the training goes on: %s", error)
        if writer is not None:
            writer.lost()


def _write(
    recorder: ClientRecorder, round: int, before: dict[str, Tensor], after: dict[str, Tensor], reader: TrainingReader
) -> None:
    past, client = recorder.writer.round(round), recorder.client
    sent = past.told.sent
    if sent is None and _follows(recorder.writer, round, before):
        past.sent(before)
    elif sent is None or not _equal(recorder.writer.arrays(sent), before):
        past.sent(before, client=client)
    past.received(client, after)
    with log_and_continue(f"how {client!r} trained"):
        recorder.trained(round, reader)


def _steps_of(model: nn.Module, steps: list[ObservedStep]) -> list[ObservedStep]:
    """Those that trained this model and no other one beside it; all where it was given its weights from elsewhere."""
    own = {id(weight) for weight in model.parameters()}
    return [step for step in steps if own & step.weights] or steps


def record_aggregate(folder: str | Path, model: nn.Module, *, round: int, kept: list[str] | None = None) -> None:
    """Record the global model that a round has ended with, and whose updates are in it where not all are."""
    with tolerate_io_errors():
        BundleWriter(folder, resume=True).round(round).aggregated(state_of(model), kept=kept)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of a model's weights and buffers, by the names that its architecture has for them."""
    return {name: tensor.detach().clone() for name, tensor in unwrap(model).state_dict().items()}


def _follows(writer: BundleWriter, index: int, before: Mapping[str, Tensor]) -> bool:
    """Whether a model is the one that the last round ended with, as far as that was recorded: else it is no round's."""
    last = writer.round(index - 1).told.aggregated if index else None
    if last is None:
        return True
    after = writer.arrays(last)
    return list(after) == list(before) and all(equal_up_to_rounding(after[name], before[name].cpu()) for name in after)


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name].cpu()) for name in one)
