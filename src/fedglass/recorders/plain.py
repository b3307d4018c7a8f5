"""Recorder for a training loop in plain PyTorch."""

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
from fedglass.recorders.canaries import ANNOUNCED, canaries_in_steps, key_for_steps, store_canaries
from fedglass.recorders.client import ClientRecorder, log_and_continue
from fedglass.recorders.hooks import TrainingReader
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
    canaries: int = 0,
) -> Iterator[ClientRecorder]:
    """Record a client's training: the model on entry is what the client was sent, the model at the end its reply.

    Its training is read off torch meanwhile. Several clients and rounds go to one folder. A block that raises leaves
    no message. A folder that cannot be written to, or that holds this message already, is refused before the training.
    After the training, a full disk or examples that cannot be kept are logged: they do not end the program.

    Args:
        truth: Whether to keep the examples too, in `<folder>-truth`.
        architecture: The model as a plan names it, if it is not the model's own class.
        whitening: Means and deviations of the pixels' normalisation, if they cannot be measured from the pixels.
        facts: Any other fact of the federation that a bundle has a name for.
        canaries: Insert so many canaries into a training with Opacus, for `fedglass epsilon`. They change the model.
            Their key is stored in `<folder>-canaries`.

    >>> import tempfile
    >>> from fedglass.recordings.reader import read_bundle
    >>> folder, model = tempfile.mkdtemp() + "/bundle", nn.Linear(2, 3)
    >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with recording(folder, model, client="a", round=1):
    ...     nn.functional.cross_entropy(model(torch.ones(4, 2)), torch.tensor([0, 1, 2, 0])).backward()
    ...     optimiser.step()
    >>> facts = read_bundle(folder).facts_of("a", 1)
    >>> facts["optimiser"], facts["steps"], facts["examples"]
    ({'read': 'SGD'}, {'read': 1}, {'read': 4})
    """
    private = Path(folder).with_name(Path(folder).name + TRUTH) if truth else None
    recorder = ClientRecorder(folder, client, truth=private, model=architecture, whitening=whitening, facts=facts)
    recorder.writer.round(round).check_new_message(client)
    key = key_for_steps(model, canaries) if canaries else None
    if key is not None:
        log.warning(ANNOUNCED, canaries, client)
    before = state_of(model)
    with recorder.reader() as reader, canaries_in_steps(model, key) as names:
        yield recorder
    # The steps that trained this model; all steps if none did, since it may have been loaded afterwards.
    weights = {id(weight) for weight in model.parameters()}
    reader.steps = [step for step in reader.steps if weights & step.weights] or reader.steps
    with tolerate_io_errors(recorder.writer):
        _write(recorder, round, before, state_of(model), reader)
        if key is not None:
            store_canaries(recorder, folder, round, key.model_copy(update={"names": names}))


@contextmanager
def tolerate_io_errors(writer: BundleWriter | None = None) -> Iterator[None]:
    """Log errors of a full or missing disk; raise the errors of a wrong call."""
    try:
        yield
    except (OSError, FedglassError) as error:
        if not isinstance(error, OSError) and not isinstance(error.__cause__, OSError):
            raise
        log.error("fedglass could not record. The training continues. %s", error)
        if writer is not None:
            writer.mark_incomplete()


def _write(
    recorder: ClientRecorder, index: int, before: dict[str, Tensor], after: dict[str, Tensor], reader: TrainingReader
) -> None:
    round_, client = recorder.writer.round(index), recorder.client
    sent = round_.state.sent
    if sent is None and _follows(recorder.writer, index, before):
        round_.sent(before)
    elif sent is None or not _equal(recorder.writer.arrays(sent), before):
        round_.sent(before, client=client)
    round_.received(client, after)
    with log_and_continue(f"could not record the training of {client!r}"):
        recorder.trained(index, reader)


def record_aggregate(folder: str | Path, model: nn.Module, *, round: int, kept: list[str] | None = None) -> None:
    """Record the global model at the end of a round, and the clients in it (`kept`) if not all of them are."""
    with tolerate_io_errors():
        BundleWriter(folder, resume=True).round(round).aggregated(state_of(model), kept=kept)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a model's weights and buffers, by the names of its architecture."""
    return {name: tensor.detach().clone() for name, tensor in unwrap(model).state_dict().items()}


def _follows(writer: BundleWriter, index: int, before: Mapping[str, Tensor]) -> bool:
    """Check that a model is the aggregate of the previous round, if that was recorded; else it is a client's own."""
    aggregate = writer.round(index - 1).state.aggregated if index else None
    if aggregate is None:
        return True
    after = writer.arrays(aggregate)
    return list(after) == list(before) and all(equal_up_to_rounding(after[name], before[name].cpu()) for name in after)


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name].cpu()) for name in one)
