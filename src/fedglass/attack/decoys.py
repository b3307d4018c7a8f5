"""Decoys: examples of the adversary's own choosing, and the message that they would have caused.

An adversary that wonders how to set its attack need not guess. It plays the clients' training, as far as it knows it,
on pictures that it has, from the weights that it observed, and attacks a message of which it knows the answer. What
protects the real message is not known here, and a decoy's message is without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedglass.core.params import Params
from fedglass.core.rng import stream
from fedglass.core.types import Knowledge, Observation, Own, Reconstruction, Training
from fedglass.fl.local import Batch, schedule, train
from fedglass.models.network import Network

MOST_STEPS = 2000
"""Local steps beyond which a training is not played on decoys."""
LEAVES = 60
"""Discs in a made-up picture."""
SMALLEST, LARGEST = 0.06, 0.6
"""Their radii, as shares of the picture's longer side."""
TINT = 0.4
"""How far the channels of a disc's colour differ, beside how far the discs' brightness does."""


@dataclass(frozen=True, eq=False)
class Decoy:
    """A message of which the adversary knows the answer."""

    observation: Observation
    images: Tensor  # (n, c, h, w), pixels before whitening


def decoy_like(seen: Observation, found: Reconstruction, pictures: Tensor | None, seed: int) -> Decoy | None:
    """What the adversary would have seen if the pictures that it has were the private ones.

    The labels are those that an attack has found in the real message, so that the decoys are as many of each class.
    None where the training is too long to be played, or diverges.
    """
    training, sizes = _training(seen.knows, found), _sizes(seen.knows)
    if max(map(training.local_steps, sizes)) > MOST_STEPS:
        return None
    images = decoy_images(seen.knows, pictures, seed).to(_device(seen))
    labels = _labels(seen.knows, found, seed).to(images.device)
    clients = []
    for i, rows in enumerate(torch.split(torch.arange(len(labels)), sizes)):
        batches = [*schedule(training, len(rows), stream(seed, "decoys", "order", i))]
        clients.append(_Client(images[rows], labels[rows], training, batches))
    sent = [client.sent(seen) for client in clients]
    update = _combined(seen, sizes, sent)
    if update is None:
        return None
    knows, steps = seen.knows, clients[0].batch_labels()
    told = replace(
        knows,
        labels=None if knows.labels is None else labels,
        batch_labels=None if knows.batch_labels is None or len(sizes) > 1 else steps,
    )
    own = None if seen.own is None else Own(clients[-1].images, clients[-1].labels, sent[-1])
    return Decoy(replace(seen, update=update, knows=told, own=own), images)


@dataclass(frozen=True, eq=False)
class _Client:
    """What one client does with its decoys."""

    images: Tensor  # (n, c, h, w), pixels
    labels: Tensor  # (n,)
    training: Training
    batches: Sequence[Batch]

    def sent(self, seen: Observation) -> dict[str, Tensor]:
        """Its update."""
        network = Network(seen.model, seen.buffers, self.training.batch_norm)
        start = [seen.before[name] for name in network.names]
        inputs = seen.knows.whitening.whiten(self.images)
        after = train(network, start, inputs, self.labels, self.batches, self.training)
        return {name: a - b for name, a, b in zip(network.names, after, start, strict=True)}

    def batch_labels(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(self.labels[batch.rows].tolist()) for batch in self.batches)


def _combined(seen: Observation, sizes: Sequence[int], sent: Sequence[Params]) -> Params | None:
    """The mean of the updates, weighted as the clients' numbers of examples; None where they are no message."""
    update: dict[str, Tensor] = {name: torch.zeros_like(w) for name, w in seen.before.items()}
    for size, each in zip(sizes, sent, strict=True):
        for name, tensor in each.items():
            update[name] = update[name] + tensor * (size / sum(sizes))
    norm = _norm(update)
    if not 0 < norm < math.inf:
        return None
    if seen.knows.training is None and seen.knows.lr is None:  # how long a step is nobody knows: as long as the message
        return {name: tensor * (_norm(seen.update) / norm) for name, tensor in update.items()}
    return update


def decoy_images(knows: Knowledge, pictures: Tensor | None, seed: int) -> Tensor:
    """As many as stand behind the message: drawn from the given ones, mirrored where these are too few, or made up.

    # (n, c, h, w), pixels
    """
    count, draws = knows.examples, stream(seed, "decoys", "images")
    given = torch.zeros(0, *knows.shape) if pictures is None else pictures.detach().cpu()
    chosen = given[torch.randperm(len(given), generator=draws)]
    several = torch.cat([chosen, chosen.flip(-1), chosen.flip(-2), chosen.flip(-2, -1)])[:count]
    return torch.cat([several, dead_leaves(knows, count - len(several), draws)])


def dead_leaves(knows: Knowledge, count: int, generator: torch.Generator) -> Tensor:
    """Discs that hide each other, their radii r drawn from a density that falls as r^-3.

    Such pictures have edges and the power spectrum of photographs, and none of their objects
    [Lee, Mumford and Huang, 2001].  # (count, c, h, w), pixels
    """
    channels, height, width = knows.shape
    rows, columns = torch.arange(height).view(-1, 1), torch.arange(width).view(1, -1)
    side = max(height, width)
    images = torch.zeros(count, *knows.shape)
    for leaf in range(LEAVES):
        across, down = (torch.rand(count, 1, 1, 1, generator=generator) for _ in range(2))
        share = torch.rand(count, 1, 1, 1, generator=generator)
        radius = side * (SMALLEST**-2 + share * (LARGEST**-2 - SMALLEST**-2)) ** -0.5
        inside = (rows - down * height).square() + (columns - across * width).square() < radius.square()
        grey, tint = (torch.randn(count, n, 1, 1, generator=generator) for n in (1, channels))
        colour = knows.whitening.unwhiten(grey + TINT * tint)
        images = torch.where(inside | (leaf == 0), colour, images)
    return images.clamp(knows.low, knows.high)


def _training(knows: Knowledge, found: Reconstruction) -> Training:
    """The clients' as it is known or was found to fit; else one gradient, or as many as are known."""
    known = found.supposed or knows.training
    return known or Training(lr=knows.lr or 1.0, steps=knows.steps)


def _labels(knows: Knowledge, found: Reconstruction, seed: int) -> Tensor:
    """Those that were found in the message; drawn where there are not as many.  # (n,)"""
    labels = found.labels.detach().cpu()
    if labels.shape == (knows.examples,):
        return labels
    return torch.randint(knows.classes, (knows.examples,), generator=stream(seed, "decoys", "labels"))


def _sizes(knows: Knowledge) -> list[int]:
    """How many examples each client has, as far as is known."""
    each, more = divmod(knows.examples, knows.clients)
    return [*knows.sizes] if knows.sizes is not None else [each + (i < more) for i in range(knows.clients)]


def _norm(params: Params) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in params.values()))


def _device(seen: Observation) -> torch.device:
    return next(iter(seen.update.values())).device
