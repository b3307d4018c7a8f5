"""The private side of a recording on disk: examples by client, in files that only their owner can read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from fedglass.core.errors import DataError
from fedglass.core.files import make_folder, parse_json, write_atomic
from fedglass.core.losses import is_class_labels, is_target
from fedglass.core.types import MOST_PIXELS
from fedglass.federation.truth import Examples, Truths
from fedglass.recordings.format import Index, Sha256, as_tensors, to_safetensors
from fedglass.recordings.reader import first_problem
from fedglass.recordings.saved_transcripts import (
    LONGEST,
    SEPARATOR,
    SavedFile,
    Text,
    read_saved_bytes,
    read_saved_tensors,
)

FORMAT: Literal[1] = 1
TENSORS, FACTS = "truth.safetensors", "truth.json"
MOST_TRUTH_BYTES = 4 * MOST_PIXELS + LONGEST
"""Of the tensors: no attack can handle more images."""

Rows = Annotated[tuple[int, ...], Field(min_length=1)]


class RoundRows(BaseModel, frozen=True, extra="forbid"):
    """The rows of its examples that a client trained on in a round."""

    round: Index
    client: Text
    rows: Rows


class RoundBatches(BaseModel, frozen=True, extra="forbid"):
    """The rows, or the labels, of each local step of a client in a round."""

    round: Index
    client: Text
    batches: Annotated[tuple[Rows, ...], Field(min_length=1)]


class TruthFacts(BaseModel, frozen=True, extra="forbid"):
    """`truth.json`."""

    format: Literal[1] = FORMAT
    clients: Annotated[list[Text], Field(min_length=1, max_length=100_000)]
    """In the order of their tensors."""
    sha256: Sha256
    batch_labels: list[RoundBatches]
    taken: list[RoundRows] = []
    order: list[RoundBatches] = []


def save_truths(truths: Truths, directory: Path) -> None:
    """Write the images and labels of each client into one folder, and by round what it trained on."""
    make_folder(directory)
    tensors = {
        f"{i}{SEPARATOR}{kind}": tensor
        for i, examples in enumerate(truths.examples.values())
        for kind, tensor in (("images", examples.images), ("labels", examples.labels))
    }
    data, digest = to_safetensors(tensors)
    facts = {
        "format": FORMAT,
        "clients": list(truths.examples),
        "sha256": digest,
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
    data, order = Examples(*examples), {}
    for index, steps in batches.items():
        rows = order[index, client] = tuple(tuple(int(row) for row in batch) for batch in steps)
        used = {row for batch in rows for row in batch}
        if not used or not all(rows) or min(used) < 0 or max(used) >= len(data.labels):
            raise DataError(
                f"The batches of {client!r} in round {index} must be rows of its {len(data.labels)} examples, none of "
                "them empty."
            )
    save_truths(Truths.of_batches({client: data}, order), folder)


def check_examples(client: str, images: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """Return a client's examples as they are written: pixels in [0, 1] and whole labels; refuse anything else.

    Targets of other losses may be floats (n, ...), or classes of pixels (n, h, w).
    """
    tensors = as_tensors({"images": images, "labels": labels})
    pixels, classes = tensors["images"], tensors["labels"]
    pixels = pixels.float() / 255 if pixels.dtype is torch.uint8 else pixels.float()
    classes = classes if classes.is_floating_point() else classes.long()
    same_length = pixels.dim() == 4 and classes.dim() >= 1 and len(pixels) == len(classes) and pixels.numel() > 0
    if not same_length or not (is_class_labels(classes) or is_target(classes)):
        raise DataError(
            f"The examples of {client!r} must be images (n, c, h, w) and as many whole labels, got "
            f"{tuple(pixels.shape)} and {tuple(classes.shape)} of {classes.dtype}."
        )
    if classes.is_floating_point() and not bool(torch.isfinite(classes).all()):
        raise DataError(f"The targets of {client!r} must be finite numbers, got NaN or infinity: clean them.")
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= 0 and high <= 1):
        raise DataError(
            f"The images of {client!r} must be pixels in [0, 1] or bytes, got {low:.3g} to {high:.3g}: give them as "
            "they were before they were normalised."
        )
    return pixels, classes.float() if classes.is_floating_point() else classes


def load_truths(directory: Path) -> Truths:
    """Read the truths of one folder, and check that rows, batches and labels are those of its examples."""
    path = directory / FACTS
    try:
        facts = TruthFacts.model_validate(parse_json(read_saved_bytes(path, LONGEST)))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is not a sidecar of truths ({first_problem(error)}): save the truths again."
        ) from error
    tensors = read_saved_tensors(directory, SavedFile(file=TENSORS, sha256=facts.sha256), MOST_TRUTH_BYTES)
    expected = [f"{i}{SEPARATOR}{kind}" for i in range(len(facts.clients)) for kind in ("images", "labels")]
    if sorted(expected) != sorted(tensors) or len(set(facts.clients)) < len(facts.clients):
        raise DataError(f"{path} and {TENSORS} do not name the same clients, each once: save the truths again.")
    examples = {
        name: Examples(*check_examples(name, tensors[f"{i}{SEPARATOR}images"], tensors[f"{i}{SEPARATOR}labels"]))
        for i, name in enumerate(facts.clients)
    }
    for entries in (facts.taken, facts.order, facts.batch_labels):
        (place, times), *_ = *Counter((entry.round, entry.client) for entry in entries).most_common(1), (None, 0)
        if place is not None and times > 1:
            raise DataError(f"{path}: round {place[0]} of {place[1]!r} is there {times} times: save the truths again.")
    truths = Truths(
        examples,
        {(entry.round, entry.client): entry.batches for entry in facts.batch_labels},
        {(entry.round, entry.client): entry.rows for entry in facts.taken},
        {(entry.round, entry.client): entry.batches for entry in facts.order},
    )
    _check_rows(path, truths)
    _check_batch_labels(path, truths)
    return truths


def _check_rows(path: Path, truths: Truths) -> None:
    rows_by_client = {client: frozenset(range(len(data.labels))) for client, data in truths.examples.items()}
    for (_, client), rows in truths.taken.items():
        allowed = rows_by_client.get(client, frozenset())
        if not allowed.issuperset(rows) or len(set(rows)) < len(rows):
            raise DataError(
                f"{path}: rows of {client!r} must be different rows of its {len(allowed)} examples: save the truths "
                "again."
            )
    for (index, client), batches in truths.order.items():
        trained = frozenset(truths.taken.get((index, client), rows_by_client.get(client, frozenset())))
        if not all(trained.issuperset(batch) for batch in batches):
            raise DataError(f"{path}: batches of {client!r} must be rows that it trained on: save the truths again.")
        # A row may be there twice: recorders know equal images by their content, and samplers may replace.
        longest = max(map(len, batches))
        if longest * truths.examples[client].images[0].numel() > MOST_PIXELS:
            raise DataError(
                f"{path}: a batch of {client!r} has {longest} rows, more than any attack can handle: save the truths "
                "again."
            )


def _check_batch_labels(path: Path, truths: Truths) -> None:
    """Check the labels of batches: those of the rows that were taken, or at least as many as the client has."""
    for (index, client), batches in truths.batch_labels.items():
        data, order = truths.examples.get(client), truths.order.get((index, client))
        own = data.labels.tolist() if data is not None and is_class_labels(data.labels) else []
        if order is not None and own:
            fits = batches == tuple(tuple(own[row] for row in batch) for batch in order)
        else:
            trained = Counter(own[row] for row in truths.taken.get((index, client), range(len(own))) if own)
            fits = all(Counter(batch) <= trained for batch in batches)
        if not fits:
            raise DataError(
                f"{path}: labels of batches of {client!r} in round {index} must be those of the examples that it took: "
                "save the truths again."
            )


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
    known = set(clients)
    wrong = next((name for name, times in Counter(names).items() if name not in known or times > 1), None)
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
