"""The private side of a recording on disk: examples by client, for the eyes of their owner alone."""

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
from fedglass.core.files import write_atomic
from fedglass.federation.truth import Truths
from fedglass.recordings.files import as_tensors

FORMAT = 1
TENSORS, FACTS = "truth.safetensors", "truth.json"
SEPARATOR = "/"

ByTurn = Mapping[tuple[int, str], Any]
"""By round and client."""


def write_truths(
    folder: Path,
    examples: Mapping[str, tuple[Tensor, Tensor]],
    batch_labels: ByTurn,
    taken: ByTurn,
    order: ByTurn | None = None,
) -> None:
    """Images and labels of each client, the labels of each local step, which examples a round took, in what order."""
    tensors = {
        f"{i}{SEPARATOR}{kind}": tensor.contiguous()
        for i, (images, labels) in enumerate(examples.values())
        for kind, tensor in (("images", images), ("labels", labels))
    }
    data = save(tensors)
    facts = {
        "format": FORMAT,
        "clients": list(examples),
        "sha256": hashlib.sha256(data).hexdigest(),
        "batch_labels": [{"round": r, "client": client, "batches": told} for (r, client), told in batch_labels.items()],
        "taken": [{"round": r, "client": client, "rows": rows} for (r, client), rows in taken.items()],
    }
    if order:
        facts["order"] = [{"round": r, "client": client, "batches": rows} for (r, client), rows in order.items()]
    write_atomic(folder / TENSORS, data)
    write_atomic(folder / FACTS, json.dumps(facts) + "\n")


def write_client_truth(
    folder: Path, client: str, own: tuple[Tensor, Tensor], batches: Mapping[int, Sequence[Sequence[int]]]
) -> None:
    """One client's examples, and by round which rows of them each local step took."""
    count, order, labels, taken = len(own[1]), {}, {}, {}
    for index, told in batches.items():
        rows = [[int(row) for row in batch] for batch in told]
        used = sorted({row for batch in rows for row in batch})
        if not used or not all(rows) or used[0] < 0 or used[-1] >= count:
            raise DataError(
                f"The batches of {client!r} in round {index} must be rows of its {count} examples, none of them empty."
            )
        order[index, client] = rows
        labels[index, client] = [[int(own[1][row]) for row in batch] for batch in rows]
        if len(used) < count:
            taken[index, client] = used
    write_truths(folder, {client: own}, labels, taken, order)


def check_examples(client: str, images: Any, labels: Any) -> tuple[Tensor, Tensor]:
    """A client's own examples as they are written: pixels in [0, 1] and whole labels."""
    found = as_tensors({"images": images, "labels": labels})
    pixels, told = found["images"], found["labels"]
    pixels = pixels.float() / 255 if pixels.dtype is torch.uint8 else pixels.float()
    fit = pixels.dim() == 4 and told.dim() == 1 and len(pixels) == len(told) > 0 and not told.is_floating_point()
    if not fit:
        raise DataError(
            f"The examples of {client!r} must be images (n, c, h, w) and as many whole labels, got "
            f"{tuple(pixels.shape)} and {tuple(told.shape)} of {told.dtype}."
        )
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= 0 and high <= 1):
        raise DataError(
            f"The images of {client!r} must be pixels in [0, 1] or bytes, got {low:.3g} to {high:.3g}: give them as "
            "they were before they were normalised."
        )
    return pixels, told.long()


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
    truths = [Truths.load(place) for place in places]
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
