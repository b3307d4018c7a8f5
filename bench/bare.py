"""Hand-written inversion loops without any abstraction: what the attacks' loops are measured against."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedglass.core.types import Observation

Energy = Callable[[Tensor, Sequence[Tensor]], Tensor]
"""Of the images and the flat gradients that they give."""


def steps(observation: Observation) -> Iterator[Tensor]:
    """Inverting Gradients: cosine distance plus total variation, signed Adam at 0.1, projection onto the bounds."""
    target = [-update.flatten() for update in observation.update.values()]
    target_norm = _norm(target)

    def energy(x: Tensor, gradient: Sequence[Tensor]) -> Tensor:
        product = sum(g.dot(t) for g, t in zip(gradient, target, strict=True))
        norm = torch.sqrt(sum((g.dot(g) for g in gradient), torch.zeros(())))
        variation = (x[..., 1:] - x[..., :-1]).abs().mean() + (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
        return 1 - product / (norm * target_norm) + 0.01 * variation

    return _descend(observation, energy, torch.sign)


def fine_steps(observation: Observation) -> Iterator[Tensor]:
    """The second stage of coarse-to-fine: cosine, the size of each entry, squared total variation; Adam at 0.1."""
    training = observation.knows.training
    assert training is not None, "the federations that are measured state it"
    target = [-update.flatten() / training.lr for update in observation.update.values()]
    shares = [1 / ((1 + t.abs()) * len(target)) for t in target]
    target_norm = _norm(target)
    deviation = torch.tensor(observation.knows.whitening.std).view(-1, 1, 1)

    def energy(x: Tensor, gradient: Sequence[Tensor]) -> Tensor:
        product = sum(g.dot(t) for g, t in zip(gradient, target, strict=True))
        norm = torch.sqrt(sum((g.dot(g) for g in gradient), torch.zeros(())))
        size = sum((g - t).abs().dot(w) for g, t, w in zip(gradient, target, shares, strict=True))
        pixels = x * deviation
        across = pixels[..., :-1, 1:] - pixels[..., :-1, :-1]
        down = pixels[..., 1:, :-1] - pixels[..., :-1, :-1]
        variation = (across.square() + down.square()).square().sum() / len(x)
        return 1 - product / (norm * target_norm) + size + 0.0002 * variation

    return _descend(observation, energy, lambda g: g)


def super_client_steps(observation: Observation) -> Iterator[Tensor]:
    """The curious client as released: tau whole batches in one graph, squared error, bicubic x4, Adam at 0.1."""
    knows, training = observation.knows, observation.knows.training
    assert training is not None, "the federations that are measured state it"
    model = copy.deepcopy(observation.model).eval()
    start = {name: w.clone().requires_grad_() for name, w in observation.before.items()}
    target = [-update / training.lr for update in observation.update.values()]
    channels, height, width = knows.shape
    small = torch.rand(
        knows.examples, channels, height // 4, width // 4, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    assert knows.labels is not None, "the federations that are measured state it"
    mean, square = torch.zeros_like(small), torch.zeros_like(small)
    k = 0
    while True:
        k += 1
        x = F.interpolate(small, scale_factor=4, mode="bicubic")
        weights = start
        for _ in range(training.epochs):
            loss = F.cross_entropy(torch.func.functional_call(model, weights, (x,)), knows.labels)
            gradient = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {name: w - training.lr * g for (name, w), g in zip(weights.items(), gradient, strict=True)}
        ends = zip(start.values(), weights.values(), target, strict=True)
        value = torch.stack([((w - v) / training.lr - t).square().sum() for w, v, t in ends]).sum()
        (g,) = torch.autograd.grad(value, [small])
        with torch.no_grad():
            mean.lerp_(g, 0.1)
            square.mul_(0.999).addcmul_(g, g, value=0.001)
            scale = (square.sqrt() / math.sqrt(1 - 0.999**k)).add_(1e-8)
            small.addcdiv_(mean, scale, value=-0.1 / (1 - 0.9**k))
        del x, loss, gradient, weights, ends, value  # as a loop's next turn would: no graph is kept
        yield small.detach()


def _descend(observation: Observation, energy: Energy, fed: Callable[[Tensor], Tensor]) -> Iterator[Tensor]:
    """Yields the images, whitened, after each iteration, without end."""
    knows = observation.knows
    model = copy.deepcopy(observation.model).eval()
    model.load_state_dict({**observation.before, **observation.buffers})
    weights = list(model.parameters())
    low, high = knows.bounds()
    assert knows.labels is not None, "the federations that are measured state it"
    x = torch.randn(knows.examples, *knows.shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    mean, square = torch.zeros_like(x), torch.zeros_like(x)
    k = 0
    while True:
        k += 1
        loss = F.cross_entropy(model(x), knows.labels)
        gradient = [g.flatten() for g in torch.autograd.grad(loss, weights, create_graph=True)]
        value = energy(x, gradient)
        (g,) = torch.autograd.grad(value, [x])
        with torch.no_grad():
            g = fed(g)
            mean.lerp_(g, 0.1)
            square.mul_(0.999).addcmul_(g, g, value=0.001)
            scale = (square.sqrt() / math.sqrt(1 - 0.999**k)).add_(1e-8)
            x.addcdiv_(mean, scale, value=-0.1 / (1 - 0.9**k)).clamp_(low, high)
        del loss, gradient, value  # as a loop's next turn would: no graph is kept
        yield x.detach()


def _norm(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(t.dot(t)) for t in tensors))
