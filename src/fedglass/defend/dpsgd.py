"""Differentially private SGD."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.errors import ModelError
from fedglass.core.registry import register
from fedglass.defend import checks
from fedglass.defend.noise import PAPER, example_gradients, noise_source, normal
from fedglass.fl.local import Step


@register("defences", "dpsgd", summary="examples' gradients clipped, Gaussian noise, in every local step", paper=PAPER)
@dataclass(frozen=True)
class DPSGD:
    """(sum_i g_i / max(1, ||g_i|| / C) + n) / B, n ~ N(0, (z C)^2 I) [Abadi et al., 2016, Algorithm 1].

    C is `clip`, z is `noise_multiplier`, B the size of the batch. Batches here are slices of a shuffled epoch, where
    the paper and the accountants draw each example independently; a short last batch is divided by its own size,
    where Opacus divides by the expected one. With `noise_multiplier=0` and a large clip it is plain SGD.
    """

    clip: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        checks.positive(self, "clip")
        checks.at_least_zero(self, "noise_multiplier")

    def gradient(self, step: Step) -> Sequence[Tensor]:
        generator = noise_source(step)
        total = [torch.zeros_like(w) for w in step.weights]
        for chunk in example_gradients(step):
            scale = (self.clip / _norms(chunk)).clamp(max=1.0)  # (chunk,)
            total = [t + torch.tensordot(scale, g, dims=1) for t, g in zip(total, chunk, strict=True)]
        std, size = self.noise_multiplier * self.clip, len(step.inputs)
        return [(t + std * normal(t, generator)) / size for t in total]


def _norms(chunk: Sequence[Tensor]) -> Tensor:
    """The L2 norm of each example's gradient over all parameters.  # (chunk, *shape) each -> (chunk,)"""
    layers = torch.stack([torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1) for g in chunk])  # (layers, chunk)
    norms: Tensor = torch.linalg.vector_norm(layers, dim=0)
    return norms


# Differentially private SGD on Poisson samples.


@register("defences", "dpsgd_poisson", summary="dpsgd whose every local step draws a Poisson sample", paper=PAPER)
@dataclass(frozen=True)
class PoissonDPSGD(DPSGD):
    """(sum_{i in S} g_i / max(1, ||g_i|| / C) + n) / (q B), n ~ N(0, (z C)^2 I) [Abadi et al., 2016, Algorithm 1].

    Each example of the batch is in S by itself with probability q, `sample_rate`, and B is the size of the batch, so
    that the sum is divided by the expected size of S, as Opacus does. Privacy gains by sampling only where the batch
    is all that the client has: leave training.batch_size out, and count with training.steps.
    """

    sample_rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive(self, "sample_rate")
        checks.closed_share(self, "sample_rate")

    def gradient(self, step: Step) -> Sequence[Tensor]:
        generator, count = noise_source(step), len(step.inputs)
        chosen = (torch.rand(count, generator=generator, device=generator.device) < self.sample_rate).to(
            step.inputs.device
        )
        expected, size = self.sample_rate * count, int(chosen.sum())
        if not size:
            std = self.noise_multiplier * self.clip / expected
            return [std * normal(w.detach(), generator) for w in step.weights]
        sampled = replace(step, inputs=step.inputs[chosen], targets=step.targets[chosen])
        return [g * (size / expected) for g in super().gradient(sampled)]


# Differentially private SGD without a gradient of each example: the same step, several times faster.


PLAIN = nn.Flatten | nn.ReLU | nn.Tanh | nn.Sigmoid | nn.MaxPool2d | nn.AvgPool2d | nn.Identity
"""Layers without parameters that look at every example alone."""


@dataclass(frozen=True, eq=False)
class Passed:
    """A layer with weights, what entered it, and what the losses' sum changes by with what left it."""

    layer: nn.Linear | nn.Conv2d
    entered: Tensor
    gradient: Tensor


@dataclass(frozen=True)
class GhostDPSGD:
    """`defend.dpsgd.DPSGD` up to rounding, with the same noise, in one backward pass over the whole batch.

    The gradient of an example's loss with respect to a dense layer is the product g_i a_i^T of what comes back and of
    what had entered, so that its norm is ||g_i|| ||a_i|| [Goodfellow, 2015, arXiv:1510.01799], and the clipped ones are
    summed as one product of matrices. Convolutions are dense layers on patches; theirs are small and are written out.
    Only for networks of dense layers and plain convolutions, each of which a pass goes through once.
    """

    clip: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        checks.positive(self, "clip")
        checks.at_least_zero(self, "noise_multiplier")

    def gradient(self, step: Step) -> Sequence[Tensor]:
        generator, std, size = noise_source(step), self.noise_multiplier * self.clip, len(step.inputs)
        total = clipped_sum(step, self.clip)
        return [(t + std * normal(t, generator)) / size for t in total]


def clipped_sum(step: Step, clip: float) -> list[Tensor]:
    """sum_i g_i / max(1, ||g_i|| / C), in the order of the step's weights."""
    passed = _passes(step)
    written = {name: _written_out(p) for name, p in passed.items() if isinstance(p.layer, nn.Conv2d)}
    squares = torch.zeros(len(step.inputs), dtype=step.inputs.dtype, device=step.inputs.device)
    for name, p in passed.items():
        if name in written:
            squares += written[name].square().sum((1, 2))
        else:
            squares += p.gradient.square().sum(1) * p.entered.square().sum(1)
        if p.layer.bias is not None:
            squares += _of_bias(p).square().sum(1)
    scale = (clip / squares.sqrt()).clamp(max=1.0)  # (b,)
    found: dict[str, Tensor] = {}
    for name, p in passed.items():
        if name in written:
            found[f"{name}.weight"] = torch.tensordot(scale, written[name], dims=1).view_as(p.layer.weight)
        else:
            found[f"{name}.weight"] = (scale[:, None] * p.gradient).T @ p.entered
        if p.layer.bias is not None:
            found[f"{name}.bias"] = scale @ _of_bias(p)
    return [found[name].detach() for name in step.network.names]


def _of_bias(passed: Passed) -> Tensor:
    """# (b, leaving)"""
    return passed.gradient.flatten(2).sum(2) if isinstance(passed.layer, nn.Conv2d) else passed.gradient


def _written_out(passed: Passed) -> Tensor:
    """The weight's gradient of each example.  # (b, leaving, entering)"""
    layer = passed.layer
    assert isinstance(layer, nn.Conv2d)
    padding = layer.padding
    assert not isinstance(padding, str)
    patches = F.unfold(passed.entered, layer.kernel_size, layer.dilation, padding, layer.stride)  # (b, entering, l)
    return passed.gradient.flatten(2) @ patches.mT


def _passes(step: Step) -> dict[str, Passed]:
    module = step.network._module
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}
    _refuse(module, layers, step.network.names)
    with torch.enable_grad(), _watched(layers) as seen:
        logits = step.network(step.weights, step.inputs)
        loss = step.loss(logits, step.targets) * len(step.inputs)  # the sum of the examples' own losses
    if sorted(name for name, _, _ in seen) != sorted(layers):
        raise ModelError("GhostDPSGD needs a network that goes through each of its layers once: choose DPSGD.")
    gradients = torch.autograd.grad(loss, [left for _, _, left in seen])
    return {
        name: Passed(layers[name], entered.detach(), gradient)
        for (name, entered, _), gradient in zip(seen, gradients, strict=True)
    }


@contextmanager
def _watched(layers: dict[str, nn.Linear | nn.Conv2d]) -> Iterator[list[tuple[str, Tensor, Tensor]]]:
    """What enters and leaves the layers, in the order in which they are gone through."""
    seen: list[tuple[str, Tensor, Tensor]] = []
    names = {layer: name for name, layer in layers.items()}

    def note(layer: nn.Module, entered: tuple[Tensor, ...], left: Tensor) -> None:
        seen.append((names[layer], entered[0], left))  # type: ignore[index]  # only these layers have the hook

    hooks = [layer.register_forward_hook(note) for layer in layers.values()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _refuse(module: nn.Module, layers: dict[str, nn.Linear | nn.Conv2d], names: Sequence[str]) -> None:
    """Layers in which an example's gradient is no such product, or examples are mixed."""
    known = {f"{name}.{part}" for name in layers for part in ("weight", "bias")}
    strange = [
        type(m).__name__
        for m in module.modules()
        if not list(m.children()) and not isinstance(m, PLAIN | nn.Linear | nn.Conv2d)
    ]
    strange += [name for name in names if name not in known]
    grouped = [layer for layer in layers.values() if isinstance(layer, nn.Conv2d) and _uneven(layer)]
    if strange or grouped:
        what = strange[0] if strange else "a grouped or named-padding convolution"
        raise ModelError(f"GhostDPSGD can not take a network with {what}: choose DPSGD.")


def _uneven(layer: nn.Conv2d) -> bool:
    return layer.groups != 1 or isinstance(layer.padding, str) or layer.padding_mode != "zeros"
