"""A network cut at one of its layers: the front that feeds the layer, and the head that its outputs go through.

The gradients of the head depend only on the layer's inputs and the labels. Inputs and labels are therefore verified by
a replay of the head on them, without any image.

Affine maps of images, given as functions, and the smoothest image that such a map takes to some values.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase

from fedglass.attack.exact.dense import DenseUpdate, evaluation_copy, undecayed_update
from fedglass.attack.exact.update_matrix import entry_error
from fedglass.attack.exact.verify import MOST_OF_SEVERAL, ROUNDING_FACTOR, SUMMATION_ERROR
from fedglass.attack.labels.counts import smoothing_of
from fedglass.core.tensors import Params
from fedglass.core.types import BatchNorm, Knowledge, Observation

UNCHANGED = 1e-9
"""Relative change of the logits, in double precision, up to which they do not depend on the changed input."""
LEAST_SQUARES_PASSES = 3
"""Least-squares passes over all rows once all inputs are found; the error does not fall after the second."""
SAME_EXAMPLE = 0.05
"""Inputs closer than this, relative to their size, belong to one example."""


class _Reached(Exception):
    """Ends a forward pass at the layer of the cut."""


@dataclass(frozen=True, eq=False)
class Cut:
    """A network at the weights before training, in one precision, cut at a layer."""

    model: nn.Module
    state: Params
    layer: str
    shape: tuple[int, int, int]

    def front(self, inputs: Tensor) -> Tensor:
        """Return the inputs of the layer.  # (n, c, h, w), whitened -> (n, ...)"""
        reached: list[Tensor] = []

        def note(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            reached.append(arguments[0])
            raise _Reached

        with self.model.get_submodule(self.layer).register_forward_pre_hook(note), suppress(_Reached):
            functional_call(self.model, dict(self.state), (inputs,))
        return reached[0]

    def outputs(self, inputs: Tensor) -> dict[str, Tensor]:
        """Return the output of each layer without children that runs before this layer.  # (n, c, h, w), whitened"""
        output_by_layer: dict[str, Tensor] = {}

        def noting(name: str) -> Callable[..., None]:
            return lambda layer, arguments, output: output_by_layer.update({name: output})

        leaves = [(name, layer) for name, layer in self.model.named_modules() if not list(layer.children())]
        with ExitStack() as hooks:
            for name, layer in leaves:
                hooks.enter_context(layer.register_forward_hook(noting(name)))
            self.front(inputs)
        return output_by_layer

    def between(self, outputs: Tensor, after: str) -> Tensor:
        """Return the inputs of another layer if this layer's outputs are these.  # (n, units) -> (n, ...)"""
        with self.model.get_submodule(self.layer).register_forward_hook(lambda *passed: outputs):
            return replace(self, layer=after).front(outputs.new_zeros(1, *self.shape))

    def head(self, outputs: Tensor, state: Params | None = None, blank: Tensor | None = None) -> Tensor:
        """Return the logits if the layer's outputs are these, for any blank image.  # (n, units)"""
        image = outputs.new_zeros(1, *self.shape) if blank is None else blank
        with self.model.get_submodule(self.layer).register_forward_hook(lambda *passed: outputs):
            logits: Tensor = functional_call(self.model, dict(self.state if state is None else state), (image,))
        return logits

    def headed(self) -> bool:
        """Return True if the logits depend on the image only through this layer, each example on its own row."""
        draws = torch.Generator().manual_seed(0)
        like = next(iter(self.state.values()))
        weight = self.model.get_submodule(self.layer).get_parameter("weight")
        outputs = torch.randn(3, weight.shape[0], generator=draws).to(like)
        other = torch.randn(1, *self.shape, generator=draws).to(like)
        with torch.no_grad():
            try:
                logits, same = self.head(outputs), self.head(outputs, blank=other)
                lone = self.head(outputs[1:2])
            except (RuntimeError, ValueError, IndexError):
                return False
        return logits.shape[0] == 3 and nearly_equal(logits, same) and nearly_equal(logits[1:2], lone)


def cut_at(observation: Observation, layer: str, kind: torch.dtype = torch.float64) -> Cut:
    """Return the network cut at the layer of that name, with weights and buffers of this type."""
    model, tensors = evaluation_copy(observation)
    state = {name: t.detach().to(kind) if t.is_floating_point() else t for name, t in tensors.items()}
    return Cut(model.requires_grad_(False).to(kind), state, layer, observation.knows.shape)


def mixes_examples(observation: Observation) -> str:
    """Return why no example has features of its own; empty if each has."""
    training = observation.knows.training
    normalised = any(isinstance(m, _NormBase) for m in observation.model.modules())
    if training is not None and training.batch_norm is BatchNorm.BATCH and normalised:
        return "normalisation by batch statistics mixes the examples before the layer"
    return ""


def nearly_equal(one: Tensor, other: Tensor, within: float = UNCHANGED) -> bool:
    """Return True if two results of double precision are equal up to rounding."""
    return one.shape == other.shape and bool((one - other).norm() <= within * one.norm())


@dataclass(frozen=True, eq=False)
class Features:
    """The inputs of a dense layer, example by example."""

    inputs: Tensor  # (n, d), double
    labels: Tensor  # (n,)
    residual: float
    """Relative residual of the head's update after a replay of the head on them."""
    verified: bool
    """True if they are as many as the examples, and the residual is rounding."""


def head_gradients(observation: Observation, layer: DenseUpdate, cut: Cut, inputs: Tensor) -> Tensor:
    """Return the loss gradient at the layer's outputs for every input and every label.  # (n, d) -> (n, k, h)"""
    outputs = (inputs @ layer.weight_before.T + layer.bias_before).requires_grad_()
    with torch.enable_grad():
        logits = cut.head(outputs)  # (n, k)
        slopes = [torch.autograd.grad(column.sum(), outputs, retain_graph=True)[0] for column in logits.unbind(1)]
    jacobian = torch.stack(slopes, 1)  # (n, k, h)
    smoothing = smoothing_of(observation)
    shared = logits.detach().softmax(1) - smoothing / logits.shape[1]  # the part that all labels share
    return (shared[:, :, None] * jacobian).sum(1, keepdim=True) - (1 - smoothing) * jacobian


def gradients_at(observation: Observation, layer: DenseUpdate, cut: Cut, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss gradient at the layer's outputs for each input with its label.  # (n, d), (n,) -> (n, h)"""
    return head_gradients(observation, layer, cut, inputs)[torch.arange(len(labels)), labels]


def refine_inputs(observation: Observation, layer: DenseUpdate, cut: Cut, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the inputs of all examples by least squares from all rows, from a first estimate.  # (n, d)"""
    for _ in range(LEAST_SQUARES_PASSES):
        gradients = gradients_at(observation, layer, cut, inputs, labels)
        solved = torch.linalg.pinv(gradients.T) @ layer.sent.matrix  # (n, d + 1)
        fresh = solved[:, :-1] / solved[:, -1:]
        if not bool(((fresh - inputs).norm(dim=1) < SAME_EXAMPLE * inputs.norm(dim=1)).all()):
            break  # gradients are nearly dependent: the estimate is better
        inputs = fresh
    return inputs


def verify_features(observation: Observation, layer: DenseUpdate, cut: Cut, inputs: Tensor, labels: Tensor) -> Features:
    """Return the features with the residual of the head's update after a replay of the head on them."""
    names = {id(p): name for name, p in observation.model.named_parameters()}
    module = observation.model.get_submodule(layer.name)
    weight, bias = (names[id(module.get_parameter(last))] for last in ("weight", "bias"))
    trained = {n: t.clone().requires_grad_() for n, t in cut.state.items() if n in observation.update}
    with torch.enable_grad():
        logits = cut.head(F.linear(inputs, trained[weight], trained[bias]), {**cut.state, **trained})
        objective = observation.knows.objective
        if objective is None:
            loss = F.cross_entropy(logits, labels, label_smoothing=smoothing_of(observation))
        else:
            loss = objective.value(logits, labels)
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    predicted = {n: -g for n, g in zip(trained, gradients, strict=True) if g is not None}
    sent = {name: undecayed_update(observation, name) for name in predicted}
    steps = observation.knows.local_steps or 1
    errors = {name: entry_error(observation.update[name], observation.before[name], steps) for name in sent}
    moved, replayed, error = (torch.cat([t.flatten() for t in p.values()]) for p in (sent, predicted, errors))
    # The best multiple of the prediction is subtracted.
    residual = float((moved - (moved @ replayed) / (replayed @ replayed) * replayed).norm() / moved.norm())
    expected = ROUNDING_FACTOR * float(error.norm() / moved.norm()) + SUMMATION_ERROR
    complete = len(inputs) == observation.knows.examples and residual <= min(MOST_OF_SEVERAL, expected)
    return Features(inputs, labels, residual, complete)


SMOOTHNESS = 1e-3
"""Weight of the squared differences, relative to the misfit, in units of the map's largest gain; CIFAR images behind
2 x 2 pooling come back at 28.0 dB with it, and the remaining misfit is corrected afterwards."""
MOST_ITERATIONS = 300
"""Most iterations of conjugate gradients; pooling needs 60."""
CORRECTIONS = 20
"""Most alternations between A x = z and the pixel bounds; 2 x 2 pooling needs 3 on CIFAR."""
PROGRESS = 0.7
"""The alternations end when one leaves more than this share of the misfit."""
CONVERGED = 1e-7
"""The misfit, relative to z, at which the alternations end: single precision."""
CORRECTION_TOLERANCE = 1e-3
"""Tolerance of each alternation when it solves A x = z: the next one corrects the remainder."""
RIDGE = 1e-9
"""Ridge of the correction, in units of the map's largest gain: directions that the map nearly loses do not change."""


class Affine:
    """An affine map of images, such as the front of a network that begins with pooling."""

    def __init__(self, forward: Callable[[Tensor], Tensor], like: Tensor) -> None:
        """Take the map, and an image of the size and type of its arguments.  # (n, c, h, w) -> (n, ...)"""
        self.forward = forward
        with torch.no_grad():
            self.offset = forward(torch.zeros_like(like[:1]))  # (1, ...)
        self._graph: tuple[Tensor, Tensor] | None = None
        """The graph of the last adjoint, kept since the transpose of a linear map is the same everywhere."""

    def apply(self, images: Tensor) -> Tensor:
        """Return the linear part.  # (n, c, h, w) -> (n, ...)"""
        with torch.no_grad():
            return self.forward(images) - self.offset

    def adjoint(self, values: Tensor, like: Tensor) -> Tensor:
        """Return the transpose of the linear part.  # (n, ...) -> (n, c, h, w)"""
        if self._graph is None or len(self._graph[0]) != len(like):
            with torch.enable_grad():
                at = torch.zeros_like(like, requires_grad=True)
                self._graph = (at, self.forward(at))
        at, out = self._graph
        return torch.autograd.grad(out, at, values, retain_graph=True)[0]

    def normal(self, images: Tensor) -> Tensor:
        """Return A'A of the images.  # (n, c, h, w)"""
        return self.adjoint(self.apply(images), images)

    def gain(self, like: Tensor) -> float:
        """Return the largest eigenvalue of A'A, by a few steps of the power method."""
        along = torch.randn(like[:1].shape, generator=torch.Generator().manual_seed(0), dtype=like.dtype)
        for _ in range(8):
            along = self.normal(along / along.norm())
        return float(along.norm())


def is_affine(forward: Callable[[Tensor], Tensor], shape: tuple[int, int, int]) -> bool:
    """Return True if a function of images in double precision is affine.  # (n, c, h, w) -> (n, ...)

    The function is probed with noise of several sizes: no activation is linear on all of them.
    """
    draws = torch.Generator().manual_seed(1)
    one, two = (size * torch.randn(2, *shape, generator=draws, dtype=torch.float64) for size in (1.0, 5.0))
    linear = Affine(forward, one)
    together, apart = linear.apply(2 * one - 3 * two), 2 * linear.apply(one) - 3 * linear.apply(two)
    return bool(apart.norm() > 0) and nearly_equal(together, apart)


def conjugate_gradients(
    operator: Callable[[Tensor], Tensor],
    right: Tensor,
    start: Tensor,
    iterations: int,
    tolerance: float = 1e-9,
    precondition: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Return x with operator(x) = right by conjugate gradients, for a symmetric positive operator.

    Each row of the batch is a system of its own.  # (n, ...) all
    """

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).flatten(1).sum(1).view(-1, *[1] * (a.ndim - 1))

    solution, residual = start.clone(), right - operator(start)
    preconditioner = precondition or (lambda t: t)
    preconditioned = preconditioner(residual)
    direction, squared_size = preconditioned, dot(residual, preconditioned)
    floor = tolerance**2 * dot(right, right).clamp(min=torch.finfo(right.dtype).tiny)
    for _ in range(iterations):
        if bool((dot(residual, residual) <= floor).all()):
            break
        mapped = operator(direction)
        curvature = dot(direction, mapped)
        step = torch.where(curvature > 0, squared_size / curvature, torch.zeros_like(curvature))
        solution = solution + step * direction
        residual = residual - step * mapped
        preconditioned = preconditioner(residual)
        next_size = dot(residual, preconditioned)
        direction = (
            preconditioned
            + torch.where(squared_size > 0, next_size / squared_size, torch.zeros_like(squared_size)) * direction
        )
        squared_size = next_size
    return solution


def negative_laplacian(images: Tensor) -> Tensor:
    """Return minus the Laplacian: half the gradient of the sum of squared differences of neighbours."""
    laplacian = torch.zeros_like(images)
    across, down = images.diff(dim=-1), images.diff(dim=-2)
    laplacian[..., :-1] -= across
    laplacian[..., 1:] += across
    laplacian[..., :-1, :] -= down
    laplacian[..., 1:, :] += down
    return laplacian


def smoothest_images(knows: Knowledge, affine_map: Callable[[Tensor], Tensor], values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smoothest images that an affine map takes to these values: within the pixel bounds, and without them.

    `affine_map` takes whitened images in double precision.  # (n, d) -> (n, c, h, w) twice, pixels before whitening
    """
    grey = torch.full((len(values), *knows.shape), (knows.low + knows.high) / 2, dtype=torch.float64)

    def forward(pixels: Tensor) -> Tensor:
        return affine_map(knows.whitening.whiten(pixels)).flatten(1)

    front = Affine(forward, grey)
    gain = front.gain(grey)
    right = front.adjoint(values - front.offset, grey)
    images = conjugate_gradients(
        lambda x: front.normal(x) + SMOOTHNESS * gain * negative_laplacian(x), right, grey, MOST_ITERATIONS, CONVERGED
    )
    free = _corrected(front, values, images, RIDGE * gain, CONVERGED)
    return _bounded(front, values, free, gain, (knows.low, knows.high)).float(), free.float()


def _bounded(front: Affine, values: Tensor, images: Tensor, gain: float, bounds: tuple[float, float]) -> Tensor:
    """Project the images onto the bounds and onto A x = z in turn, as long as that reduces the misfit."""
    misfit = torch.inf
    for _ in range(CORRECTIONS):
        images = images.clamp(*bounds)
        before, misfit = misfit, float((front.apply(images) + front.offset - values).norm() / values.norm())
        if misfit <= CONVERGED or misfit > PROGRESS * before:
            break
        images = _corrected(front, values, images, RIDGE * gain, CORRECTION_TOLERANCE)
    return images.clamp(*bounds)


def _corrected(front: Affine, values: Tensor, images: Tensor, floor: float, tolerance: float) -> Tensor:
    """Return the nearest images with A x = z, or as near to z as A allows."""
    right = front.adjoint(values - front.offset - front.apply(images), images)
    start = torch.zeros_like(images)
    return images + conjugate_gradients(lambda x: front.normal(x) + floor * x, right, start, MOST_ITERATIONS, tolerance)
