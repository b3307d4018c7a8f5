"""Truths come back as they were saved, and no forged one is believed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from fedglass.core.errors import DataError
from fedglass.federation.truth import Examples, Truths
from fedglass.recordings.truth_files import FACTS, TENSORS

Facts = dict[str, Any]
Tensors = dict[str, Tensor]


def truths() -> Truths:
    images = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    return Truths(
        {"a": Examples(images, torch.tensor([0, 2, 2])), "b": Examples(images[:1], torch.rand(1, 4))},
        {(1, "a"): ((0, 2), (2,))},
        {(1, "a"): (0, 2), (4, "a"): (0, 1)},
        {(1, "a"): ((0, 2), (2,)), (2, "b"): ((0,),)},
    )


def test_truths_come_back(tmp_path: Path) -> None:
    saved = truths()
    saved.save(tmp_path)
    back = Truths.load(tmp_path)
    assert back.identity == saved.identity
    assert (back.batch_labels, back.taken, back.order) == (saved.batch_labels, saved.taken, saved.order)


def forged(folder: Path, change: Callable[[Facts, Tensors], object]) -> None:
    """Change facts and tensors of a sidecar, with the digest of what is written."""
    truths().save(folder)
    facts, tensors = json.loads((folder / FACTS).read_text()), load((folder / TENSORS).read_bytes())
    change(facts, tensors)
    data = save({name: tensor.contiguous().clone() for name, tensor in tensors.items()})
    (folder / TENSORS).write_bytes(data)
    (folder / FACTS).write_text(json.dumps({**facts, "sha256": hashlib.sha256(data).hexdigest()}))


def with_tensor(name: str, value: Tensor) -> Callable[[Facts, Tensors], object]:
    return lambda facts, tensors: tensors.update({name: value})


def with_entry(list_name: str, **entry: object) -> Callable[[Facts, Tensors], object]:
    return lambda facts, tensors: facts[list_name].append({"round": 3, "client": "a", **entry})


IMAGES, LABELS = torch.full((3, 1, 4, 4), 0.5), torch.tensor([0, 1, 2])
FORGERIES: dict[str, Callable[[Facts, Tensors], object]] = {
    "NaN": with_tensor("0/images", IMAGES * float("nan")),
    "out of range": with_tensor("0/images", IMAGES * 3),
    "negative": with_tensor("0/images", -IMAGES),
    "flat": with_tensor("0/images", IMAGES.flatten(1)),
    "empty": with_tensor("0/images", torch.zeros(3, 0, 4, 4)),
    "no example": lambda facts, tensors: tensors.update({"0/images": IMAGES[:0], "0/labels": LABELS[:0]}),
    "many labels": with_tensor("0/labels", torch.zeros(2**20, dtype=torch.int64)),
    "few labels": with_tensor("0/labels", LABELS[:2]),
    "one label": with_tensor("0/labels", torch.tensor(1)),
    "flags": with_tensor("0/labels", torch.rand(3)),
    "targets of infinity": with_tensor("1/labels", torch.full((1, 4), float("inf"))),
    "another tensor": with_tensor("2/images", IMAGES),
    "a missing tensor": lambda facts, tensors: tensors.pop("1/images"),
    "a client more": lambda facts, tensors: facts["clients"].append("c"),
    "a client twice": lambda facts, tensors: facts.update(clients=["a", "a"]),
    "no client": lambda facts, tensors: facts.update(clients=[]),
    "names that are numbers": lambda facts, tensors: facts.update(clients=[1, 2]),
    "another format": lambda facts, tensors: facts.update(format=7),
    "an unknown key": lambda facts, tensors: facts.update(more=1),
    "rows twice": with_entry("taken", rows=[1] * 1000),
    "rows that are not there": with_entry("taken", rows=[3]),
    "rows below zero": with_entry("taken", rows=[-1]),
    "no row": with_entry("taken", rows=[]),
    "rows of another client": with_entry("taken", rows=[0], client="z"),
    "an endless round": with_entry("taken", rows=[0], round=float("inf")),
    "batches of others' rows": with_entry("order", batches=[[3]], round=1),
    "an empty batch": with_entry("order", batches=[[]]),
    "no batch": with_entry("order", batches=[]),
    "labels of others": with_entry("batch_labels", batches=[[1]]),
    "many labels of one batch": with_entry("batch_labels", batches=[[2] * 3]),
    "many labels of taken rows": with_entry("batch_labels", batches=[[2, 2]], round=4),
    "other labels than of its rows": lambda facts, tensors: facts["batch_labels"][0].update(batches=[[2, 0], [2]]),
    "more batches than of its rows": lambda facts, tensors: facts["batch_labels"][0]["batches"].append([2]),
    "a round twice": with_entry("taken", rows=[0], round=1),
    "batches of a round twice": with_entry("order", batches=[[0]], round=1),
    "labels of a round twice": with_entry("batch_labels", batches=[[0]], round=1),
    "a batch of too many rows": with_entry("order", batches=[[0] * (2**24 + 1)]),
    "labels without classes": with_entry("batch_labels", batches=[[0]], client="b"),
}


@pytest.mark.parametrize("change", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_truth_is_refused(change: Callable[[Facts, Tensors], object], tmp_path: Path) -> None:
    forged(tmp_path, change)
    with pytest.raises(DataError) as refusal:
        Truths.load(tmp_path)
    assert "\n" not in str(refusal.value)
