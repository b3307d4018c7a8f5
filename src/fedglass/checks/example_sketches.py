"""Sketches of the gradients of many examples at the same weights: too many to keep, so that each is read once.

The inputs of a layer and the gradients of its outputs give the gradients of all examples of a batch in one backward
pass [Goodfellow, 2015, arXiv:1510.01799]. Each is kept as a sketch: random signs, and the sums of the entries that fall
into the same of some thousand places [Charikar, Chen and Farach-Colton, 2002]. Sketches are linear, and their products
are those of the gradients up to the root of the number of places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight
from torch.nn.modules.batchnorm import _BatchNorm

from fedglass.core.losses import Loss
from fedglass.core.rng import stream
from fedglass.core.tensors import Params
from fedglass.core.thresholds import GRADIENTS_AGREE
from fedglass.defend.per_example import example_gradients
from fedglass.fl.local import MeanGradient, Step
from fedglass.models.network import Network, calls_of

PLACES = 8192
"""Length of a sketch: measured on CIFAR-10, twice as many names no more records; fewer entries are kept as they are."""
AT_ONCE = 32
"""Examples in one backward pass, and in the batch whose statistics a BatchNorm layer in batch mode uses."""
MOST_GROUPS = 16
"""Groups of rows into which a dense layer is summed, at most: each is one product of matrices."""

_Layer = nn.Linear | nn.Conv2d | _BatchNorm | nn.GroupNorm | nn.LayerNorm


@dataclass(frozen=True, eq=False)
class _Outer:
    """Gradients of a dense layer's weight, left as the products that they are."""

    back: Tensor  # (b, leaving)
    entered: Tensor  # (b, entering)


_Found = Tensor | _Outer
"""The gradients of one parameter.  # (b, *shape)"""


class Reader:
    """Reads the gradient of each example's own loss, in the order of `network.names`.

    Gradients are computed where the weights are; sketches and products come back to the CPU.

    With the statistics of the batch (`BatchNorm.BATCH`) it is the example's part of the gradient of its batch, in which
    it is among other examples that are read.
    """

    def __init__(
        self,
        network: Network,
        before: Params,
        smoothing: float = 0.0,
        moved: Params | None = None,
        objective: Loss | None = None,
    ) -> None:
        """`moved` is 1 at the entries that count, and 0 elsewhere."""
        self.network, self.smoothing, self.objective = network, smoothing, objective
        self.weights = [before[name].detach().float() for name in network.names]
        signs = stream(0, "sketch")
        self._signs = [
            (torch.randint(0, 2, w.shape, generator=signs).float() * 2 - 1).to(w)
            * (1.0 if moved is None else moved[name].to(w))
            for name, w in zip(network.names, self.weights, strict=True)
        ]
        self.places = min(PLACES, sum(w.numel() for w in self.weights))
        self.entries = sum(int(signs.count_nonzero()) for signs in self._signs)
        self._by_layers: bool | None = None

    @property
    def mixes(self) -> bool:
        """True where the network normalises with the statistics of the batch."""
        return any(isinstance(m, _BatchNorm) and m.running_mean is None for m in self.network._module.modules())

    def read(self, inputs: Tensor, labels: Tensor, along: Sequence[Sequence[Tensor]] = ()) -> tuple[Tensor, Tensor]:
        """Return the sketches and the exact products with some vectors.  # (b, places), (b, vectors)"""
        sketches, products = [torch.zeros(0, self.places)], [torch.zeros(0, len(along))]
        for gradients in self._gradients(inputs, labels):
            sketches.append(self._sketched(gradients).cpu())
            by_vector = [_products(gradients, vector) for vector in along]
            products.append(torch.stack(by_vector, 1) if by_vector else torch.zeros(len(sketches[-1]), 0))
        return torch.cat(sketches), torch.cat(products)

    def can_read(self, inputs: Tensor, labels: Tensor) -> bool:
        """Return whether examples have gradients to read: with the statistics of a batch, its layers must tell them."""
        self._by_layers = self._agrees(self._step(inputs, labels))
        return self._by_layers or not self.mixes

    def kept(self, update: Params) -> list[Tensor]:
        """Return the entries of an update that count, in the order of `network.names`."""
        named = zip(self.network.names, self._signs, strict=True)
        return [update[name].detach().to(signs) * signs.abs() for name, signs in named]

    def sketch(self, update: Sequence[Tensor]) -> Tensor:
        """Return the sketch of an update, in the order of `network.names`.  # (places,)"""
        return self._sketched([tensor[None] for tensor in update])[0].cpu()

    def weighted_sum(self, inputs: Tensor, labels: Tensor, shares: Tensor) -> list[Tensor]:
        """Return the sum of the gradients, each times its share, at the entries that count."""
        total, first = [torch.zeros_like(w) for w in self.weights], 0
        for gradients in self._gradients(inputs, labels):
            size = len(gradients[0].back if isinstance(gradients[0], _Outer) else gradients[0])
            some = shares[first : first + size].to(total[0])
            first += size
            total = [t + _summed(g, some).view_as(t) for t, g in zip(total, gradients, strict=True)]
        return [t * s.abs() for t, s in zip(total, self._signs, strict=True)]

    def _sketched(self, gradients: Sequence[_Found]) -> Tensor:
        """Fold one tensor after the other around the places.  # (b, places)"""
        parts, at = list[Tensor](), 0
        for gradient, signs in zip(gradients, self._signs, strict=True):
            flat = _signed(gradient, signs, self.places)
            folded = F.pad(flat, (0, -flat.shape[1] % self.places)).view(len(flat), -1, self.places).sum(1)
            parts.append(folded.roll(at, dims=1))
            at += flat.shape[1]
        return torch.stack(parts).sum(0)

    def _gradients(self, inputs: Tensor, labels: Tensor) -> Iterator[list[_Found]]:
        for first in range(0, len(labels), AT_ONCE):
            step = self._step(inputs[first : first + AT_ONCE], labels[first : first + AT_ONCE])
            if self._by_layers is None:
                self._by_layers = self._agrees(step)
            if self._by_layers:
                yield _by_layers(step)
            else:
                for chunk in example_gradients(step):
                    yield [*chunk]

    def _step(self, inputs: Tensor, labels: Tensor) -> Step:
        device = self.weights[0].device
        inputs, labels = inputs.to(device), labels.to(device)
        return Step(self.network, self.weights, inputs, labels, smoothing=self.smoothing, objective=self.objective)

    def _agrees(self, step: Step) -> bool:
        """Return whether the layers give all gradients; else they are computed by example, several times as slowly."""
        module = self.network._module
        covered = {f"{name}.{part}".lstrip(".") for name in _layers(module) for part in ("weight", "bias")}
        if not covered.issuperset(self.network.names):
            return False
        try:
            gradients = _by_layers(step)
        except RuntimeError:  # such as what a layer returned was overwritten
            return False
        ones = torch.full((len(step.targets),), 1 / len(step.targets), device=step.inputs.device)
        with torch.enable_grad():
            leaves = [w.requires_grad_() for w in (w.clone() for w in self.weights)]
            batch_gradient = MeanGradient().gradient(replace(step, weights=leaves))
        size = torch.stack([w.norm() for w in batch_gradient]).norm()
        gap = torch.stack(
            [(_summed(g, ones).view_as(w) - w).norm() for g, w in zip(gradients, batch_gradient, strict=True)]
        ).norm()
        return bool(gap <= GRADIENTS_AGREE * size)


def _signed(gradient: _Found, signs: Tensor, places: int) -> Tensor:
    """Return the gradients times the signs; rows of large matrices are summed in groups.  # (b, entries)"""
    if signs.dim() != 2 or signs.numel() <= places:
        written = gradient.back[:, :, None] * gradient.entered[:, None, :] if isinstance(gradient, _Outer) else gradient
        return written.reshape(len(written), -1) * signs.flatten()
    groups = max(1, min(MOST_GROUPS, places // signs.shape[1], signs.shape[0]))
    if isinstance(gradient, _Outer):
        summed = [gradient.back[:, i::groups] @ signs[i::groups] * gradient.entered for i in range(groups)]
    else:
        summed = [(gradient[:, i::groups] * signs[i::groups]).sum(1) for i in range(groups)]
    return torch.cat(summed, dim=1)


def _products(gradients: Sequence[_Found], along: Sequence[Tensor]) -> Tensor:
    """Return the product of each gradient with an update.  # (b,)"""
    parts = [
        (g.back @ u * g.entered).sum(1) if isinstance(g, _Outer) else g.reshape(len(g), -1) @ u.flatten()
        for g, u in zip(gradients, along, strict=True)
    ]
    return torch.stack([part.cpu().double() for part in parts]).sum(0)


def _summed(gradient: _Found, shares: Tensor) -> Tensor:
    if isinstance(gradient, _Outer):
        return (shares[:, None] * gradient.back).T @ gradient.entered
    return (shares @ gradient.reshape(len(gradient), -1)).view(gradient.shape[1:])


def _layers(module: nn.Module) -> dict[str, _Layer]:
    """Return the layers that have a gradient in closed form."""
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, _Layer)
        and layer._parameters.get("weight") is not None
        and not (isinstance(layer, nn.Conv2d) and (isinstance(layer.padding, str) or layer.padding_mode != "zeros"))
    }


def _by_layers(step: Step) -> list[_Found]:
    """Return the gradients of the examples' losses, from the inputs of each layer and the gradients of its outputs."""
    layers = _layers(step.network._module)
    with torch.enable_grad(), calls_of(layers) as passes, ExitStack() as hooks:
        for layer in layers.values():  # the network may overwrite these copies, not the outputs
            hooks.enter_context(layer.register_forward_hook(lambda module, entered, output: output.clone()))
        logits = step.network(step.weights, step.inputs.detach().requires_grad_())
        loss = step.loss(logits, step.targets) * len(step.targets)
    if sorted(name for name, _, _ in passes) != sorted(layers):
        raise RuntimeError("a layer is not gone through once")
    back = torch.autograd.grad(loss, [output for _, _, output in passes])
    gradients: dict[str, _Found] = {}
    for (name, entered, _), gradient in zip(passes, back, strict=True):
        parts = _of_layer(layers[name], entered.detach(), gradient)
        gradients.update({f"{name}.{part}".lstrip("."): value for part, value in parts.items()})
    return [gradients[name] for name in step.network.names]


def _of_layer(layer: _Layer, entered: Tensor, back: Tensor) -> dict[str, _Found]:
    if isinstance(layer, nn.Linear):
        if back.dim() == 2:
            return {"weight": _Outer(back, entered), "bias": back}
        back, entered = back.flatten(1, -2), entered.flatten(1, -2)
        return {"weight": back.mT @ entered, "bias": back.sum(1)}
    if isinstance(layer, nn.Conv2d):
        return {"weight": _of_convolution(layer, entered, back), "bias": back.flatten(2).sum(2)}
    if isinstance(layer, nn.LayerNorm):
        over = tuple(range(1, back.dim() - len(layer.normalized_shape)))
        parts = F.layer_norm(entered, layer.normalized_shape, eps=layer.eps) * back, back
        return {name: part.sum(over) if over else part for name, part in zip(("weight", "bias"), parts, strict=True)}
    parts = _normalised(layer, entered) * back, back
    # Of channels alone, as a dense layer leaves them, there is nothing to sum over.
    return {
        name: part.flatten(2).sum(2) if part.dim() > 2 else part
        for name, part in zip(("weight", "bias"), parts, strict=True)
    }


def _normalised(layer: _BatchNorm | nn.GroupNorm, entered: Tensor) -> Tensor:
    if isinstance(layer, nn.GroupNorm):
        return F.group_norm(entered, layer.num_groups, eps=layer.eps)
    mean, variance = layer.running_mean, layer.running_var
    return F.batch_norm(entered, mean, variance, training=mean is None, eps=layer.eps)


def _of_convolution(layer: nn.Conv2d, entered: Tensor, back: Tensor) -> Tensor:
    """Return the weight gradients by one convolution with a group for each example.

    It is two to four times faster than products of patches.

    # (b, leaving, entering / groups, height, width)
    """
    size, shape = len(back), layer.weight.shape
    gradients: Tensor = conv2d_weight(  # type: ignore[no-untyped-call]
        entered.reshape(1, -1, *entered.shape[2:]),
        (size * shape[0], *shape[1:]),
        back.reshape(1, -1, *back.shape[2:]),
        layer.stride,
        layer.padding,
        layer.dilation,
        size * layer.groups,
    )
    return gradients.view(size, *shape)
