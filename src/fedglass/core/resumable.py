"""The trainer of every network that fedglass trains: its loop, its progress, and the file that it resumes from.

A step may depend on the seed and its own number alone. A training that was stopped then continues from its state file
as if it had never been stopped.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from fedglass.core.errors import AuditError, DataError, UsageError
from fedglass.core.files import make_folder, write_atomic
from fedglass.core.tensors import open_tensors

STATE = "training.safetensors"
"""The file in the folder of a training from which it resumes."""


TrainingProgress = Callable[[int, float, float], None]
"""Called after each step with its number, the share of the training that is done, in [0, 1], and the loss."""


class Resumable(Protocol):
    """A training as the loop sees it: how far it is, and how it goes on."""

    step: int
    seconds: float

    def share(self) -> float:
        """Return how much of the training is done, in [0, 1]; 1 ends it."""
        ...

    def advance(self) -> float:
        """Take the next step, and return the loss before it."""
        ...

    def is_due(self, unsaved: float) -> bool:
        """Return whether to save after this step, `unsaved` seconds after the last time."""
        ...

    def save(self) -> None:
        """Write what the training has reached, and its state to resume from."""
        ...


def run_training(training: Resumable, progress: TrainingProgress | None) -> None:
    """Train on until the share of the training that is done is 1."""
    begun, saved = time.monotonic() - training.seconds, training.seconds
    while training.share() < 1:
        loss = training.advance()
        training.step += 1
        training.seconds = time.monotonic() - begun
        if progress is not None:
            progress(training.step, training.share(), loss)
        if training.is_due(training.seconds - saved):
            training.save()
            saved = training.seconds


def finite_loss(loss: Tensor, step: int) -> float:
    """Return the loss as a number; one that is not finite ends the training."""
    value = float(loss.detach())
    if not math.isfinite(value):
        raise AuditError(
            f"The training diverged at step {step} (loss {value}): lower --lr, and choose another directory."
        )
    return value


def write_state(folder: Path, tensors: Mapping[str, Tensor], identity: str, facts: Mapping[str, Any]) -> None:
    """Write all that the next step depends on; `identity` names the data, the network and the options."""
    # safetensors refuses tensors that share memory.
    stored = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    make_folder(folder)
    write_atomic(folder / STATE, save(stored, {"identity": identity, "way": json.dumps(facts)}))


def resume(folder: Path, identity: str, restore: Callable[[dict[str, Tensor], dict[str, Any]], None]) -> None:
    """Give the tensors and the facts of the folder's state file to `restore`; do nothing where there is none.

    The state of another training is refused.
    """
    path = folder / STATE
    if not path.is_file():
        return
    try:
        with open_tensors(path) as file:
            metadata = file.metadata() or {}
            if metadata.get("identity") != identity:
                raise UsageError(
                    f"{folder} holds another training (other data, model, size or options): choose another folder with "
                    "-o, or repeat the options that it was started with."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        restore(tensors, json.loads(metadata["way"]))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise DataError(f"{path} cannot be read ({error}): it is damaged, delete it to start over.") from error


@contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """Turn a failure to write into one sentence."""
    try:
        yield
    except OSError as error:
        raise AuditError(
            f"Cannot write into {folder}: {error.strerror}; make room or fix permissions, then run the same "
            "command again: it continues where it stopped."
        ) from error
