"""Differentially private SGD, in three forms: `DPSGD`, `PoissonDPSGD` and `GhostDPSGD`.

`DPSGD` clips the gradient of each example of a batch and adds Gaussian noise. `PoissonDPSGD` does so on a Poisson
sample of the batch. `GhostDPSGD` takes the same step as `DPSGD` several times faster, since it never computes the
gradients of the examples one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.errors import ModelError
from fedglass.core.identity import LATER
from fedglass.core.registry import register
from fedglass.defend.noise import ABADI, normal
from fedglass.defend.per_example import (
    Strength,
    check_at_least_zero,
    check_closed_share,
    check_positive,
    example_gradients,
    noise_source,
)
from fedglass.fl.local import Step
from fedglass.models.network import calls_of


@register("defences", "dpsgd", summary="examples' gradients clipped, Gaussian noise, in every local step", paper=ABADI)
@dataclass(frozen=True, repr=False)
class DPSGD:
    """(sum_i g_i / max(1, ||g_i|| / C) + n) / B, n ~ N(0, (z C)^2 I) [Abadi et al., 2016, Algorithm 1].

    C is `clip`, z is `noise_multiplier`, B the size of the batch. Batches here are slices of a shuffled epoch, where
    the paper and the accountants draw each example independently. With `noise_multiplier=0` and a large clip it is
    plain SGD.
    """

    clip: float
    noise_multiplier: float
    expected_batch_size: float | None = field(default=None, kw_only=True, metadata=LATER)
    """What every sum is divided by, in place of the size of its own batch: Opacus does so."""
    strength: ClassVar = Strength("noise_multiplier", 0.1, 100.0)

    def __post_init__(self) -> None:
        check_positive(self, "clip")
        check_at_least_zero(self, "noise_multiplier")
        if self.expected_batch_size is not None:
            check_positive(self, "expected_batch_size")

    def __repr__(self) -> str:
        """Return the part as records name it; the expected size is printed only where it is set."""
        printed = ((f.name, getattr(self, f.name)) for f in fields(self))
        return (
            f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in printed if value is not None)})"
        )

    def gradient(self, step: Step) -> Sequence[Tensor]:
        return self.noisy_mean(step, self.divisor(len(step.inputs)))

    def noisy_mean(self, step: Step, divisor: float) -> list[Tensor]:
        """Return the noisy sum over the step's examples, divided."""
        generator, std = noise_source(step), self.noise_multiplier * self.clip
        return [(t + std * normal(t, generator)) / divisor for t in self.clipped_sum(step)]

    def divisor(self, size: int) -> float:
        """Return what the sum over a batch of this size is divided by."""
        return size if self.expected_batch_size is None else self.expected_batch_size

    def clipped_sum(self, step: Step) -> list[Tensor]:
        """Return sum_i g_i / max(1, ||g_i|| / C), in the order of the step's weights."""
        return self._clipped(example_gradients(step), [torch.zeros_like(w) for w in step.weights])

    def _clipped(self, chunks: Iterable[Sequence[Tensor]], total: list[Tensor]) -> list[Tensor]:
        """Return the total with the gradients of these chunks added, each clipped."""
        for chunk in chunks:
            scale = (self.clip / _norms(chunk)).clamp(max=1.0)  # (chunk,)
            total = [t + torch.tensordot(scale, g, dims=1) for t, g in zip(total, chunk, strict=True)]
        return total


def _norms(chunk: Sequence[Tensor]) -> Tensor:
    """Return the L2 norm of each example's gradient over all parameters.  # (chunk, *shape) each -> (chunk,)"""
    layers = torch.stack([torch.linalg.vector_norm(g.reshape(len(g), -1), dim=1) for g in chunk])  # (layers, chunk)
    norms: Tensor = torch.linalg.vector_norm(layers, dim=0)
    return norms


@register("defences", "dpsgd_poisson", summary="dpsgd whose every local step draws a Poisson sample", paper=ABADI)
@dataclass(frozen=True, repr=False)
class PoissonDPSGD(DPSGD):
    """(sum_{i in S} g_i / max(1, ||g_i|| / C) + n) / (q B), n ~ N(0, (z C)^2 I) [Abadi et al., 2016, Algorithm 1].

    Each example of the batch is in S by itself with probability q, `sample_rate`, and B is the size of the batch, so
    that the sum is divided by the expected size of S. Privacy gains by sampling only where the batch is all that the
    client has: leave training.batch_size out, and count with training.steps.
    """

    sample_rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "sample_rate")
        check_closed_share(self, "sample_rate")

    def gradient(self, step: Step) -> Sequence[Tensor]:
        generator, count = noise_source(step), len(step.inputs)
        chosen = (torch.rand(count, generator=generator, device=generator.device) < self.sample_rate).to(
            step.inputs.device
        )
        expected = self.divisor(count)
        canaries = None if step.canaries is None else step.canaries.sampled(self.sample_rate, generator)
        if canaries is None and not bool(chosen.any()):
            std = self.noise_multiplier * self.clip / expected
            return [std * normal(w.detach(), generator) for w in step.weights]
        sampled = replace(step, inputs=step.inputs[chosen], targets=step.targets[chosen], canaries=canaries)
        return self.noisy_mean(sampled, expected)

    def divisor(self, size: int) -> float:
        return self.sample_rate * size if self.expected_batch_size is None else self.expected_batch_size


PARAMETER_FREE = nn.Flatten | nn.ReLU | nn.Tanh | nn.Sigmoid | nn.MaxPool2d | nn.AvgPool2d | nn.Identity
"""Layers without parameters that treat every example separately."""


LayerPass = tuple[nn.Linear | nn.Conv2d, Tensor, Tensor]
"""A layer with weights, its input, and the gradient of the summed losses with respect to its output."""


@dataclass(frozen=True, repr=False)
class GhostDPSGD(DPSGD):
    """`defend.dpsgd.DPSGD` up to rounding, with the same noise, in one backward pass over the whole batch.

    The gradient of an example's loss with respect to a dense layer is g_i a_i^T, the product of the gradient at its
    output and of its input. Its norm is therefore ||g_i|| ||a_i|| [Goodfellow, 2015, arXiv:1510.01799], and the clipped
    gradients are summed as one product of matrices. Convolutions are dense layers on patches; their gradients are small
    and are computed for each example. The network may have only dense layers and plain convolutions, each used once in
    a pass.
    """

    def clipped_sum(self, step: Step) -> list[Tensor]:
        passes = _passes(step)
        by_example = {  # gradients of the convolutions' weights
            name: _convolution_gradients(layer, inputs, gradient)
            for name, (layer, inputs, gradient) in passes.items()
            if isinstance(layer, nn.Conv2d)
        }
        squares = torch.zeros(len(step.inputs), dtype=step.inputs.dtype, device=step.inputs.device)
        for name, (layer, inputs, gradient) in passes.items():
            if name in by_example:
                squares += by_example[name].square().sum((1, 2))
            else:
                squares += gradient.square().sum(1) * inputs.square().sum(1)
            if layer.bias is not None:
                squares += _bias_gradients(layer, gradient).square().sum(1)
        scale = (self.clip / squares.sqrt()).clamp(max=1.0)  # (b,)
        total: dict[str, Tensor] = {}
        for name, (layer, inputs, gradient) in passes.items():
            if name in by_example:
                total[f"{name}.weight"] = torch.tensordot(scale, by_example[name], dims=1).view_as(layer.weight)
            else:
                total[f"{name}.weight"] = (scale[:, None] * gradient).T @ inputs
            if layer.bias is not None:
                total[f"{name}.bias"] = scale @ _bias_gradients(layer, gradient)
        canaries = () if step.canaries is None else step.canaries.gradients(step)
        return self._clipped(canaries, [total[name].detach() for name in step.network.names])


def _bias_gradients(layer: nn.Module, gradient: Tensor) -> Tensor:
    """Return the gradient of the bias, of each example.  # (b, outputs)"""
    return gradient.flatten(2).sum(2) if isinstance(layer, nn.Conv2d) else gradient


def _convolution_gradients(layer: nn.Conv2d, inputs: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of a convolution's weight, of each example.  # (b, outputs, patch)"""
    assert not isinstance(layer.padding, str), "refused before"
    patches = F.unfold(inputs, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # (b, patch, l)
    return gradient.flatten(2) @ patches.mT


def _passes(step: Step) -> dict[str, LayerPass]:
    """Run the network forwards and backwards once, and return the pass of each layer by the layer's name."""
    module = step.network._module
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}
    _refuse(module, layers, step.network.names)
    with torch.enable_grad(), calls_of(layers) as calls:
        logits = step.network(step.weights, step.inputs)
        loss = step.sum_of_losses(logits)
    if sorted(name for name, _, _ in calls) != sorted(layers):
        raise ModelError("GhostDPSGD needs a network that goes through each of its layers once: choose DPSGD.")
    gradients = torch.autograd.grad(loss, [outputs for _, _, outputs in calls])
    return {
        name: (layers[name], inputs.detach(), gradient)
        for (name, inputs, _), gradient in zip(calls, gradients, strict=True)
    }


def _refuse(module: nn.Module, layers: dict[str, nn.Linear | nn.Conv2d], names: Sequence[str]) -> None:
    """Refuse layers that mix examples, or that have gradients of another form than such products."""

    def plain(layer: nn.Conv2d) -> bool:
        return layer.groups == 1 and not isinstance(layer.padding, str) and layer.padding_mode == "zeros"

    expected = {f"{name}.{part}" for name in layers for part in ("weight", "bias")}
    unsupported = [
        type(m).__name__
        for m in module.modules()
        if not list(m.children()) and not isinstance(m, PARAMETER_FREE | nn.Linear | nn.Conv2d)
    ]
    unsupported += [name for name in names if name not in expected]
    grouped = [layer for layer in layers.values() if isinstance(layer, nn.Conv2d) and not plain(layer)]
    if unsupported or grouped:
        what = unsupported[0] if unsupported else "a grouped or named-padding convolution"
        raise ModelError(f"GhostDPSGD does not support a network with {what}: choose DPSGD.")
