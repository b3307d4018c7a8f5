"""Verification that images explain a message: by a replay of the declared training, or by a whole layer's update.

Verification of images without the loss: some gradient at the network's outputs explains the whole message.

One step on images x moves the weights along J(x)'R, with J the derivative of the outputs by the weights and R the
gradient of the loss at the outputs. J depends on the images alone. R has as many numbers as there are outputs, and is
fitted by least squares: if what remains of the message is rounding, the images explain it under some loss, and R gives
the targets of a loss that is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedglass.attack.exact.dense import DenseUpdate, once
from fedglass.attack.exact.update_matrix import entry_error, unpruned_entries, with_ones
from fedglass.attack.forward.target import is_gradient, network_of
from fedglass.core.errors import FedglassError
from fedglass.core.losses import TargetKind, target_kind
from fedglass.core.types import Knowledge, Observation, Training
from fedglass.fl.local import schedule, train

ROUNDING_FACTOR = 4.0
"""The residual of a replay is at most this many times the expected rounding: the images themselves are rounded."""
SUMMATION_ERROR = 1e-4
"""A residual that is always allowed: another order of summation, over several steps (measured: below 1e-5)."""
MOST_OF_SEVERAL = 0.01
"""The largest residual of several images, however coarse the message is: mixtures of four chest X-rays left 0.016."""
MOST_OF_ONE = 0.2
"""The same for one image, which cannot be a mixture."""
BOUND_SLACK = 0.02
"""How far rounding may move a pixel out of its bounds, as a share of their distance."""
PIXEL_STEPS = 255
"""The steps between the 256 levels of a stored picture."""
SWITCHED, SWITCHED_TIMES = 0.01, 50.0
"""The largest residual of a replay if the layer is explained, absolute and in units of the rounding: images at 67 dB,
read from a message in bfloat16, leave 44 times its rounding since they switch units; mixtures of two chest X-rays leave
0.05."""
CLEARLY_NONZERO = 8.0
"""Standard deviations of rounding above which a number is not zero."""
MARGIN = 1e-4
"""Outputs this close to zero, relative to the norms of weights and input, may have either sign."""
DENSITY_AT_ZERO = 8.0
"""Density at zero of gradients in units of the largest of a column: normal ones of 1,000 units have 0.8 x 3.2 x 2."""
MOST_LOST = 0.2
"""The largest share of active units that may show no gradient: beyond it their zeros prove nothing."""


Fit = Literal["nothing", "factor", "tensors"]
"""The factors that fit a replay to the message: see `ReplayableMessage.replay`."""


def as_images(knows: Knowledge, inputs: Tensor) -> Tensor:
    """Return pixels within their bounds from whitened inputs of a first layer.  # (n, d) -> (n, c, h, w)"""
    return knows.whitening.unwhiten(inputs.view(-1, *knows.shape)).clamp(knows.low, knows.high).float()


def within_bounds(knows: Knowledge, inputs: Tensor) -> Tensor:
    """Mark the whitened inputs that are pictures: no pixel lies far outside of its bounds.  # (n, d) -> (n,)"""
    pixels = knows.whitening.unwhiten(inputs.view(-1, *knows.shape)).flatten(1)
    slack = BOUND_SLACK * (knows.high - knows.low)
    return ((pixels >= knows.low - slack) & (pixels <= knows.high + slack)).all(1)


@dataclass(frozen=True, eq=False)
class ReplayableMessage:
    """A message in double precision, ready to be compared with replays."""

    observation: Observation
    sent: tuple[Tensor, ...]
    unpruned: tuple[Tensor, ...] | None
    """Masks of the entries that were not pruned; None for several examples, which leave zeros of their own."""
    rounding: float
    """The relative size of its rounding."""

    def replay(self, images: Tensor, labels: Tensor | None = None, fit: Fit = "factor") -> tuple[float, Tensor]:
        """Return the relative residual of the message after a replay of the declared training, and the labels.

        It is infinite if the training cannot be replayed: examples are missing, or their order is random. Labels are
        read from the last layer if they are not given, and -1 where they are unknown. With `fit="factor"` the message
        may be any multiple of the replay, since it may have been clipped as a whole. With `fit="tensors"` each tensor
        has a factor and a decay of its own, which is for a single image only.  # images (n, c, h, w), not whitened
        """
        if not has_classes(self.observation) and (labels is None or not labels.is_floating_point()):
            # The targets are not known: any gradient at the outputs may explain the message.
            unknown = torch.full((len(images),), -1)
            return fitted_residual(self.observation, self.sent, self.unpruned, images), unknown
        if labels is not None:
            return self._residual(images, labels, fit), labels
        best = math.inf, torch.full((len(images),), -1)
        for guess in label_guesses(self.observation, images):
            residual = self._residual(images, guess, fit)
            best = (residual, guess) if residual < best[0] else best
            if self.verified(best[0]):
                break
        return best

    def replay_levels(self, images: Tensor) -> tuple[Tensor, float, Tensor]:
        """Return the images, or the nearest ones of 256 levels if these explain the message better, and their replay.

        A coarse message leaves errors that switch units near zero; stored pictures have no values between levels.
        """
        residual, labels = self.replay(images)
        if self.verified(residual):
            return images, residual, labels
        low, span = self.observation.knows.low, self.observation.knows.high - self.observation.knows.low
        levels = ((images - low) / span * PIXEL_STEPS).round() / PIXEL_STEPS * span + low
        better, better_labels = self.replay(levels)
        return (levels, better, better_labels) if better < residual else (images, residual, labels)

    def contradicts(self, residual: float) -> bool:
        """Return True if the residual of a declared training is too large to come from units that rounding switched."""
        allowed = min(MOST_OF_ONE, max(SWITCHED, SWITCHED_TIMES * self.rounding))
        return self.observation.knows.training is not None and allowed < residual < math.inf

    def verified(self, residual: float) -> bool:
        """Return True if a replay with this residual explains the message: it is no more than rounding."""
        most = MOST_OF_ONE if self.observation.knows.examples == 1 else MOST_OF_SEVERAL
        return residual <= min(most, ROUNDING_FACTOR * self.rounding + SUMMATION_ERROR)

    def _residual(self, images: Tensor, labels: Tensor, fit: Fit) -> float:
        update = replay_update(self.observation, images, labels)
        if update is None:
            return math.inf
        predicted = [p.cpu().double() for p in update]
        if self.unpruned is not None:
            predicted = [torch.where(k, p, torch.zeros_like(p)) for k, p in zip(self.unpruned, predicted, strict=True)]
        if fit == "tensors" and len(images) == 1:
            starts = (self.observation.before[name].cpu().double() for name in self.observation.update)
            residuals = [_residual_of_tensor(s, p, w) for s, p, w in zip(self.sent, predicted, starts, strict=True)]
        else:
            # The message minus the prediction, or minus its best multiple.
            below = sum(float(p.square().sum()) for p in predicted)
            along = sum(float((s * p).sum()) for s, p in zip(self.sent, predicted, strict=True))
            multiple = max(0.0, along / below) if below else 0.0
            factor = 1.0 if self.observation.knows.training is not None and fit == "nothing" else multiple
            residuals = [s - factor * p for s, p in zip(self.sent, predicted, strict=True)]
        size = math.sqrt(sum(float(s.square().sum()) for s in self.sent))
        return math.sqrt(sum(float(part.square().sum()) for part in residuals)) / size if size else math.inf


@once
def message_of(observation: Observation) -> ReplayableMessage:
    """Return the message of an observation, ready to be compared with replays."""
    names = network_of(observation).names
    observation = replace(observation, update={name: observation.update[name] for name in names})
    steps = observation.knows.local_steps or 1
    pairs = [(observation.update[name], observation.before[name]) for name in names]
    errors = [entry_error(update, before, steps) for update, before in pairs]
    sent = tuple(update.cpu().double() for update, _ in pairs)
    one = observation.knows.examples == 1
    unpruned = tuple(_unpruned(update, error) for update, error in zip(sent, errors, strict=True)) if one else None
    size = sum(float(update.square().sum()) for update in sent)
    error = sum(float(entry_errors.square().sum()) for entry_errors in errors)
    return ReplayableMessage(observation, sent, unpruned, math.sqrt(error / size) if size else math.inf)


def fit_layer(layer: DenseUpdate, inputs: Tensor) -> tuple[float, Tensor, bool]:
    """Check that [U | v] = D [X | 1] at rounding level, with D zero exactly where a ReLU unit is off.

    Return the relative size of [U | v] - D [X | 1], the number of units in which each example's gradient contradicts
    the sign of the unit's output, and True if the residual is rounding and no sign contradicts it. Units that change
    sign between the weights before and after may be on or off.  # inputs (n, d) -> (), (n,), ()
    """
    sent, augmented = layer.sent, with_ones(inputs)
    inverse = torch.linalg.pinv(augmented)  # (d + 1, n)
    factors = sent.matrix @ inverse  # (h, n)
    residuals = sent.matrix - factors @ augmented
    size = float(sent.matrix.norm())
    residual = float(residuals.norm()) / size if size else math.inf
    expected = ROUNDING_FACTOR * float(sent.error.norm()) / size + 1e-9 if size else 0.0
    noise = sent.noise[:, None] * inverse.norm(dim=0)  # (h, n)
    wrong = _contradictions(factors, noise, *activation_pattern(layer, inputs))
    return residual, wrong, residual <= expected and not bool(wrong.any())


def activation_pattern(layer: DenseUpdate, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the units that are clearly on for each input before and after training, and those that are clearly off.

    # inputs (n, d) -> (h, n) both
    """
    augmented = with_ones(inputs)
    on, off = _clear_signs(augmented, layer.before)
    if layer.after is None:
        return on, off
    later_on, later_off = _clear_signs(augmented, layer.after)
    return on & later_on, off & later_off


def _contradictions(factors: Tensor, noise: Tensor, on: Tensor, off: Tensor) -> Tensor:
    """Count the units that have a gradient while off, or none while on, for each example.  # (h, n) -> (n,)"""
    moved = factors.abs() > CLEARLY_NONZERO * noise
    on = on & moved.any(1, keepdim=True)  # a unit that nothing depends on has no gradient for any example
    # A gradient below the noise may be small by chance: as often as numbers of this column's size are.
    size = factors.abs().amax(0).clamp(min=torch.finfo(factors.dtype).tiny)
    chance = (DENSITY_AT_ZERO * CLEARLY_NONZERO * noise / size).clamp(max=1.0)
    excused = torch.where(on, chance, torch.zeros_like(chance)).sum(0)
    still = (on & ~moved).sum(0)
    allowed = torch.ceil(excused + 4 * excused.sqrt()).clamp(max=MOST_LOST * on.sum(0))
    return (off & moved).sum(0) + (still - allowed).clamp(min=0).long()


def _clear_signs(augmented: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Mark the units that are clearly on, and those that are clearly off.  # (n, d + 1), (h, d + 1) -> (h, n) each"""
    outputs = weight @ augmented.T
    margin = MARGIN * weight.norm(dim=1, keepdim=True) * augmented.norm(dim=1)
    return outputs > margin, outputs < -margin


def label_guesses(observation: Observation, images: Tensor) -> list[Tensor]:
    """Return labels to try: those that the last layer gives, or else, for a single image, all classes in turn.

    With features H the last layer's gradient is (P - Y) H: each column of its product with the inverse of H is negative
    only in the example's own class.  # (n,) each
    """
    if not has_classes(observation):
        return []
    network = network_of(observation)
    weights = [observation.before[name] for name in network.names]
    try:
        inputs = observation.knows.whitening.whiten(images.to(weights[0]))
        with torch.no_grad():
            features = network.features(weights, inputs)[1].cpu().double()
        weight, bias = network.head
        gradient = -observation.update[weight].cpu().double()
        if bias is not None:
            gradient = torch.cat([gradient, -observation.update[bias].cpu().double()[:, None]], 1)
            features = with_ones(features)
        return [(gradient @ torch.linalg.pinv(features)).argmin(0)]  # of (classes, n)
    except (FedglassError, RuntimeError, ValueError):
        return [torch.tensor([label]) for label in range(observation.knows.classes)] if len(images) == 1 else []


def replay_update(observation: Observation, images: Tensor, labels: Tensor) -> list[Tensor] | None:
    """Return the update that the declared training makes of these images; None if it cannot be replayed.

    If no training is declared, it is the update of one step at the learning rate 1, which gives the direction.
    """
    knows = observation.knows
    training = knows.training or _assumed_training(observation)
    if training is None or not 0 < len(images) == knows.examples:
        return None
    network = network_of(observation)
    before = [observation.before[name] for name in network.names]
    inputs, labels = knows.whitening.whiten(images.to(before[0])), labels.to(before[0].device)
    slices = _client_slices(observation, training, len(images))
    if slices is None:
        return None
    try:
        counts = [rows.stop - rows.start for rows in slices]
        orders = [schedule(training, count, None) for count in counts]
        clients = zip(slices, orders, strict=True)
        ends = [train(network, before, inputs[rows], labels[rows], order, training) for rows, order in clients]
    except (RuntimeError, ValueError):  # such as batch statistics of one example
        return None
    shares = [count / len(images) for count in counts]
    moved = [[end - start for end, start in zip(after, before, strict=True)] for after in ends]
    return [torch.stack([s * m for s, m in zip(shares, part, strict=True)]).sum(0) for part in zip(*moved, strict=True)]


def _assumed_training(observation: Observation) -> Training | None:
    """Return plain SGD on whole batches with the known steps and learning rate; None if they do not suffice."""
    knows = observation.knows
    if knows.steps in (None, 1):
        return Training(lr=knows.lr or 1.0, loss=knows.objective)
    return None if knows.lr is None else Training(lr=knows.lr, steps=knows.steps, loss=knows.objective)


def _client_slices(observation: Observation, training: Training, images: int) -> list[slice] | None:
    """Return the images of each client that must be replayed separately; None if the assignment matters but is unknown.

    It does not matter for one client with whole batches, nor for clients with one image or one unclipped step each.
    """
    knows = observation.knows
    if knows.clients == 1:
        one_batch = training.batch_size is None or training.batch_size >= images
        return [slice(0, images)] if one_batch else None
    if knows.clients == images:
        return [slice(i, i + 1) for i in range(images)]
    sizes = knows.sizes or (images // knows.clients,) * knows.clients
    alone = all(training.local_steps(n) == 1 for n in sizes) and training.clip is None
    return [slice(0, images)] if alone and sum(sizes) == images else None


def _unpruned(update: Tensor, error: Tensor) -> Tensor:
    """Mark the entries of one example's update, of any number of dimensions, that were not pruned."""
    rows = update.reshape(len(update), -1) if update.ndim else update.view(1, 1)
    unpruned = unpruned_entries(rows, error.view_as(rows)).view_as(update)
    # A pruned tensor may have lost whole rows and columns too, which must not count against a replay.
    return unpruned if bool(unpruned.all()) else update != 0


def _residual_of_tensor(sent: Tensor, predicted: Tensor, before: Tensor) -> Tensor:
    """Subtract the best multiples of the prediction and of the weights before from one tensor."""
    if sent.numel() < 3:
        return sent - predicted
    basis = torch.stack([predicted.flatten(), before.flatten()])
    shares = torch.linalg.pinv(basis @ basis.T, hermitian=True) @ (basis @ sent.flatten())
    fitted: Tensor = shares @ basis
    return sent - fitted.view_as(sent)


MOST_NUMBERS = 2**27
"""Outputs times weights up to which the least squares are solved: a gibibyte in double precision."""
LEAST_EQUATIONS = 10
"""Equations for each unknown number below which an explanation proves nothing."""


def has_classes(observation: Observation) -> bool:
    """Return whether the loss has one class for each example, as the cross entropy has."""
    return target_kind(observation.knows.objective) is TargetKind.CLASSES


def needs_classes(observation: Observation) -> str:
    """Return why a method that computes the gradient of the cross entropy does not apply; empty if it does."""
    return "" if has_classes(observation) else "it distinguishes examples by the cross entropy, which is not the loss"


def fitted_residual(
    observation: Observation, sent: Sequence[Tensor], unpruned: Sequence[Tensor] | None, images: Tensor
) -> float:
    """Return the relative part of the message that no gradient at the outputs explains; infinite if it is not a step.

    # images (n, c, h, w), not whitened
    """
    knows, network = observation.knows, network_of(observation)
    if knows.local_steps not in (None, 1) or not is_gradient(observation) or len(images) != knows.examples:
        return math.inf
    weights = [observation.before[name].detach().double().requires_grad_() for name in network.names]
    network._module.double()  # a copy of the model, and its buffers
    inputs = knows.whitening.whiten(images.to(weights[0]))
    with torch.enable_grad():
        outputs = network(weights, inputs).flatten()
        size = sum(weight.numel() for weight in weights)
        if len(outputs) * size > MOST_NUMBERS or len(outputs) * LEAST_EQUATIONS > size:
            return math.inf
        rows = [torch.autograd.grad(o, weights, retain_graph=True, materialize_grads=True) for o in outputs]
    masked = [
        [t.cpu() if unpruned is None else torch.where(unpruned[i], t.cpu(), 0.0) for i, t in enumerate(row)]
        for row in rows
    ]
    jacobian = torch.stack([torch.cat([t.flatten() for t in row]) for row in masked])  # (outputs, weights)
    message = torch.cat([t.flatten() for t in sent])
    if not bool(message.any()):
        return math.inf
    shares = torch.linalg.lstsq(jacobian.T, message[:, None], driver="gelsd").solution
    return float((message - (jacobian.T @ shares)[:, 0]).norm() / message.norm())
