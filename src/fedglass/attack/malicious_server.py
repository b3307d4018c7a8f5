"""Models that a malicious server crafts so that the updates to them show single examples.

A crafted model replaces the weights of a network, and may put a block of two dense layers in front of it. The server
chooses its numbers from public images, never from those of its clients. `MaliciousServer` is such a model together with
the attack that reads the update to it.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedglass.attack.attack import check_counted
from fedglass.attack.best_of import AnyAttack
from fedglass.attack.exact.dense import DenseUpdate, first_dense
from fedglass.attack.exact.exact import FOUND_NOTHING, first_message, nothing_read, replay_residual
from fedglass.attack.exact.update_matrix import row_ratios
from fedglass.attack.exact.verify import as_images, within_bounds
from fedglass.attack.forward.target import like
from fedglass.attack.labels.given import fixed_labels
from fedglass.attack.parts import Bound, Progress, no_progress
from fedglass.core.errors import UsageError, check_at_least
from fedglass.core.rng import stream
from fedglass.core.types import Observation, Reconstruction, Whitening
from fedglass.models.names import hold_fixed
from fedglass.models.network import network, title_of

SCALE_STEPS = 30
"""Bisections of the scale of trap weights: more than single precision resolves."""


@dataclass(frozen=True, eq=False)
class PublicSample:
    """Public images that a malicious server has, and the normalisation that its clients apply to theirs."""

    images: Tensor  # (n, c, h, w), pixels in [0, 1]
    whitening: Whitening

    @property
    def inputs(self) -> Tensor:
        """The inputs of a network for these images.  # (n, c, h, w)"""
        return self.whitening.whiten(self.images)


@dataclass(frozen=True)
class MaliciousServer:
    """A model that the server sends, and the attack that reads the update to it."""

    sends: CraftedModel
    reads: AnyAttack

    def check(self, observation: Observation) -> None:
        self.reads.check(observation)

    def run(self, observation: Observation, seed: int = 0, progress: Progress = no_progress) -> Reconstruction:
        return self.reads.run(observation, seed, progress)

    def energy_of(self, observation: Observation, pixels: Tensor, labels: Tensor, like: Reconstruction) -> float:
        return self.reads.energy_of(observation, pixels, labels, like)

    def shortened(self, share: float) -> MaliciousServer:
        return replace(self, reads=self.reads.shortened(share))


def front_layers(model: nn.Module, inputs: Tensor) -> tuple[nn.Linear, nn.Linear] | None:
    """Return the dense layer that takes the inputs as they are and, behind a ReLU, the next one; None if there is none.

    # inputs (n, c, h, w)
    """
    leaves = [layer for layer in model.modules() if not list(layer.children())]
    leaves = [layer for layer in leaves if not isinstance(layer, nn.Flatten | nn.Identity)]
    if len(leaves) < 3 or not isinstance(first := leaves[0], nn.Linear) or not isinstance(leaves[1], nn.ReLU):
        return None
    second, takes_pixels = leaves[2], first.in_features == inputs[0].numel() and first.bias is not None
    return (first, second) if isinstance(second, nn.Linear) and takes_pixels else None


def _with_front(model: nn.Module, public: PublicSample, units: int) -> tuple[nn.Module, nn.Linear, nn.Linear]:
    """Return a copy of the model with its first two dense layers, behind an added block where it has none.

    The block is two dense layers with ReLU between them; it takes images and gives images of the same shape.
    """
    crafted = copy.deepcopy(model)
    layers = front_layers(crafted, public.inputs[:1])
    if layers is not None:
        return crafted, *layers
    shape, pixels = tuple(public.images.shape[1:]), public.images[0].numel()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, second = nn.Linear(pixels, units), nn.Linear(units, pixels)
    block = {"flat": nn.Flatten(), "first": first, "relu": nn.ReLU(), "second": second, "image": nn.Unflatten(1, shape)}
    return network(f"{title_of(model)} behind an added block", **block, model=crafted), first, second


def imprint_rows(direction: Tensor, values: Tensor, rows: int, gain: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return rows that all measure h(x) = direction . x, and biases that are the quantiles of h [Fowl et al., 2022].

    The first row fires for every input.  # direction (d,), values (n,) of h on public inputs -> (rows, d), (rows,)
    """
    levels = torch.linspace(0, 1, rows + 1, dtype=values.dtype)[:-1]
    cuts = torch.quantile(values, levels)
    cuts[0] = values.min() - 3 * values.std()
    return gain * direction.expand(rows, -1).clone(), -gain * cuts


@dataclass(frozen=True)
class Imprint:
    """Rows of a first dense layer that measure the mean input h(x), with the quantiles of h as biases.

    Only examples with h between two neighbouring quantiles move one of two rows and not the other [Fowl et al., 2022,
    Sec. 4]. All columns of the next layer are the same, so that each example moves all rows that fire alike.
    """

    bins: int = 256
    """Units of the added block; a network that begins with a dense layer and ReLU uses all units of that layer."""

    def __post_init__(self) -> None:
        check_at_least("imprint.bins", self.bins, 2)

    def craft(self, model: nn.Module, public: PublicSample) -> nn.Module:
        """Return a crafted copy of the model."""
        crafted, first, second = _with_front(model, public, self.bins)
        inputs, units = public.inputs.flatten(1), first.out_features
        direction = torch.full_like(inputs[0], 1 / inputs.shape[1])
        values = inputs @ direction
        # With this gain the sum over all units has about the size of an input.
        gain = 1 / (units * float(values.std().clamp(min=1e-6)))
        weight, bias = imprint_rows(direction, values, units, gain)
        with torch.no_grad():
            first.weight.copy_(weight)
            first.bias.copy_(bias)
            column = torch.randn(second.out_features, 1, generator=stream(0, "imprint", "column"))
            second.weight.copy_(column.expand_as(second.weight))
        return crafted


def trap_rows(rows: int, pixels: int, scale: float, generator: torch.Generator) -> Tensor:
    """Return rows with a random half of their weights negative, the others `scale` times as large.

    [Boenisch et al., 2023, Alg. 1]  # (rows, pixels)
    """
    half = pixels // 2
    sizes = torch.randn(rows, half, generator=generator).abs() / math.sqrt(pixels)
    signed = torch.cat([-sizes, scale * sizes, torch.zeros(rows, pixels - 2 * half)], 1)
    order = torch.rand(rows, pixels, generator=generator).argsort(1)
    return signed.gather(1, order)


@dataclass(frozen=True)
class TrapWeights:
    """Rows of a first dense layer with half of their weights negative and slightly larger than the others.

    Few images fire a unit; a row that one image alone has moved is that image [Boenisch et al., 2023, Sec. 5]. The
    factor between both halves is the one at which a unit fires for `rate` of the public images. The paper tunes it on
    auxiliary data too.
    """

    rate: float = 0.05
    units: int = 512
    """Units of the added block; a network that begins with a dense layer and ReLU uses all units of that layer."""
    gain: float = 1.0
    """Factor of the added block's second layer: a larger one lifts the gradients in front of it above rounding."""

    def __post_init__(self) -> None:
        if not 0 < self.rate < 0.5 or self.units < 2 or not 0 < self.gain < math.inf:
            raise UsageError(
                f"trap_weights.rate must be above 0 and below 0.5, units at least 2 and gain above 0, got {self.rate}, "
                f"{self.units} and {self.gain}."
            )

    def craft(self, model: nn.Module, public: PublicSample) -> nn.Module:
        crafted, first, second = _with_front(model, public, self.units)
        pixels = public.images.flatten(1)

        def rows(scale: float) -> Tensor:
            return trap_rows(first.out_features, pixels.shape[1], scale, stream(0, "trap weights"))

        low, high = 0.0, 1.0
        for _ in range(SCALE_STEPS):
            scale = (low + high) / 2
            fires = float((pixels @ rows(scale).T > 0).float().mean())
            low, high = (scale, high) if fires < self.rate else (low, scale)
        weight = rows(scale)
        # Weights of pixels p become weights of inputs (p - mean) / std.
        mean, std = (public.whitening.unwhiten(torch.full_like(public.images[:1], v)).flatten() for v in (0.0, 1.0))
        with torch.no_grad():
            first.weight.copy_(weight * (std - mean))
            first.bias.copy_(weight @ mean)
            if front_layers(model, public.inputs[:1]) is None:  # the second layer is that of an added block
                second.weight.mul_(self.gain)
        return crafted


@dataclass(frozen=True)
class Fishing:
    """A last layer through which the examples of one class alone move the rest of the network.

    The rows of the other classes are zero and their biases equal and large: the gradient of the other classes' examples
    vanishes in front of the last layer [Wen et al., 2022, Sec. 3.1].
    """

    target: int = 0
    bias: float = 1000.0

    def craft(self, model: nn.Module, public: PublicSample) -> nn.Module:
        crafted = copy.deepcopy(model)
        last = last_dense(crafted)
        if last is None or last.bias is None or not 0 <= self.target < last.out_features:
            raise UsageError(
                f"fishing needs a network that ends in a dense layer with a bias and a class {self.target}: choose "
                "another model or target."
            )
        with torch.no_grad():
            row = last.weight[self.target].clone()
            last.weight.zero_()
            last.weight[self.target] = row
            last.bias.fill_(self.bias)
            last.bias[self.target] = 0.0
        return crafted


CraftedModel = Imprint | TrapWeights | Fishing
"""A model that a malicious server sends in place of an honest one."""


def last_dense(model: nn.Module) -> nn.Linear | None:
    """Return the last dense layer of a network; None if it has none."""
    return next((layer for layer in reversed(list(model.modules())) if isinstance(layer, nn.Linear)), None)


# What the server reads of the updates to these models.


@dataclass(frozen=True)
class BinReading:
    """One image for each bin of an imprint that holds one example: differences of neighbouring rows' updates.

    In bin i the image is (U_i - U_{i+1}) / (v_i - v_{i+1}), with the updates U and v of weight and bias
    [Fowl et al., 2022, Eq. 5]. A bin with several examples gives a mixture of them.
    """

    def check(self, observation: Observation) -> None:
        check_counted(observation)

    def run(self, observation: Observation, seed: int = 0, progress: Progress = no_progress) -> Reconstruction:
        knows, layer = observation.knows, first_dense(first_message(observation))
        inputs = torch.zeros(0, math.prod(knows.shape)) if isinstance(layer, str) else _bin_inputs(layer)
        images = as_images(knows, inputs[within_bounds(knows, inputs)][: knows.examples])
        if not len(images):
            return nothing_read(observation, {"bins": layer if isinstance(layer, str) else FOUND_NOTHING})
        return Reconstruction(images, torch.full((len(images),), -1), math.inf, method="bins")

    def energy_of(self, observation: Observation, pixels: Tensor, labels: Tensor, like: Reconstruction) -> float:
        """Return the residual that these images leave; infinite if the training cannot be replayed."""
        return replay_residual(observation, pixels, labels)

    def shortened(self, share: float) -> BinReading:
        return self


def _bin_inputs(layer: DenseUpdate) -> Tensor:
    """Return the inputs of the bins that an example has moved, the bin that moved most first.  # (m, d)"""
    if not layer.sent.biased:
        return layer.sent.matrix[:0]
    order = (layer.bias_before / layer.weight_before.norm(dim=1)).argsort(descending=True)
    moved, errors = layer.sent.matrix[order], layer.sent.error[order]
    zeros = torch.zeros_like(moved[:1])
    # Each row minus the next one, and the last row itself.
    differences = moved - torch.cat([moved[1:], zeros])
    spread = (errors.square() + torch.cat([errors[1:], zeros]).square()).sqrt()
    rows = row_ratios(replace(layer.sent, matrix=differences, error=spread))
    return rows.ratios[differences[rows.rows, -1].abs().argsort(descending=True)]


@dataclass(frozen=True)
class ClassLabel:
    """One label: the class that the crafted last layer lets through."""

    target: int

    def bind(self, observation: Observation, generator: torch.Generator) -> Bound:
        return fixed_labels(torch.tensor([self.target], device=like(observation).device))


@dataclass(frozen=True)
class ClassReading:
    """One image, from the update of all layers but the last: there it is the gradient of the target class's example.

    Several examples of that class give one picture of all of them.
    """

    attack: AnyAttack
    """An attack on a gradient of one example."""

    def check(self, observation: Observation) -> None:
        check_counted(observation)
        self.attack.check(before_last_layer(observation))

    def run(self, observation: Observation, seed: int = 0, progress: Progress = no_progress) -> Reconstruction:
        message = before_last_layer(observation)
        if not any(bool(tensor.any()) for tensor in message.update.values()):
            return nothing_read(observation, {"fishing": FOUND_NOTHING})
        return self.attack.run(message, seed, progress)

    def energy_of(self, observation: Observation, pixels: Tensor, labels: Tensor, like: Reconstruction) -> float:
        return self.attack.energy_of(before_last_layer(observation), pixels[:1], labels[:1], like)

    def shortened(self, share: float) -> ClassReading:
        return replace(self, attack=self.attack.shortened(share))


def before_last_layer(observation: Observation) -> Observation:
    """Return the message of one example to an adversary that ignores the last dense layer's update."""
    last = last_dense(observation.model)
    mine = set() if last is None else {id(p) for p in last.parameters()}
    names = [name for name, p in observation.model.named_parameters() if id(p) in mine]
    knows = replace(observation.knows, examples=1, clients=1, sizes=None, labels=None, batch_labels=None)
    return replace(hold_fixed(observation, names), knows=knows)
