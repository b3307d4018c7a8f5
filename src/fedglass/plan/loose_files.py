"""Tensors that a plan names by file: safetensors, of which names and shapes are checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedglass.audit.protection import defence_names
from fedglass.audit.recorded import Recorded
from fedglass.core.errors import DataError, UpdateError, UsageError
from fedglass.core.tensors import COUNTER, Params, buffers_of, check_update, open_tensors, subtract, weights_of
from fedglass.core.types import Whitening
from fedglass.data.dataset import Dataset
from fedglass.data.npz import read_npz
from fedglass.federation.transcript import UNKNOWN_RULE, Message, Participant, Round, Terms, Transcript, mark_untrained
from fedglass.federation.truth import Examples, Truths
from fedglass.federation.views import AggregateView, Knows, ServerView
from fedglass.models.catalogue import build
from fedglass.models.fixed import exceeds_precision
from fedglass.plan.options import defences_of, public_of
from fedglass.plan.recording_tables import RecordingTable
from fedglass.plan.schema import AdversaryTable
from fedglass.plan.tables import DefenceTable
from fedglass.recordings.texts import defence_text


def read_model_tensors(
    field: str, path: Path, like: Params, optional: set[str] | frozenset[str] = frozenset()
) -> dict[str, Tensor]:
    """The named tensors of a file; names and shapes are compared before anything is loaded."""
    shapes = shapes_of(field, path)
    _check_names(field, path, shapes, like, optional)
    with _readable(field, path), open_tensors(path) as file:
        tensors = {name: file.get_tensor(name) for name in like if name in shapes}
    return {name: _sound(field, path, name, tensor) for name, tensor in tensors.items()}


def check_not_lost(field: str, path: Path, update: Params, before: Path | None = None) -> None:
    """Refuse what moved in the file's own precision alone: read in single it would count as not trained."""
    still = [name for name, tensor in update.items() if not bool(tensor.any())]
    with _readable(field, path), open_tensors(path) as file:
        for name in still:
            own = file.get_tensor(name)
            if bool(own.any()) if before is None else exceeds_precision(own, torch.float32, _raw(field, before, name)):
                raise UpdateError(
                    f"{field}: {path}: {name!r} moved by less than a weight in single precision can hold: give the "
                    "difference as recording.update, or the weights as the model had them."
                )


def _raw(field: str, path: Path, name: str) -> Tensor:
    with _readable(field, path), open_tensors(path) as file:
        tensor: Tensor = file.get_tensor(name)
        return tensor


def shapes_of(field: str, path: Path) -> dict[str, tuple[int, ...]]:
    """The names in a file and their shapes."""
    if not path.is_file():
        raise DataError(f"{field}: no such file: {path}.")
    with _readable(field, path), open_tensors(path) as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in sorted(file.keys())}


@contextmanager
def _readable(field: str, path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"{field}: {path} can not be read as safetensors ({error}): it is truncated, corrupt or of another "
            "format. Save it again with safetensors.torch.save_file."
        ) from error


def _check_names(
    field: str, path: Path, shapes: Mapping[str, tuple[int, ...]], like: Params, optional: set[str] | frozenset[str]
) -> None:
    missing = [name for name in like if name not in shapes and name not in optional and not name.endswith(COUNTER)]
    extra = [name for name in shapes if name not in like]
    if missing or extra:
        lists = {"lacks": missing, "has the unknown": extra}
        said = [f"{verb} {names[0]!r} ({len(names)} in all)" for verb, names in lists.items() if names]
        raise UpdateError(
            f"{field}: {path} does not fit the model: it {' and '.join(said)}. Expected its {len(like)} tensor "
            "names: check that recording.model is the architecture that was trained."
        )
    for name, shape in shapes.items():
        if shape != tuple(like[name].shape):
            raise UpdateError(
                f"{field}: {path} does not fit the model: {name!r} has shape {shape}, expected "
                f"{tuple(like[name].shape)}: check recording.model, recording.classes and the images' shape."
            )


def _sound(field: str, path: Path, name: str, tensor: Tensor) -> Tensor:
    if name.endswith(COUNTER):
        return tensor
    if not tensor.is_floating_point():
        raise UpdateError(f"{field}: {path}: {name!r} must hold floats, got {tensor.dtype}.")
    single = tensor.float()
    if not torch.isfinite(single).all():
        raise UpdateError(
            f"{field}: {path}: {name!r} holds NaN or infinity: the client's training diverged or the file is "
            "damaged. Lower the client's learning rate or record it again."
        )
    return single


# Messages that a real federation has sent, read from safetensors files and checked against the model.


DEFENDED = ("Defended, as the plan says.",)


def recorded_message(table: RecordingTable, adversary: AdversaryTable, folder: Path) -> Recorded:
    """The round that the files hold, as a transcript of one round, and the truth where it was given."""
    _check_adversary(table, adversary)
    data = None if table.truth is None else _truth(table, _path(table.truth, folder))
    shape = data.shape if data is not None else _shape(table)
    model = build(table.model, shape=shape, classes=table.classes)
    before, buffers = _weights("recording.before", _path(table.before, folder), model)
    if table.buffers is not None:
        buffers |= read_model_tensors("recording.buffers", _path(table.buffers, folder), buffers_of(model))
    _check_buffers(model, buffers)
    update, buffers_after = _update(table, folder, model, before)
    participants = _participants(table, data)
    names = tuple(p.name for p in participants)
    alone = len(names) == 1
    messages = (Message(names[0], update, buffers_after),) if alone else ()
    past = Round(before, buffers, participants, messages, update, buffers_after, names)
    past = past if table.defended else mark_untrained(past, names)
    terms = Terms(
        shape,
        table.classes,
        _whitening(table, shape),
        names,
        UNKNOWN_RULE,
        class_names=None if data is None else data.class_names,
        defences=None if table.defended is None else dict.fromkeys(names, defence_texts(table.defended)),
    )
    view = ServerView() if alone else AggregateView()
    truths = None if data is None else _truths(participants, data)
    return Recorded(
        Transcript(model, terms, {0: past}),
        truths,
        (view,),
        knows_of(adversary),
        table.name or "recording",
        public_of(adversary, shape, folder),
        dict.fromkeys(names, defences_of(table.defended)) if isinstance(table.defended, list) else {},
        dealt=len({p.examples for p in participants}) > 1,
    )


def defence_texts(said: bool | list[DefenceTable]) -> tuple[str, ...]:
    """What protects a client, in words."""
    if isinstance(said, list):
        return tuple(defence_text(part) for part in defence_names(defences_of(said)))
    return DEFENDED if said else ()


def check_recording(table: RecordingTable, adversary: AdversaryTable, folder: Path) -> None:
    """Refuse what is wrong with a recording whatever its model may be."""
    _check_adversary(table, adversary)
    data = None if table.truth is None else _truth(table, _path(table.truth, folder))
    _whitening(table, data.shape if data is not None else _shape(table))
    _participants(table, data)
    for name in ("before", "after", "update", "buffers", "buffers_after"):
        text = getattr(table, name)
        if text is not None:
            shapes_of(f"recording.{name}", _path(text, folder))


def knows_of(adversary: AdversaryTable) -> Knows:
    """The optional facts that a plan gives the adversary."""
    return Knows(
        training=adversary.knows_training,
        steps=adversary.knows_steps,
        labels=adversary.knows_labels,
        batch_labels=adversary.knows_batch_labels,
        lr=adversary.knows_lr,
        examples=adversary.knows_examples,
        kept=adversary.knows_kept,
    )


def _participants(table: RecordingTable, data: Dataset | None) -> tuple[Participant, ...]:
    """The clients behind the message; of an aggregate they are taken to have equally many examples, or nearly so."""
    examples = table.examples if data is None else len(data)
    assert examples is not None, "the plan's validation demands it"
    if table.clients > examples:
        raise UsageError(
            f"recording.clients must be at most the number of examples behind the message, {examples}, got "
            f"{table.clients}: correct one of them."
        )
    training = None if table.training is None else table.training.value()
    each, more = divmod(examples, table.clients)
    names = ["recorded"] if table.clients == 1 else [f"recorded client {i}" for i in range(table.clients)]
    return tuple(Participant(name, each + (i < more), training, table.lr, table.steps) for i, name in enumerate(names))


def _truths(participants: tuple[Participant, ...], data: Dataset) -> Truths:
    """The data dealt out to the clients in the order of the file.

    Where they do not come out even, whose is whose can not be told: dealt out by label, they tell no more than that.
    """
    sizes = [p.examples for p in participants]
    even = len(set(sizes)) == 1
    order = torch.arange(len(data)) if even else data.labels.argsort(stable=True)
    images, labels = torch.split(data.images[order], sizes), torch.split(data.labels[order], sizes)
    parts = zip(participants, images, labels, strict=True)
    return Truths({p.name: Examples(own, told) for p, own, told in parts})


def _check_adversary(table: RecordingTable, adversary: AdversaryTable) -> None:
    if adversary.knows_labels and table.truth is None:
        raise UsageError("adversary.knows_labels needs recording.truth, from which the labels would come.")
    if adversary.knows_batch_labels:
        raise UsageError("adversary.knows_batch_labels needs a simulated federation: a recording has no batches.")


def _whitening(table: RecordingTable, shape: tuple[int, int, int]) -> Whitening:
    found = table.whitening.value()
    if len(found.mean) != shape[0]:
        raise UsageError(
            f"recording.whitening must have one mean per channel, expected {shape[0]}, got {len(found.mean)}."
        )
    return found


def _path(text: str, folder: Path) -> Path:
    return folder / Path(text).expanduser()


def _shape(table: RecordingTable) -> tuple[int, int, int]:
    assert table.shape is not None, "the plan's validation demands it"
    channels, height, width = table.shape
    return channels, height, width


def _truth(table: RecordingTable, path: Path) -> Dataset:
    data = read_npz(path)
    if table.shape is not None and tuple(table.shape) != data.shape:
        raise DataError(
            f"recording.truth {path}: expected images of shape {tuple(table.shape)} as recording.shape says, "
            f"got {data.shape}: correct one of them."
        )
    if int(data.labels.max()) >= table.classes:
        raise DataError(
            f"recording.truth {path}: labels must lie in 0 to {table.classes - 1}, got "
            f"{int(data.labels.max())}: correct the labels or raise recording.classes."
        )
    if table.examples is not None and table.examples != len(data):
        raise DataError(
            f"recording.examples is {table.examples}, but recording.truth {path} holds {len(data)} images: "
            "give all images behind the message, or leave recording.examples out."
        )
    return data


def _update(table: RecordingTable, folder: Path, model: nn.Module, before: Params) -> tuple[Params, Params]:
    """The update, and the running statistics after it as far as there are any."""
    buffers_after: dict[str, Tensor] = {}
    if table.update is not None:
        path = _path(table.update, folder)
        update = read_model_tensors("recording.update", path, weights_of(model))
        check_not_lost("recording.update", path, update)
    else:
        assert table.after is not None, "the plan's validation demands it"
        path = _path(table.after, folder)
        after, buffers_after = _weights("recording.after", path, model)
        update = subtract(after, before)
        if table.clients == 1:  # a mean rounds
            check_not_lost("recording.after", path, update, _path(table.before, folder))
    check_update(update, before)
    if not any(bool(tensor.any()) for tensor in update.values()):
        field = (
            "recording.after is the same as recording.before" if table.update is None else "recording.update is zero"
        )
        raise UpdateError(
            f"{field} in every entry, expected what a client's training changed: check that it trained, and that "
            "the weights before and after were not mixed up."
        )
    if table.buffers_after is not None:
        held = read_model_tensors("recording.buffers_after", _path(table.buffers_after, folder), buffers_of(model))
        buffers_after = {**buffers_after, **held}
    return update, buffers_after


def _weights(field: str, path: Path, model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and, where the file has them, buffers."""
    parameters, buffers = weights_of(model), buffers_of(model)
    held = read_model_tensors(field, path, {**parameters, **buffers}, optional=set(buffers))
    return (
        {name: held[name] for name in parameters},
        {name: held[name] for name in buffers if name in held},
    )


def _check_buffers(model: nn.Module, buffers: Mapping[str, Tensor]) -> None:
    needed = [n for n, b in buffers_of(model).items() if b.is_floating_point() and n in model.state_dict()]
    lacking = [name for name in needed if name not in buffers]
    if lacking:
        raise UpdateError(
            f"recording.buffers is missing: the model has running statistics such as {lacking[0]!r}, expected "
            "them in recording.before or in a file of their own: save the model's whole state_dict."
        )
