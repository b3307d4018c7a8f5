"""The private side of a recording on disk: examples by client, in files that only their owner can read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from fedglass.core.errors import DataError
from fedglass.core.files import make_folder, write_atomic
from fedglass.core.losses import is_class_labels, is_target
from fedglass.federation.truth import Examples, Truths
from fedglass.recordings.format import as_tensors
from fedglass.recordings.reader import first_problem
from fedglass.recordings.saved_transcripts import LONGEST, SEPARATOR, SavedFile, read_saved_bytes, read_saved_tensors

FORMAT = 1
TENSORS, FACTS = "truth.safetensors", "truth.json"


def save_truths(truths: Truths, directory: Path) -> None:
    """Write the images and labels of each client into one folder, and by round what it trained on."""
    make_folder(directory)
    tensors = {
        f"{i}{SEPARATOR}{kind}": tensor.contiguous()
        for i, examples in enumerate(truths.examples.values())
        for kind, tensor in (("images", examples.images), ("labels", examples.labels))
    }
    data = save(tensors)
    facts = {
        "format": FORMAT,
        "clients": list(truths.examples),
        "sha256": hashlib.sha256(data).hexdigest(),
        "batch_labels": _entries(truths.batch_labels, "batches"),
        "taken": _entries(truths.taken, "rows"),
    }
    if truths.order:
        facts["order"] = _entries(truths.order, "batches")
    write_atomic(directory / TENSORS, data)
    write_atomic(directory / FACTS, json.dumps(facts) + "\n")


def _entries(values: Mapping[tuple[int, str], Any], name: str) -> list[dict[str, Any]]:
    return [{"round": index, "client": client, name: value} for (index, client), value in values.items()]


def write_client_truth(
    folder: Path, client: str, examples: tuple[Tensor, Tensor], batches: Mapping[int, Sequence[Sequence[int]]]
) -> None:
    """Write one client's images and labels, and by round the rows of them that each local step took."""
    images, labels = examples
    count, order, batch_labels, taken = len(labels), {}, {}, {}
    for index, steps in batches.items():
        rows = tuple(tuple(int(row) for row in batch) for batch in steps)
        used = sorted({row for batch in rows for row in batch})
        if not used or not all(rows) or used[0] < 0 or used[-1] >= count:
            raise DataError(
                f"The batches of {client!r} in round {index} must be rows of its {count} examples, none of them empty."
            )
        order[index, client] = rows
        if is_class_labels(labels):
            batch_labels[index, client] = tuple(tuple(int(labels[row]) for row in batch) for batch in rows)
        if len(used) < count:
            taken[index, client] = tuple(used)
    save_truths(Truths({client: Examples(images, labels)}, batch_labels, taken, order), folder)


def check_examples(client: str, images: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Return a client's examples as they are written: pixels in [0, 1] and whole labels; refuse anything else.

    Targets of other losses may be floats (n, ...), or classes of pixels (n, h, w).
    """
    tensors = as_tensors({"images": images, "labels": labels})
    pixels, classes = tensors["images"], tensors["labels"]
    pixels = pixels.float() / 255 if pixels.dtype is torch.uint8 else pixels.float()
    classes = classes if classes.is_floating_point() else classes.long()
    same_length = pixels.dim() == 4 and classes.dim() >= 1 and len(pixels) == len(classes) > 0
    if not same_length or not (is_class_labels(classes) or is_target(classes)):
        raise DataError(
            f"The examples of {client!r} must be images (n, c, h, w) and as many whole labels, got "
            f"{tuple(pixels.shape)} and {tuple(classes.shape)} of {classes.dtype}."
        )
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= 0 and high <= 1):
        raise DataError(
            f"The images of {client!r} must be pixels in [0, 1] or bytes, got {low:.3g} to {high:.3g}: give them as "
            "they were before they were normalised."
        )
    return pixels, classes.float() if classes.is_floating_point() else classes


def load_truths(directory: Path) -> Truths:
    """Read the truths of one folder."""
    path = directory / FACTS
    try:
        facts = json.loads(read_saved_bytes(path, LONGEST))
        tensors = read_saved_tensors(directory, SavedFile(file=TENSORS, sha256=facts["sha256"]))
        examples = {
            str(name): Examples(tensors[f"{i}{SEPARATOR}images"], tensors[f"{i}{SEPARATOR}labels"])
            for i, name in enumerate(facts["clients"])
        }
        batch_labels = {_key(entry): _batches(entry) for entry in facts["batch_labels"]}
        taken = {_key(entry): tuple(map(int, entry["rows"])) for entry in facts.get("taken", [])}
        order = {_key(entry): _batches(entry) for entry in facts.get("order", [])}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} is not a sidecar of truths ({first_problem(error)}): save the truths again."
        ) from error
    counts = {client: len(shown.labels) for client, shown in examples.items()}
    for (_, client), rows in taken.items():
        count = counts.get(client, 0)
        if not rows or not all(0 <= row < count for row in rows):
            raise DataError(f"{path}: rows of {client!r} must lie in its {count} examples: save the truths again.")
    for (index, client), batches in order.items():
        allowed = set(taken.get((index, client), range(counts.get(client, 0))))
        if not batches or not all(batch and allowed.issuperset(batch) for batch in batches):
            raise DataError(f"{path}: batches of {client!r} must be rows that it trained on: save the truths again.")
    return Truths(examples, batch_labels, taken, order)


def _key(entry: Mapping[str, Any]) -> tuple[int, str]:
    return int(entry["round"]), str(entry["client"])


def _batches(entry: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(number) for number in batch) for batch in entry["batches"])


MOST_TRUTHS = 10_000
"""Clients that can have a truth of their own in a folder."""


def read_truths(folder: Path, clients: Collection[str]) -> Truths:
    """Read all truths of a folder, or of the folders in it, of these clients of a recording."""
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not a folder, expected one of truths: let the clients write theirs, or leave it out."
        )
    try:
        # Each folder is asked by itself: a pattern would skip what may not be read.
        inner = [] if (folder / FACTS).exists() else sorted(folder.iterdir())[: MOST_TRUTHS + 1]
        places = [place for place in inner or [folder] if (place / FACTS).exists()]
    except OSError as error:
        raise DataError(
            f"Cannot read {error.filename}: {error.strerror}; only the client that wrote it may, and scores its own "
            "audit: leave it out, or ask for a copy."
        ) from error
    if not places or len(places) > MOST_TRUTHS:
        raise DataError(
            f"{folder} holds {len(places)} truths, expected 1 to {MOST_TRUTHS}: name the folder of a recording."
        )
    truths = [load_truths(place) for place in places]
    names = [name for truth in truths for name in truth.examples]
    wrong = next((name for name in names if name not in clients or names.count(name) > 1), None)
    if wrong is not None:
        raise DataError(
            f"{folder}: the truth of {wrong!r} is there twice, or it is not one of the recorded clients "
            f"({', '.join(sorted(clients)[:5])}): name the truths of this recording."
        )
    return Truths(
        {name: examples for truth in truths for name, examples in truth.examples.items()},
        {key: labels for truth in truths for key, labels in truth.batch_labels.items()},
        {key: rows for truth in truths for key, rows in truth.taken.items()},
        {key: rows for truth in truths for key, rows in truth.order.items()},
    )
