"""Hand-written inversion loops without any abstraction: what the attacks' loops are measured against."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import torch
from torch.nn import functional as F

from fedglass.core.types import Observation


def steps(observation: Observation) -> Iterator[torch.Tensor]:
    """Inverting Gradients: cosine distance plus total variation, signed Adam at 0.1, projection onto the bounds.

    Yields the images, whitened, after each iteration, without end.
    """
    knows = observation.knows
    model = copy.deepcopy(observation.model).eval()
    model.load_state_dict({**observation.before, **observation.buffers})
    weights = list(model.parameters())
    target = [-update.flatten() for update in observation.update.values()]
    target_norm = math.sqrt(sum(float(t.dot(t)) for t in target))
    low, high = knows.bounds()
    labels = knows.labels
    x = torch.randn(knows.examples, *knows.shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mean, square = torch.zeros_like(x), torch.zeros_like(x)
    k = 0
    while True:
        k += 1
        loss = F.cross_entropy(model(x), labels)
        gradient = [g.flatten() for g in torch.autograd.grad(loss, weights, create_graph=True)]
        product = sum(g.dot(t) for g, t in zip(gradient, target, strict=True))
        norm = sum(g.dot(g) for g in gradient).sqrt()
        variation = (x[..., 1:] - x[..., :-1]).abs().mean() + (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
        energy = 1 - product / (norm * target_norm) + 0.01 * variation
        (g,) = torch.autograd.grad(energy, [x])
        with torch.no_grad():
            g = g.sign()
            mean.lerp_(g, 0.1)
            square.mul_(0.999).addcmul_(g, g, value=0.001)
            scale = (square.sqrt() / math.sqrt(1 - 0.999**k)).add_(1e-8)
            x.addcdiv_(mean, scale, value=-0.1 / (1 - 0.9**k)).clamp_(low, high)
        del loss, gradient, product, norm, variation, energy  # as a loop's next turn would: no graph is kept
        yield x.detach()


def fine_steps(observation: Observation) -> Iterator[torch.Tensor]:
    """The second stage of coarse-to-fine: cosine, the size of each entry, squared total variation; Adam at 0.1."""
    knows = observation.knows
    model = copy.deepcopy(observation.model).eval()
    model.load_state_dict({**observation.before, **observation.buffers})
    weights = list(model.parameters())
    target = [-update.flatten() / 0.1 for update in observation.update.values()]
    shares = [1 / ((1 + t.abs()) * len(target)) for t in target]
    target_norm = math.sqrt(sum(float(t.dot(t)) for t in target))
    low, high = knows.bounds()
    labels = knows.labels
    x = torch.randn(knows.examples, *knows.shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mean, square = torch.zeros_like(x), torch.zeros_like(x)
    k = 0
    while True:
        k += 1
        loss = F.cross_entropy(model(x), labels)
        gradient = [g.flatten() for g in torch.autograd.grad(loss, weights, create_graph=True)]
        product = sum(g.dot(t) for g, t in zip(gradient, target, strict=True))
        norm = sum(g.dot(g) for g in gradient).sqrt()
        size = sum((g - t).abs().dot(w) for g, t, w in zip(gradient, target, shares, strict=True))
        across, down = x[..., :-1, 1:] - x[..., :-1, :-1], x[..., 1:, :-1] - x[..., :-1, :-1]
        energy = 1 - product / (norm * target_norm) + size + 0.0002 * (across.square() + down.square()).square().mean()
        (g,) = torch.autograd.grad(energy, [x])
        with torch.no_grad():
            mean.lerp_(g, 0.1)
            square.mul_(0.999).addcmul_(g, g, value=0.001)
            scale = (square.sqrt() / math.sqrt(1 - 0.999**k)).add_(1e-8)
            x.addcdiv_(mean, scale, value=-0.1 / (1 - 0.9**k)).clamp_(low, high)
        del loss, gradient, product, norm, size, energy
        yield x.detach()
