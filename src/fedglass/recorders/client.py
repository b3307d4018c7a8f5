"""A client's own bundle: how it trained, read off torch, and for its own audit the examples behind its messages."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedglass.core.errors import DataError, FedglassError, UsageError
from fedglass.core.types import Whitening
from fedglass.federation.truth import Truths
from fedglass.recorders.hooks import TrainingReader
from fedglass.recorders.read import failed_facts, model_facts, training_facts
from fedglass.recorders.texts import NO_STEP
from fedglass.recordings import BundleWriter
from fedglass.recordings.format import MANIFEST, OF_CLIENT, sheet
from fedglass.recordings.reader import read_index
from fedglass.recordings.truth_files import FACTS, check_examples, write_client_truth

# From what a network was given back to pixels in [0, 1], which is what truths hold.


LEVELS = 255
"""Steps between black and white in a picture of 8 bits."""
ROUNDING = 2e-3
"""By how much pixels may leave [0, 1] on the way back."""


def measured_whitening(inputs: Tensor) -> Whitening | None:
    """The normalisation of pictures of 8 bits, where the numbers give it away.  # (n, c, h, w)

    A channel's values x = (k / 255 - mean) / std lie on a grid whose step is 1 / (255 std). Where both black and white
    occur, its ends are -mean / std and (1 - mean) / std. Pictures that were scaled, turned or blurred lie on no grid:
    None, somebody has to tell. So it is where a channel has no black or no white: its mean could be another.

    >>> pixels = torch.arange(256.0).view(1, 1, 16, 16) / 255
    >>> found = measured_whitening((pixels - 0.13) / 0.31)
    >>> round(found.mean[0], 4), round(found.std[0], 4)
    (0.13, 0.31)
    """
    if inputs.dim() != 4 or not inputs.is_floating_point():
        return None
    found = [_channel(torch.unique(inputs[:, c].double())) for c in range(inputs.shape[1])]
    known = [each for each in found if each is not None]
    if not known or len(known) < len(found):
        return None
    return Whitening(tuple(mean for mean, _ in known), tuple(std for _, std in known))


def _channel(values: Tensor) -> tuple[float, float] | None:
    """Mean and deviation of one channel, from its sorted values."""
    if len(values) < LEVELS // 4:
        return None
    low, high = float(values[0]), float(values[-1])
    # Were 0 and 1 the ends of the grid, all values would be whole multiples of its step.
    levels = (values - low) * (LEVELS / (high - low))
    if float((levels - levels.round()).abs().max()) > 0.02:
        return None
    std = 1 / (high - low)
    return _tidy(-low * std), _tidy(std)


def _tidy(value: float) -> float:
    """Without the last digits, which are single precision's."""
    return 0.0 if abs(value) < 1e-6 else float(f"{value:.5g}")


def pixels_of(client: str, inputs: Tensor, whitening: Whitening) -> Tensor:
    """The pictures before they were normalised.  # (n, c, h, w)"""
    pixels = whitening.unwhiten(inputs.float())
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= -ROUNDING and high <= 1 + ROUNDING):
        raise DataError(
            f"What the model of {client!r} was given is no picture under the normalisation mean={whitening.mean}, "
            f"std={whitening.std}: its pixels would lie between {low:.3g} and {high:.3g}, expected 0 to 1. Tell the "
            "recorder the client's own, with whitening=(mean, std)."
        )
    return pixels.clamp(0, 1)


def union_of_images(images: Tensor, more: Tensor) -> tuple[Tensor, list[int]]:
    """The images of both, and where those of the second are among them; one that a side has twice stays twice.

    >>> a, b = torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1)
    >>> union, rows = union_of_images(torch.cat([a, b]), b)
    >>> len(union), rows
    (2, [1])
    """
    known = {key: i for i, key in enumerate(_keys(images))}
    new, rows = [], []
    for image, key in zip(more, _keys(more), strict=True):
        if key not in known:
            known[key] = len(known)
            new.append(image)
        rows.append(known[key])
    return (torch.cat([images, torch.stack(new)]) if new else images), rows


def _keys(images: Tensor) -> Iterator[tuple[bytes, int]]:
    """The content of each image, and how often it came before."""
    seen: Counter[bytes] = Counter()
    for image in images:
        content = image.contiguous().numpy().tobytes()
        yield content, seen[content]
        seen[content] += 1


log = logging.getLogger("fedglass")
SAME_DIGITS = 0.01
"""Between a normalisation that was told and one that was measured."""
Batches = Sequence[Sequence[int]]
"""Rows of a client's examples, of each local step."""


@contextmanager
def log_and_continue(what: str) -> Iterator[None]:
    """Whatever goes wrong is said in the log: a recorder is no reason to lose a training that is done."""
    try:
        yield
    except FedglassError as error:
        log.error("fedglass could not record %s, the training goes on: %s", what, error)
    except Exception:  # whatever it is; of a client's, the server is not told its text
        log.exception("fedglass could not record %s, the training goes on.", what)


@dataclass(frozen=True)
class UserFacts:
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
    """Writes one client's training to a bundle, round by round; clients on different machines have one each.

    `truth` is the folder for its examples, which are private: below it the client has one of its own. None keeps none.
    """

    def __init__(self, folder: str | Path, client: str, *, told: UserFacts, truth: str | Path | None) -> None:
        self.client, self.told = client, told
        self.truth = None if truth is None else Path(truth) / folder_name(client)
        self.writer = BundleWriter(folder, writer=client, resume=True)
        self.writer.facts(told.of_federation(), source="declared")

    def reader(self) -> TrainingReader:
        """Listens to one training; to be entered around it."""
        return TrainingReader(keep_examples=self.truth is not None)

    def trained(self, index: int, reader: TrainingReader, defences: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write what was read of a round; whoever heard nothing says so, and examples that can not be kept are not."""
        if not reader.steps and not reader.fault:
            log.warning(NO_STEP, self.client)
            return
        seen = model_facts(reader.steps)
        if self.told.model is not None:
            seen.pop("model", None)
        self.writer.facts(seen, source="read")
        facts = failed_facts() if reader.fault else training_facts(reader.steps)
        if defences:
            facts["defences"] = [dict(each) for each in defences]
        self.writer.round(index).retell_client(self.client, OF_CLIENT.told(facts, "read"))
        if self.truth is not None and reader.inputs and not reader.fault:
            with log_and_continue(f"the examples of {self.client!r}"):
                self._keep(self.truth, index, reader)

    def _keep(self, folder: Path, index: int, reader: TrainingReader) -> None:
        inputs, labels = _examples(self.client, reader)
        whitening = self._whitening(inputs)
        images = pixels_of(self.client, inputs, whitening)
        place = {digest: row for row, digest in enumerate(_digests(reader))}
        batches = [[place[digest] for digest in step.rows] for step in reader.steps if step.rows]
        _keep_beside(folder, self.client, index, (images, labels), batches)

    def _whitening(self, inputs: Tensor) -> Whitening:
        """What was told, unless the pixels tell otherwise; or what they tell."""
        told, found = self.told.normalisation, measured_whitening(inputs)
        if told is not None and found is not None and not _alike(told, found):
            raise UsageError(
                f"The pixels of {self.client!r} were normalised by mean={found.mean}, std={found.std}, as they "
                f"themselves tell, and the recorder was told mean={told.mean}, std={told.std}: correct whitening."
            )
        if told is None and found is None:
            raise UsageError(
                f"The pixels' normalisation can not be told from what the model of {self.client!r} was given: tell the "
                "recorder with whitening=(mean, std), a number for each channel; ((0.0,), (1.0,)) where there is none."
            )
        if told is None:
            self.writer.facts({"whitening": _whitening_fact(found)}, source="measured")
        whitening = told or found
        assert whitening is not None, "one of them is known"
        return whitening


def _alike(told: Whitening, found: Whitening) -> bool:
    """Whether two normalisations are the same but for digits that people leave out."""
    pairs = [*_pairs(told.mean, found.mean), *_pairs(told.std, found.std)]
    return all(abs(one - other) <= SAME_DIGITS for one, other in pairs)


def _pairs(told: Sequence[float], found: Sequence[float]) -> list[tuple[float, float]]:
    """One number that was told stands for all channels."""
    return list(zip(told if len(told) > 1 else [*told] * len(found), found, strict=False))


def _keep_beside(folder: Path, client: str, index: int, own: tuple[Tensor, Tensor], batches: Batches) -> None:
    """Write the examples of a round beside those of earlier ones, and which of them each local step took."""
    images, labels = own
    order: dict[int, Batches] = {}
    if (folder / FACTS).exists():
        before = Truths.load(folder)
        known = before.examples[client]
        images, rows = union_of_images(known.images, images)
        told = dict(enumerate(known.labels.tolist())) | dict(zip(rows, labels.tolist(), strict=True))
        labels = torch.tensor([told[i] for i in range(len(images))])
        batches = [[rows[row] for row in batch] for batch in batches]
        order = {number: steps for (number, _), steps in before.order.items()}
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # of parents, mkdir would let others list the names
    folder.mkdir(mode=0o700, exist_ok=True)
    write_client_truth(folder, client, check_examples(client, images, labels), {**order, index: batches})


def _examples(client: str, reader: TrainingReader) -> tuple[Tensor, Tensor]:
    """Inputs and labels in the order in which they were first trained on."""
    inputs = {digest: reader.inputs[digest] for digest in _digests(reader)}
    shapes = {tuple(example.shape) for example in inputs.values()}
    if len(shapes) > 1 or any(len(shape) != 3 for shape in shapes):
        raise UsageError(
            f"What the model of {client!r} was given are no images of one size (channels, height, width): one example "
            f"has shape {sorted(shapes)[0]}; fedglass audits images alone, so record without the truth."
        )
    labels: dict[bytes, int] = {}
    # A second optimiser steps on the gradients of the same pass: it has no examples of its own.
    for step in (step for step in reader.steps if step.rows):
        if step.labels is None:
            raise UsageError(
                f"The labels of {client!r} could not be seen, since its loss is no cross entropy of classes: record "
                "without the truth, and write it yourself with BundleWriter(folder, resume=True).truth(client, images, "
                "labels)."
            )
        labels |= dict(zip(step.rows, step.labels, strict=True))
    return torch.stack(list(inputs.values())), torch.tensor([labels[digest] for digest in inputs])


def _digests(reader: TrainingReader) -> dict[bytes, None]:
    """Of the examples that its steps took, in the order in which they first did; it may have heard other steps."""
    return dict.fromkeys(digest for step in reader.steps for digest in step.rows)


def _whitening_fact(whitening: Whitening | None) -> dict[str, list[float]] | None:
    return None if whitening is None else {"mean": list(whitening.mean), "std": list(whitening.std)}


def folder_name(client: str) -> str:
    """A client's name as one of a folder.

    >>> folder_name("../St. Mary's")
    '.._St._Mary_s'
    """
    return re.sub(r"[^0-9A-Za-z_.-]", "_", client)[:100] or "client"


def take_training(writer: BundleWriter, folder: Path, index: int) -> None:
    """Take over what a client has read of its training in a round, where its bundle is on the same machine."""
    if not (folder / MANIFEST).exists():
        return
    manifest, rounds = read_index(folder)
    writer.tell(sheet(manifest.facts))
    for message in rounds[index].messages if index in rounds else ():
        writer.round(index).tell_client(message.client, sheet(message.facts))
