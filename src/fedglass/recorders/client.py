"""A client's own bundle: its training, as torch shows it, and for its own audit the examples behind its messages.

A truth holds pixels in [0, 1], while a network is given normalised inputs: the normalisation is undone here. It is
measured from the inputs if their numbers show it, and compared with what the user declares.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedglass.core.errors import DataError, FedglassError, UsageError
from fedglass.core.files import make_folder
from fedglass.core.types import Whitening
from fedglass.federation.truth import Truths
from fedglass.recorders.hooks import TrainingReader
from fedglass.recorders.training_facts import NO_STEP, failed_facts, model_facts, training_facts
from fedglass.recordings import BundleWriter
from fedglass.recordings.facts import OF_CLIENT
from fedglass.recordings.format import MANIFEST
from fedglass.recordings.reader import read_index
from fedglass.recordings.truth_files import FACTS, check_examples, write_client_truth

log = logging.getLogger("fedglass")
LEVELS = 255
"""Steps between black and white in a picture of 8 bits."""
ROUNDING = 2e-3
"""How far pixels may leave [0, 1] through rounding."""
SAME_DIGITS = 0.01
"""The difference between a declared and a measured normalisation that omitted digits explain."""


@contextmanager
def log_and_continue(what: str, after_error: Callable[[], None] | None = None) -> Iterator[None]:
    """Log every error: a recorder must not lose a training that is done."""
    try:
        yield
        return
    except FedglassError as error:
        log.error("fedglass %s. The training continues. %s", what, error)
    except Exception:  # any error; the server does not see a client's text of it
        log.exception("fedglass %s. The training continues.", what)
    if after_error is not None:
        after_error()


class ClientRecorder:
    """Writes one client's training to a bundle, round by round; clients on different machines have one each.

    Args:
        truth: The folder for examples, which are private: the client has a folder of its own below. None keeps none.
        model: The architecture as a plan names it, such as `task:Net`, if it is not the class that was trained.
        whitening: Means and deviations of the normalisation of pixels, one for each channel.
        facts: Any other fact of the federation that a running client does not show, such as `class_names`.
    """

    def __init__(
        self,
        folder: str | Path,
        client: str,
        *,
        truth: str | Path | None = None,
        model: str | None = None,
        whitening: Sequence[Sequence[float]] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.client, self.model = client, model
        self.truth = None if truth is None else Path(truth) / folder_name(client)
        self.whitening: Whitening | None = None
        declared: dict[str, Any] = {"model": model}
        if whitening is not None:
            mean, std = (tuple(float(v) for v in values) for values in whitening)
            self.whitening = Whitening(mean, std)
            declared["whitening"] = _whitening_fact(self.whitening)
        self.writer = BundleWriter(folder, writer=client, resume=True)
        self.writer.facts({**declared, **(facts or {})}, source="declared")

    def reader(self) -> TrainingReader:
        """Return the observer of one training, to be entered around it."""
        return TrainingReader(keep_examples=self.truth is not None)

    def trained(self, index: int, reader: TrainingReader, defences: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write what was observed in a round; log if there was nothing, or if examples cannot be kept."""
        if not reader.steps and not reader.fault:
            log.warning(NO_STEP, self.client)
            return
        of_model = model_facts(reader.steps, reader.first_pass)
        if self.model is not None:
            of_model.pop("model", None)
        self.writer.facts(of_model, source="read")
        facts = failed_facts() if reader.fault else training_facts(reader.steps)
        if defences:
            facts["defences"] = [*facts.get("defences", ()), *map(dict, defences)]
        self.writer.round(index).replace_client_facts(self.client, OF_CLIENT.sheet(facts, "read"))
        if self.truth is not None and reader.inputs and not reader.fault:
            with log_and_continue(f"could not record the examples of {self.client!r}"):
                self._add_to_truth(self.truth, index, reader)

    def _add_to_truth(self, folder: Path, index: int, reader: TrainingReader) -> None:
        """Add the examples of a round to those of earlier ones, with the rows that each local step took."""
        inputs, labels = _examples(self.client, reader)
        images = pixels_of(self.client, inputs, self._whitening(inputs))
        row_of = {digest: row for row, digest in enumerate(_digests(reader))}
        batches = [[row_of[digest] for digest in step.rows] for step in reader.steps if step.rows]
        order: dict[int, Sequence[Sequence[int]]] = {}
        if (folder / FACTS).exists():
            truths = Truths.load(folder)
            earlier = truths.examples[self.client]
            images, rows = union_of_images(earlier.images, images)
            label_of = dict(enumerate(earlier.labels.tolist())) | dict(zip(rows, labels.tolist(), strict=True))
            labels = torch.tensor([label_of[row] for row in range(len(images))])
            batches = [[rows[row] for row in batch] for batch in batches]
            order = {number: steps for (number, _), steps in truths.order.items()}
        make_folder(folder.parent)  # which would otherwise let others list the names of the clients
        examples = check_examples(self.client, images, labels)
        write_client_truth(folder, self.client, examples, {**order, index: batches})

    def _whitening(self, inputs: Tensor) -> Whitening:
        """Return the declared normalisation, if the pixels do not contradict it, or the measured one."""
        declared, measured = self.whitening, measured_whitening(inputs)
        if declared is not None:
            if measured is not None and not _same_whitening(declared, measured):
                raise UsageError(
                    f"The inputs of {self.client!r} are normalised by mean={measured.mean}, std={measured.std}, but "
                    f"the recorder was given mean={declared.mean}, std={declared.std}: correct whitening."
                )
            return declared
        if measured is None:
            raise UsageError(
                f"The normalisation of pixels cannot be measured from the inputs of {self.client!r}: give the recorder "
                "whitening=(mean, std), a number for each channel; ((0.0,), (1.0,)) if there is none."
            )
        self.writer.facts({"whitening": _whitening_fact(measured)}, source="measured")
        return measured


def _same_whitening(declared: Whitening, measured: Whitening) -> bool:
    """Check that two normalisations differ by omitted digits at most; one declared number stands for all channels."""
    for values, channels in ((declared.mean, measured.mean), (declared.std, measured.std)):
        by_channel = values if len(values) > 1 else values * len(channels)
        if any(abs(one - other) > SAME_DIGITS for one, other in zip(by_channel, channels, strict=False)):
            return False
    return True


def _whitening_fact(whitening: Whitening) -> dict[str, list[float]]:
    return {"mean": list(whitening.mean), "std": list(whitening.std)}


def _examples(client: str, reader: TrainingReader) -> tuple[Tensor, Tensor]:
    """Return inputs and labels in the order in which they were first trained on."""
    inputs = {digest: reader.inputs[digest] for digest in _digests(reader)}
    shapes = {tuple(example.shape) for example in inputs.values()}
    if len(shapes) > 1 or any(len(shape) != 3 for shape in shapes):
        raise UsageError(
            f"The inputs of the model of {client!r} are not images of one size (channels, height, width): one example "
            f"has shape {sorted(shapes)[0]}. fedglass audits only images, so record without the truth."
        )
    labels: dict[bytes, Any] = {}
    # A second optimiser steps on the gradients of the same pass: it has no examples of its own.
    for step in (step for step in reader.steps if step.rows):
        if step.labels is None and step.objective is not None:
            labels |= dict(zip(step.rows, step.objective.targets.tolist(), strict=True))
            continue
        if step.labels is None:
            raise UsageError(
                f"The labels of {client!r} could not be observed, since its loss is not one that fedglass knows. "
                "Record without the truth, and write it yourself with BundleWriter(folder, resume=True).truth(client, "
                "images, labels)."
            )
        labels |= dict(zip(step.rows, step.labels, strict=True))
    return torch.stack(list(inputs.values())), torch.tensor([labels[digest] for digest in inputs])


def _digests(reader: TrainingReader) -> dict[bytes, None]:
    """Return the digests of the examples that its steps took, in their first order; it may have seen other steps."""
    return dict.fromkeys(digest for step in reader.steps for digest in step.rows)


def measured_whitening(inputs: Tensor) -> Whitening | None:
    """Return the normalisation of pictures of 8 bits, if the numbers show it.  # (n, c, h, w)

    A channel's values x = (k / 255 - mean) / std lie on a grid of step 1 / (255 std). If both black and white occur,
    its ends are -mean / std and (1 - mean) / std. Pictures that were scaled, turned or blurred do not lie on a grid,
    and a channel without black or white does not determine its mean: the result is None then.

    >>> pixels = torch.arange(256.0).view(1, 1, 16, 16) / 255
    >>> whitening = measured_whitening((pixels - 0.13) / 0.31)
    >>> round(whitening.mean[0], 4), round(whitening.std[0], 4)
    (0.13, 0.31)
    """
    if inputs.dim() != 4 or not inputs.is_floating_point() or not inputs.shape[1]:
        return None
    channels = [_channel_whitening(torch.unique(inputs[:, channel].double())) for channel in range(inputs.shape[1])]
    measured = [channel for channel in channels if channel is not None]
    return Whitening(*zip(*measured, strict=True)) if len(measured) == len(channels) else None


def _channel_whitening(values: Tensor) -> tuple[float, float] | None:
    """Return mean and deviation of one channel, from its sorted values."""
    if len(values) < LEVELS // 4:
        return None
    low, high = float(values[0]), float(values[-1])
    # If 0 and 1 are the ends of the grid, all values are whole multiples of its step.
    levels = (values - low) * (LEVELS / (high - low))
    if float((levels - levels.round()).abs().max()) > 0.02:
        return None
    std = 1 / (high - low)
    # Without the last digits, which are the rounding of single precision.
    mean, deviation = (0.0 if abs(value) < 1e-6 else float(f"{value:.5g}") for value in (-low * std, std))
    return mean, deviation


def pixels_of(client: str, inputs: Tensor, whitening: Whitening) -> Tensor:
    """Return the pictures before they were normalised.  # (n, c, h, w)"""
    pixels = whitening.unwhiten(inputs.float())
    low, high = float(pixels.min()), float(pixels.max())
    if not (low >= -ROUNDING and high <= 1 + ROUNDING):
        raise DataError(
            f"The inputs of the model of {client!r} are not pictures under the normalisation mean={whitening.mean}, "
            f"std={whitening.std}: their pixels would lie between {low:.3g} and {high:.3g}, expected 0 to 1. Give the "
            "recorder the client's own normalisation, with whitening=(mean, std)."
        )
    return pixels.clamp(0, 1)


def union_of_images(images: Tensor, more: Tensor) -> tuple[Tensor, list[int]]:
    """Return the images of both, and the rows of the second ones among them; an image that one has twice stays twice.

    >>> a, b = torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1)
    >>> union, rows = union_of_images(torch.cat([a, b]), b)
    >>> len(union), rows
    (2, [1])
    """
    row_of = {key: row for row, key in enumerate(_image_keys(images))}
    new, rows = [], []
    for image, key in zip(more, _image_keys(more), strict=True):
        if key not in row_of:
            row_of[key] = len(row_of)
            new.append(image)
        rows.append(row_of[key])
    return (torch.cat([images, torch.stack(new)]) if new else images), rows


def _image_keys(images: Tensor) -> Iterator[tuple[bytes, int]]:
    """Yield the content of each image, and how often it came before."""
    times: Counter[bytes] = Counter()
    for image in images:
        content = image.contiguous().numpy().tobytes()
        yield content, times[content]
        times[content] += 1


def folder_name(client: str) -> str:
    """Return a client's name as the name of a folder.

    >>> folder_name("../St. Mary's")
    '.._St._Mary_s'
    """
    return re.sub(r"[^0-9A-Za-z_.-]", "_", client)[:100] or "client"


def copy_training(writer: BundleWriter, folder: Path, index: int) -> None:
    """Copy what a client recorded of its training in a round, if its bundle is on the same machine."""
    if not (folder / MANIFEST).exists():
        return
    manifest, rounds = read_index(folder)
    writer.add_facts(manifest.facts)
    for message in rounds[index].messages if index in rounds else ():
        writer.round(index).add_client_facts(message.client, message.facts)
