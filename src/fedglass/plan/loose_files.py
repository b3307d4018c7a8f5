"""One recorded message in loose files: a plan names safetensors files of the model before and after a training.

Names and shapes of the tensors are compared with the model before any of them is loaded. Each file is opened once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedglass.audit.protection import defence_names
from fedglass.audit.recorded import Recorded
from fedglass.core.errors import DataError, UpdateError, UsageError
from fedglass.core.losses import grouping, is_class_labels
from fedglass.core.tensors import COUNTER, Params, buffers_of, check_update, open_tensors, subtract, weights_of
from fedglass.core.types import Whitening
from fedglass.data.dataset import Dataset
from fedglass.data.readers import read_npz
from fedglass.federation.transcript import UNKNOWN_RULE, Message, Participant, Round, Terms, Transcript, mark_untrained
from fedglass.federation.truth import Examples, Truths
from fedglass.federation.views import AggregateView, Knows, ServerView
from fedglass.fl.loss.targets import targets_from_classes
from fedglass.models.catalogue import build
from fedglass.plan.options import defences_of, public_of
from fedglass.plan.schema import AdversaryTable
from fedglass.plan.tables import PartTable, RecordingTable
from fedglass.recordings.saved_transcripts import defence_text
from fedglass.recordings.transcript import moved_below_precision, needed_buffers

DEFENDED = ("Defended, as the plan says.",)


def read_model_tensors(
    field: str, path: Path, like: Params, optional: Collection[str] = ()
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Read the tensors of a file that have the names and shapes of `like`; those in `optional` may be left out.

    Return them in the file's own types, and in single precision; `field` is the key of the plan that names the file.
    """
    with _opened(field, path) as file:
        shapes = _shapes(file)
        _check_layout(field, path, shapes, like, optional)
        stored = {name: file.get_tensor(name) for name in like if name in shapes}
    return stored, {name: _as_single(f"{field}: {path}: {name!r}", name, tensor) for name, tensor in stored.items()}


def _as_single(where: str, name: str, tensor: Tensor) -> Tensor:
    """Return a tensor in single precision, but a counter as it is; refuse what is not a finite float."""
    if name.endswith(COUNTER):
        return tensor
    if not tensor.is_floating_point():
        raise UpdateError(f"{where} must hold floats, got {tensor.dtype}.")
    single = tensor.float()
    if not torch.isfinite(single).all():
        raise UpdateError(
            f"{where} holds NaN or infinity: the client's training diverged or the file is damaged. Lower the client's "
            "learning rate or record it again."
        )
    return single


def _shapes(file: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(file.get_slice(name).get_shape()) for name in sorted(file.keys())}


@contextmanager
def _opened(field: str, path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise DataError(f"{field}: no such file: {path}.")
    try:
        with open_tensors(path) as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"{field}: {path} cannot be read as safetensors ({error}): it is truncated, corrupt or of another "
            "format. Save it again with safetensors.torch.save_file."
        ) from error


def _check_layout(
    field: str, path: Path, shapes: Mapping[str, tuple[int, ...]], like: Params, optional: Collection[str]
) -> None:
    missing = [name for name in like if name not in shapes and name not in optional and not name.endswith(COUNTER)]
    extra = [name for name in shapes if name not in like]
    if missing or extra:
        lists = {"lacks": missing, "has the unknown": extra}
        problems = [f"{verb} {names[0]!r} ({len(names)} in all)" for verb, names in lists.items() if names]
        raise UpdateError(
            f"{field}: {path} does not fit the model: it {' and '.join(problems)}. Expected its {len(like)} tensor "
            "names: check that recording.model is the architecture that was trained."
        )
    for name, shape in shapes.items():
        if shape != tuple(like[name].shape):
            raise UpdateError(
                f"{field}: {path} does not fit the model: {name!r} has shape {shape}, expected "
                f"{tuple(like[name].shape)}: check recording.model, recording.classes and the images' shape."
            )


def recorded_message(table: RecordingTable, adversary: AdversaryTable, folder: Path) -> Recorded:
    """Return the message in the files as a transcript of one round, with the truth if the plan names it."""
    _check_adversary(table, adversary)
    data, shape = _truth(table, folder)
    single = table.training is not None and table.training.loss is not None
    model = build(table.model, shape=shape, classes=table.classes, single_output=single)
    stored, before, buffers = _read_state("before", table.before, folder, model)
    if table.buffers is not None:
        buffers |= _read_buffers("buffers", table.buffers, folder, model)
    missing = [name for name in needed_buffers(model) if name not in buffers]
    if missing:
        raise UpdateError(
            f"recording.buffers is missing: the model has running statistics such as {missing[0]!r}, expected them in "
            "recording.before or in a file of their own: save the model's whole state_dict."
        )
    update, buffers_after = _update(table, folder, model, before, stored)
    participants = _participants(table, data)
    names = tuple(p.name for p in participants)
    alone = len(names) == 1
    messages = (Message(names[0], update, buffers_after),) if alone else ()
    round_ = Round(before, buffers, participants, messages, update, buffers_after, names)
    round_ = round_ if table.defended else mark_untrained(round_, names)
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
        Transcript(model, terms, {0: round_}),
        truths,
        (view,),
        knows_of(adversary),
        table.name or "recording",
        public_of(adversary, shape, folder),
        dict.fromkeys(names, defences_of(table.defended)) if isinstance(table.defended, list) else {},
        sizes_assumed=len({p.examples for p in participants}) > 1,
    )


def defence_texts(defended: bool | list[PartTable]) -> tuple[str, ...]:
    """Return the sentences about what protects a client, from the plan's key `defended`."""
    if isinstance(defended, list):
        return tuple(defence_text(name) for name in defence_names(defences_of(defended)))
    return DEFENDED if defended else ()


def check_recording(table: RecordingTable, adversary: AdversaryTable, folder: Path) -> None:
    """Refuse what is wrong with a recording whatever its model may be."""
    _check_adversary(table, adversary)
    data, shape = _truth(table, folder)
    _whitening(table, shape)
    _participants(table, data)
    for name in ("before", "after", "update", "buffers", "buffers_after"):
        path = getattr(table, name)
        if path is not None:
            with _opened(f"recording.{name}", _path(path, folder)) as file:
                _shapes(file)


def knows_of(adversary: AdversaryTable) -> Knows:
    """Return the optional facts that a plan gives the adversary."""
    return Knows(**{field.name: getattr(adversary, f"knows_{field.name}") for field in fields(Knows)})


def _participants(table: RecordingTable, data: Dataset | None) -> tuple[Participant, ...]:
    """Return the clients behind the message; those of an aggregate share the examples as evenly as possible."""
    examples = table.examples if data is None else len(data)
    assert examples is not None, "the plan's validation demands it"
    if table.clients > examples:
        raise UsageError(
            f"recording.clients must be at most the number of examples behind the message, {examples}, got "
            f"{table.clients}: correct one of them."
        )
    training = None if table.training is None else table.training.value()
    least, larger = divmod(examples, table.clients)
    names = ["recorded"] if table.clients == 1 else [f"recorded client {i}" for i in range(table.clients)]
    return tuple(
        Participant(name, least + (i < larger), training, table.lr, table.steps) for i, name in enumerate(names)
    )


def _truths(participants: tuple[Participant, ...], data: Dataset) -> Truths:
    """Return the examples of each client, in the order of the file.

    If clients have unequally many, it is unknown which example belongs to which client. They are then dealt out by
    label, so that the assignment reveals no more than that.
    """
    sizes = [p.examples for p in participants]
    even = len(set(sizes)) == 1
    order = torch.arange(len(data)) if even else grouping(data.labels).argsort(stable=True)
    images, labels = torch.split(data.images[order], sizes), torch.split(data.labels[order], sizes)
    names = [p.name for p in participants]
    return Truths({name: Examples(*pair) for name, pair in zip(names, zip(images, labels, strict=True), strict=True)})


def _check_adversary(table: RecordingTable, adversary: AdversaryTable) -> None:
    if adversary.knows_labels and table.truth is None:
        raise UsageError("adversary.knows_labels needs recording.truth, from which the labels would come.")
    if adversary.knows_batch_labels:
        raise UsageError("adversary.knows_batch_labels needs a simulated federation: a recording has no batches.")


def _whitening(table: RecordingTable, shape: tuple[int, int, int]) -> Whitening:
    whitening = table.whitening.value()
    if len(whitening.mean) != shape[0]:
        raise UsageError(
            f"recording.whitening must have one mean per channel, expected {shape[0]}, got {len(whitening.mean)}."
        )
    return whitening


def _path(text: str, folder: Path) -> Path:
    return folder / Path(text).expanduser()


def _truth(table: RecordingTable, folder: Path) -> tuple[Dataset | None, tuple[int, int, int]]:
    """Return the examples behind the message, if the plan names them, and the shape of one."""
    if table.truth is None:
        assert table.shape is not None, "the plan's validation demands it"
        channels, height, width = table.shape
        return None, (channels, height, width)
    path = _path(table.truth, folder)
    data = read_npz(path)
    if table.shape is not None and tuple(table.shape) != data.shape:
        raise DataError(
            f"recording.truth {path}: expected images of shape {tuple(table.shape)} as recording.shape says, "
            f"got {data.shape}: correct one of them."
        )
    if not is_class_labels(data.labels):
        if data.labels.is_floating_point() and data.labels.shape[1] != table.classes:
            raise DataError(
                f"recording.truth {path}: expected {table.classes} numbers as the target of an image, as many as "
                f"recording.classes, got {data.labels.shape[1]}: correct one of them."
            )
    elif int(data.labels.max()) >= table.classes:
        raise DataError(
            f"recording.truth {path}: labels must lie in 0 to {table.classes - 1}, got "
            f"{int(data.labels.max())}: correct the labels or raise recording.classes."
        )
    if table.examples is not None and table.examples != len(data):
        raise DataError(
            f"recording.examples is {table.examples}, but recording.truth {path} holds {len(data)} images: "
            "give all images behind the message, or leave recording.examples out."
        )
    loss = None if table.training is None else table.training.value().loss
    if loss is None:
        return data, data.shape
    targets = targets_from_classes(loss, data.labels, table.classes)
    return replace(data, labels=targets, classes=table.classes, class_names=None), data.shape


def _update(
    table: RecordingTable, folder: Path, model: nn.Module, before: Params, stored_before: Params
) -> tuple[Params, Params]:
    """Return the update, and the running statistics after it if there are any."""
    buffers_after: dict[str, Tensor] = {}
    if table.update is not None:
        field, path = "update", _path(table.update, folder)
        stored, update = read_model_tensors("recording.update", path, weights_of(model))
        lost = moved_below_precision(update, stored, None)
    else:
        assert table.after is not None, "the plan's validation demands it"
        field, path = "after", _path(table.after, folder)
        stored, after, buffers_after = _read_state(field, table.after, folder, model)
        update = subtract(after, before)
        # A mean of several clients rounds.
        lost = moved_below_precision(update, stored, stored_before) if table.clients == 1 else None
    if lost is not None:
        raise UpdateError(
            f"recording.{field}: {path}: {lost!r} moved by less than a weight in single precision can hold: give the "
            "difference as recording.update, or the weights as the model had them."
        )
    check_update(update, before)
    if not any(bool(tensor.any()) for tensor in update.values()):
        problem = "is the same as recording.before" if field == "after" else "is zero"
        raise UpdateError(
            f"recording.{field} {problem} in every entry, expected what a client's training changed: check that it "
            "trained, and that the weights before and after were not mixed up."
        )
    if table.buffers_after is not None:
        buffers_after |= _read_buffers("buffers_after", table.buffers_after, folder, model)
    return update, buffers_after


def _read_state(
    key: str, file: str, folder: Path, model: nn.Module
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Return what a file stores, its parameters in single precision, and its buffers if there are any."""
    weights, buffers = weights_of(model), buffers_of(model)
    state = {**weights, **buffers}
    stored, single = read_model_tensors(f"recording.{key}", _path(file, folder), state, optional=buffers)
    return stored, {name: single[name] for name in weights}, {name: single[name] for name in buffers if name in single}


def _read_buffers(key: str, file: str, folder: Path, model: nn.Module) -> dict[str, Tensor]:
    return read_model_tensors(f"recording.{key}", _path(file, folder), buffers_of(model))[1]
