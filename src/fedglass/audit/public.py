"""What anybody can know of such data without a message: what is left of a set, or one that the adversary has."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedglass.core.identity import digest, of_tensor
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
    """The mean of such images, that of each class, and the images themselves.

    >>> images = torch.stack([torch.full((1, 2, 2), value) for value in (0.0, 0.5, 1.0)])
    >>> such = Public.of(images, torch.tensor([0, 0, 3]))
    >>> such.mean.unique(), such.of_class[0].unique(), such.of_class[3].unique()
    (tensor([0.5000]), tensor([0.2500]), tensor([1.]))
    """

    mean: Tensor  # (c, h, w), pixels
    of_class: Mapping[int, Tensor]
    """Class -> its mean image; only of classes of which there are any."""
    images: int
    """How many there are."""
    examples: Examples | None = None
    """They themselves, for the candidate game; at most some thousands."""
    identity: str = ""
    """A hash of a set that was given; empty for what no client has of a federation's own, which the plan decides."""

    @classmethod
    def of(cls, images: Tensor, labels: Tensor, rows: Sequence[int] | None = None) -> Public:
        """Of the images at these rows, or of all."""
        chosen = torch.arange(len(images)) if rows is None else torch.as_tensor(rows, dtype=torch.int64)
        kinds, places = torch.unique(labels[chosen], return_inverse=True)
        few = len(kinds) * images[0].numel() <= MOST_NUMBERS
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
        """A set that the adversary has: it decides what is said beside every score, and so the keys."""
        public = cls.of(images, labels)
        identity = digest("public", of_tensor(images), of_tensor(labels))
        return replace(public, identity=identity)

    @property
    def words(self) -> str:
        plural = "" if self.images == 1 else "s"
        whose = "of its own set" if self.identity else "that no client has"
        return f"For blind guesses and the candidate game it has {self.images} image{plural} {whose}."


# How good a trained model is.


JUDGED = 1000
"""Images of a whole data set that an accuracy is taken over."""
EXAMPLES_AT_ONCE = 250


def accuracy(model: nn.Module, whitening: Whitening, test: Examples) -> float:
    """The share of the examples that the model classifies rightly; it is left in evaluation mode."""
    device = next(model.parameters()).device
    model.eval()
    right = 0
    with torch.no_grad():
        for rows in torch.split(torch.arange(len(test.labels)), EXAMPLES_AT_ONCE):
            logits = model(whitening.whiten(test.images[rows]).to(device))
            right += int((logits.argmax(1).cpu() == test.labels[rows]).sum())
    return right / len(test.labels)


def model_after(model: nn.Module, last: Round) -> nn.Module:
    """A copy of the global model as a round has left it, with its running statistics."""
    trained = copy.deepcopy(model)
    trained.load_state_dict({**last.after, **last.buffers_after}, strict=False)
    return trained


def sample_examples(data: Dataset, seed: int) -> Examples:
    """At most 1000 examples of a data set, the first of a shuffle."""
    rows = torch.randperm(len(data), generator=stream(seed, "judged"))[:JUDGED]
    return Examples(data.images[rows], data.labels[rows])
