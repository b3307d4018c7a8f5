"""Public data of the same kind as the private ones: what is left of a set, or a set that the adversary has.

Here are also the accuracies of a trained model.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedglass.core.identity import digest, of_tensor
from fedglass.core.losses import grouping, is_class_labels
from fedglass.core.rng import stream
from fedglass.core.types import Whitening
from fedglass.data.dataset import Dataset
from fedglass.federation.transcript import Round
from fedglass.federation.truth import Examples

MOST_NUMBERS = 2**24
"""Pixels of all class means together, beyond which there are none: they go to every worker."""
POOL = 10_000
"""Examples that are kept for the candidate game."""
AT_ONCE = 1024
"""Images that are added up at once."""


@dataclass(frozen=True, eq=False)
class Public:
    """Public images: their mean, that of each class, and the images themselves.

    >>> images = torch.stack([torch.full((1, 2, 2), value) for value in (0.0, 0.5, 1.0)])
    >>> such = Public.of(images, torch.tensor([0, 0, 3]))
    >>> such.mean.unique(), such.of_class[0].unique(), such.of_class[3].unique()
    (tensor([0.5000]), tensor([0.2500]), tensor([1.]))
    """

    mean: Tensor  # (c, h, w), pixels
    of_class: Mapping[int, Tensor]
    """Class -> its mean image; only classes that occur."""
    images: int
    """The number of images."""
    examples: Examples | None = None
    """The images themselves, for the candidate game; at most some thousands."""
    identity: str = ""
    """A hash of a set that was given; empty for the rest of a federation's own set, which the plan decides."""

    @classmethod
    def of(cls, images: Tensor, labels: Tensor, rows: Sequence[int] | None = None) -> Public:
        """Make public data of the images at these rows, or of all."""
        chosen = torch.arange(len(images)) if rows is None else torch.as_tensor(rows, dtype=torch.int64)
        kinds, places = torch.unique(grouping(labels)[chosen], return_inverse=True)
        few = is_class_labels(labels) and len(kinds) * images[0].numel() <= MOST_NUMBERS
        at = places if few else torch.zeros_like(places)
        sums = torch.zeros(len(kinds) if few else 1, images[0].numel(), dtype=torch.float64)
        for some, where in zip(torch.split(chosen, AT_ONCE), torch.split(at, AT_ONCE), strict=True):
            sums.index_add_(0, where, images[some].flatten(1).double())
        means = sums / at.bincount().view(-1, 1)
        shape = images.shape[1:]
        return cls(
            (sums.sum(0) / len(chosen)).float().view(shape),
            {int(kind): mean.float().view(shape) for kind, mean in zip(kinds, means, strict=True)} if few else {},
            len(chosen),
            Examples(images[chosen[:POOL]], labels[chosen[:POOL]]),
        )

    @classmethod
    def given(cls, images: Tensor, labels: Tensor) -> Public:
        """Make public data of a set that the adversary has: it decides the blind guesses, and so the keys."""
        public = cls.of(images, labels)
        identity = digest("public", of_tensor(images), of_tensor(labels))
        return replace(public, identity=identity)

    @property
    def sentence(self) -> str:
        plural = "" if self.images == 1 else "s"
        origin = "of its own set" if self.identity else "that no client has"
        return f"For blind guesses and the candidate game it has {self.images} image{plural} {origin}."


JUDGED = 1000
"""Images of a data set that an accuracy is taken over."""
EXAMPLES_AT_ONCE = 250


def accuracy(model: nn.Module, whitening: Whitening, test: Examples) -> float:
    """Return the share of the labels that the model gets right; it is left in evaluation mode.

    There is one for each example, for each pixel, or for each output, where it holds or not.
    """
    device = next(model.parameters()).device
    model.eval()
    right, multiple = 0, test.labels.is_floating_point()
    with torch.no_grad():
        for rows in torch.split(torch.arange(len(test.labels)), EXAMPLES_AT_ONCE):
            logits = model(whitening.whiten(test.images[rows]).to(device))
            answers = (logits > 0).cpu() if multiple else logits.argmax(1).cpu()
            right += int((answers == (test.labels[rows] > 0.5 if multiple else test.labels[rows])).sum())
    return right / test.labels.numel()


def model_after(model: nn.Module, last: Round) -> nn.Module:
    """Return a copy of the global model after a round, with its running statistics."""
    trained = copy.deepcopy(model)
    trained.load_state_dict({**last.after, **last.buffers_after}, strict=False)
    return trained


def sample_examples(data: Dataset, seed: int) -> Examples:
    """Return at most 1000 examples of a data set, the first of a shuffle."""
    rows = torch.randperm(len(data), generator=stream(seed, "judged"))[:JUDGED]
    return Examples(data.images[rows], data.labels[rows])
