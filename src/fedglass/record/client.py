"""A client's own bundle: how it trained, read off torch, and for its own audit the examples behind its messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedglass.bundle import BundleWriter
from fedglass.bundle.truths import FACTS
from fedglass.bundle.writer import TRUTH
from fedglass.core.errors import UsageError
from fedglass.core.types import Whitening
from fedglass.record.hooks import TrainingReader
from fedglass.record.pixels import distinct, measured_whitening, pixels_of
from fedglass.record.read import model_facts, training_facts
from fedglass.rounds.truth import Examples, Truths

Batches = Sequence[Sequence[int]]
"""Rows of a client's examples, of each local step."""


@dataclass(frozen=True)
class Told:
    """What nobody can read off a running client: its user tells it once."""

    model: str | None = None
    """The architecture as a plan names it, such as `task:Net`, where it is not the class that was trained."""
    whitening: tuple[Sequence[float], Sequence[float]] | None = None
    """Means and deviations of the pixels' normalisation, one for each channel."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Any other fact of the federation that a bundle has a name for, such as `class_names`."""

    def of_federation(self) -> dict[str, Any]:
        whitening = None if self.whitening is None else _whitening_fact(self.normalisation)
        told = {"model": self.model, "whitening": whitening, **self.facts}
        return {name: value for name, value in told.items() if value is not None}

    @property
    def normalisation(self) -> Whitening | None:
        if self.whitening is None:
            return None
        mean, std = (tuple(float(v) for v in values) for values in self.whitening)
        return Whitening(mean, std)


class ClientRecorder:
    """Writes one client's training to a bundle, round by round; clients on different machines have one each."""

    def __init__(self, folder: str | Path, client: str, *, told: Told, truth: bool) -> None:
        self.client, self.told, self.truth = client, told, truth
        self.folder = Path(folder)
        self.writer = BundleWriter(self.folder, writer=client, resume=True)
        self.writer.facts(told.of_federation(), source="declared")

    def reader(self) -> TrainingReader:
        """Listens to one training; to be entered around it."""
        return TrainingReader(keep_examples=self.truth)

    def trained(self, index: int, reader: TrainingReader, defences: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write what was read of a round."""
        seen = model_facts(reader.steps)
        if self.told.model is not None:
            seen.pop("model", None)
        self.writer.facts(seen, source="read")
        facts = training_facts(reader.steps)
        if defences:
            facts["defences"] = [dict(each) for each in defences]
        self.writer.training(self.client, index, facts, source="read")
        if self.truth and reader.inputs:
            self._keep(index, reader)

    def _keep(self, index: int, reader: TrainingReader) -> None:
        inputs, labels = _examples(self.client, reader)
        whitening = self.told.normalisation or self._measured(inputs)
        images = pixels_of(self.client, inputs, whitening)
        place = {digest: row for row, digest in enumerate(reader.inputs)}
        self.examples(index, images, labels, [[place[digest] for digest in step.rows] for step in reader.steps])

    def _measured(self, inputs: Tensor) -> Whitening:
        found = measured_whitening(inputs)
        if found is None:
            raise UsageError(
                f"The pixels' normalisation can not be told from what the model of {self.client!r} was given: tell the "
                "recorder with whitening=(mean, std), a number for each channel; ((0.0,), (1.0,)) where there is none."
            )
        self.writer.facts({"whitening": _whitening_fact(found)}, source="measured")
        return found

    def examples(self, index: int, images: Tensor, labels: Tensor, batches: Batches | None = None) -> None:
        """Keep the examples of a round, beside those of earlier rounds.  # (n, c, h, w) pixels in [0, 1], (n,)

        `batches` are the rows that each local step took.
        """
        known, earlier = self._kept()
        if known is not None:
            images, rows = distinct(known.images, images)
            told = dict(enumerate(known.labels.tolist())) | dict(zip(rows, labels.tolist(), strict=True))
            labels = torch.tensor([told[i] for i in range(len(images))])
            batches = None if batches is None else [[rows[row] for row in batch] for batch in batches]
        order = earlier if batches is None else {**earlier, index: batches}
        self.writer.truth(self.client, images, labels, batches=order)

    def _kept(self) -> tuple[Examples | None, dict[int, Batches]]:
        """What earlier rounds have left."""
        folder = self.folder.with_name(self.folder.name + TRUTH) / f"client-{self.writer.meet(self.client):05}"
        facts = folder / FACTS
        if not facts.exists():
            return None, {}
        order = json.loads(facts.read_text()).get("order", [])
        own = Truths.load(facts.parent).examples.get(self.client)
        return own, {each["round"]: each["batches"] for each in order if each["client"] == self.client}


def _examples(client: str, reader: TrainingReader) -> tuple[Tensor, Tensor]:
    """Inputs and labels in the order in which they were first trained on."""
    labels: dict[bytes, int] = {}
    for step in reader.steps:
        if step.labels is None:
            raise UsageError(
                f"The labels of {client!r} could not be seen, since its loss is no cross entropy of classes: give the "
                "recorder the examples themselves, with recording.examples(images, labels)."
            )
        labels |= dict(zip(step.rows, step.labels, strict=True))
    return torch.stack(list(reader.inputs.values())), torch.tensor([labels[digest] for digest in reader.inputs])


def _whitening_fact(whitening: Whitening | None) -> dict[str, list[float]] | None:
    return None if whitening is None else {"mean": list(whitening.mean), "std": list(whitening.std)}


def folder_name(client: str) -> str:
    """A client's name as one of a folder.

    >>> folder_name("../St. Mary's")
    '.._St._Mary_s'
    """
    return re.sub(r"[^0-9A-Za-z_.-]", "_", client)[:100] or "client"
