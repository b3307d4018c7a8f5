"""Whether images explain a message: by replaying the declared training on them, or by a whole layer's update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedglass.attack.exact.method import once
from fedglass.attack.exact.rows import entry_error, kept_entries
from fedglass.attack.forward.target import network_of
from fedglass.core.errors import FedglassError
from fedglass.core.types import Observation, Training
from fedglass.fl.local import MeanGradient, Step, local_gradient, schedule, train
from fedglass.models.network import Network

LEVEL = 4.0
"""How many times the expected rounding a replay may leave: the images carry rounding of their own into every layer."""
KERNELS = 1e-4
"""What a replay may always leave: another order of summation, over several steps (measured: below 1e-5)."""
MOST = 0.01
"""What a replay may never leave where there are several images, however coarse the message is: mixtures of four chest
X-rays were seen to leave 0.016."""
MOST_OF_ONE = 0.2
"""The same for one image, of which there are no mixtures."""
LEVELS = 255
"""The steps between the 256 levels of a stored picture."""
SWITCHED, SWITCHED_TIMES = 0.01, 50.0
"""What a replay may leave where the layer is explained, and how many times the rounding: images at 67 dB, read from a
message in bfloat16, leave 44 times its rounding since they switch units; mixtures of two chest X-rays leave 0.05."""
CLEARLY = 8.0
"""Standard deviations of rounding above which a number is not zero."""
MARGIN = 1e-4
"""Outputs this close to zero, relative to the norms of weights and input, may have either sign."""
SMALL = 8.0
"""Density at zero of gradients in units of the largest of a column: normal ones of 1,000 units have 0.8 x 3.2 x 2."""
LOST = 0.2
"""The largest share of active units that may show no gradient: beyond it their zeros prove nothing."""


Fit = Literal["nothing", "factor", "tensors"]
"""What of a replay is fitted to the message: see `explains`."""


@dataclass(frozen=True, eq=False)
class Replay:
    """How well images explain a message, and with which labels."""

    residual: float
    labels: Tensor  # (n,); -1 where none can be told


@dataclass(frozen=True, eq=False)
class LayerExplained:
    """How well inputs explain a layer's update U = D X."""

    residual: float
    """Relative size of U - D X."""
    wrong: Tensor  # (n,)
    """In how many units each example's gradient contradicts the sign of the unit's output."""
    complete: bool
    """Whether the residual is rounding and no sign contradicts it."""


def explains(observation: Observation, images: Tensor, labels: Tensor | None = None, fit: Fit = "factor") -> float:
    """Return the relative residual of the message after the declared training is replayed on these images.

    Infinite where the training cannot be replayed: examples are missing, or their order is drawn. Labels are read from
    the last layer where they are not given. With `fit="factor"` the message may be any multiple of the replay, since it
    may have been clipped as a whole. With `fit="tensors"` each tensor has a factor and a decay of its own, which is for
    a single image only.  # images (n, c, h, w), pixels before whitening
    """
    return message_of(observation).replay(images, labels, fit).residual


def verified(observation: Observation, residual: float) -> bool:
    """Whether a replay that leaves this residual explains the message: it is no more than rounding."""
    return message_of(observation).verified(residual)


@dataclass(frozen=True, eq=False)
class Message:
    """A message in double precision, ready to be compared with replays."""

    observation: Observation
    sent: tuple[Tensor, ...]
    kept: tuple[Tensor, ...] | None
    """Which entries were not pruned; None where none was, or where several examples leave zeros of their own."""
    rounding: float
    """The relative size of the rounding that it can have."""

    def replay(self, images: Tensor, labels: Tensor | None = None, fit: Fit = "factor") -> Replay:
        """Return what the declared training on these images leaves unexplained, see `explains`, and the labels."""
        if labels is not None:
            return Replay(self._residual(images, labels, fit), labels)
        best = Replay(math.inf, torch.full((len(images),), -1))
        for guess in label_guesses(self.observation, images):
            found = Replay(self._residual(images, guess, fit), guess)
            best = found if found.residual < best.residual else best
            if self.verified(best.residual):
                break
        return best

    def replay_levels(self, images: Tensor) -> tuple[Tensor, Replay]:
        """Return the images or, where they explain the message less well, the nearest ones of 256 levels.

        A coarse message leaves errors that switch units near zero; stored pictures have no values between levels.
        """
        found = self.replay(images)
        if self.verified(found.residual):
            return images, found
        low, span = self.observation.knows.low, self.observation.knows.high - self.observation.knows.low
        levels = ((images - low) / span * LEVELS).round() / LEVELS * span + low
        better = self.replay(levels)
        return (levels, better) if better.residual < found.residual else (images, found)

    def contradicts(self, residual: float) -> bool:
        """Whether a replay of a declared training leaves more than units that rounding has switched."""
        allowed = min(MOST_OF_ONE, max(SWITCHED, SWITCHED_TIMES * self.rounding))
        return self.observation.knows.training is not None and allowed < residual < math.inf

    def verified(self, residual: float) -> bool:
        """Whether a replay that leaves this residual explains the message: it is no more than rounding."""
        most = MOST_OF_ONE if self.observation.knows.examples == 1 else MOST
        return residual <= min(most, LEVEL * self.rounding + KERNELS)

    def _residual(self, images: Tensor, labels: Tensor, fit: Fit) -> float:
        again = replayed(self.observation, images, labels)
        if again is None:
            return math.inf
        predicted = [p.double().cpu() for p in again]
        if self.kept is not None:
            predicted = [torch.where(k, p, torch.zeros_like(p)) for k, p in zip(self.kept, predicted, strict=True)]
        if fit == "tensors" and len(images) == 1:
            starts = (self.observation.before[name].double().cpu() for name in self.observation.update)
            left = [_left_apart(s, p, w) for s, p, w in zip(self.sent, predicted, starts, strict=True)]
        else:
            left = _left(self.sent, predicted, self.observation.knows.training is None or fit != "nothing")
        size = math.sqrt(sum(float(s.square().sum()) for s in self.sent))
        return math.sqrt(sum(float(part.square().sum()) for part in left)) / size if size else math.inf


@once
def message_of(observation: Observation) -> Message:
    """Return the message of an observation, ready to be compared with replays."""
    names = network_of(observation).names
    observation = replace(observation, update={name: observation.update[name] for name in names})
    steps = observation.knows.local_steps or 1
    pairs = [(observation.update[name], observation.before[name]) for name in names]
    errors = [entry_error(update, before, steps) for update, before in pairs]
    sent = tuple(update.double().cpu() for update, _ in pairs)
    one = observation.knows.examples == 1
    kept = tuple(_kept(update, error) for update, error in zip(sent, errors, strict=True)) if one else None
    size = sum(float(update.square().sum()) for update in sent)
    error = sum(float(each.square().sum()) for each in errors)
    return Message(observation, sent, kept, math.sqrt(error / size) if size else math.inf)


def layer_explained(
    update: Tensor,
    inputs: Tensor,
    weight_before: Tensor,
    bias_before: Tensor,
    error: Tensor,
    after: tuple[Tensor, Tensor] | None = None,
) -> LayerExplained:
    """Return whether [U | v] = D [X | 1] at rounding level, with D zero exactly where a ReLU unit is off.

    Units that change sign between the weights before and `after` may have either.  # update (h, d + 1), inputs (n, d)
    """
    beside = torch.cat([inputs.double(), inputs.new_ones(len(inputs), 1, dtype=torch.float64)], 1)
    inverse = torch.linalg.pinv(beside)  # (d + 1, n)
    factors = update @ inverse  # (h, n)
    left = update - factors @ beside
    size = float(update.norm())
    residual = float(left.norm()) / size if size else math.inf
    expected = LEVEL * float(error.norm()) / size + 1e-9 if size else 0.0
    noise = error.square().mean(1).sqrt()[:, None] * inverse.norm(dim=0)  # (h, n)
    wrong = _contradictions(factors, noise, *active_units(inputs, (weight_before, bias_before), after))
    return LayerExplained(residual, wrong, residual <= expected and not bool(wrong.any()))


def active_units(
    inputs: Tensor, before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Return which units are clearly on for each input before training and after, and which are clearly off.

    # inputs (n, d); weight (h, d) and bias (h,) -> (h, n) both
    """
    beside = torch.cat([inputs.double(), inputs.new_ones(len(inputs), 1, dtype=torch.float64)], 1)
    on, off = _states(beside, before)
    if after is None:
        return on, off
    later_on, later_off = _states(beside, after)
    return on & later_on, off & later_off


def _contradictions(factors: Tensor, noise: Tensor, on: Tensor, off: Tensor) -> Tensor:
    """Units that have a gradient while off, and units that have none while on, of each example.  # (h, n) -> (n,)"""
    moved = factors.abs() > CLEARLY * noise
    on = on & moved.any(1, keepdim=True)  # a unit that nothing depends on has no gradient for anybody
    # What is below the noise may be small by chance: as often as numbers of this column's size are.
    size = factors.abs().amax(0).clamp(min=torch.finfo(factors.dtype).tiny)
    chance = (SMALL * CLEARLY * noise / size).clamp(max=1.0)
    excused = torch.where(on, chance, torch.zeros_like(chance)).sum(0)
    still = (on & ~moved).sum(0)
    allowed = torch.ceil(excused + 4 * excused.sqrt()).clamp(max=LOST * on.sum(0))
    return (off & moved).sum(0) + (still - allowed).clamp(min=0).long()


def _states(beside: Tensor, layer: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Which units are clearly on, and clearly off.  # (h, n) each"""
    weight = torch.cat([layer[0].double(), layer[1].double()[:, None]], 1)
    outputs = weight @ beside.T
    margin = MARGIN * weight.norm(dim=1, keepdim=True) * beside.norm(dim=1)
    return outputs > margin, outputs < -margin


def best_label(observation: Observation, images: Tensor) -> Tensor | None:
    """Return the likeliest labels of images that are known roughly; None where none can be told.  # (n,)"""
    return next(iter(label_guesses(observation, images)), None)


def label_guesses(observation: Observation, images: Tensor) -> list[Tensor]:
    """Return labels to try: those that the last layer tells, or else, for a single image, all classes in turn.

    With features H the last layer's gradient is (P - Y) H: each column of its product with the inverse of H is negative
    in the example's own class alone.  # (n,) each
    """
    classes = observation.knows.classes
    network = network_of(observation)
    weights = [observation.before[name] for name in network.names]
    try:
        told = [_told(observation, network, weights, images)]
    except (FedglassError, RuntimeError, ValueError):
        told = []
    return told or ([torch.tensor([label]) for label in range(classes)] if len(images) == 1 else [])


def _told(observation: Observation, network: Network, weights: Sequence[Tensor], images: Tensor) -> Tensor:
    inputs = observation.knows.whitening.whiten(images.to(weights[0]))
    with torch.no_grad():
        features = network.features(weights, inputs)[1].double().cpu()
    weight, bias = network.head
    gradient = -observation.update[weight].double().cpu()
    if bias is not None:
        gradient = torch.cat([gradient, -observation.update[bias].double().cpu()[:, None]], 1)
        features = torch.cat([features, torch.ones_like(features[:, :1])], 1)
    shares: Tensor = gradient @ torch.linalg.pinv(features)  # (classes, n)
    return shares.argmin(0)


def replayed(observation: Observation, images: Tensor, labels: Tensor) -> list[Tensor] | None:
    """Return the update that the declared training makes of these images; None where it cannot be replayed.

    Where no training is declared, that of one step at the learning rate 1: its direction.
    """
    knows = observation.knows
    training = knows.training or _supposed(observation)
    if training is None or not 0 < len(images) == knows.examples:
        return None
    network = network_of(observation)
    before = [observation.before[name] for name in network.names]
    inputs, labels = knows.whitening.whiten(images.to(before[0])), labels.to(before[0].device)
    each = _clients(observation, training, len(images))
    if each is None:
        return None
    try:
        ends = [_trained(network, before, inputs[rows], labels[rows], training) for rows in each]
    except (RuntimeError, ValueError):  # such as batch statistics of one example
        return None
    shares = [(rows.stop - rows.start) / len(images) for rows in each]
    moved = [[end - start for end, start in zip(after, before, strict=True)] for after in ends]
    return [torch.stack([s * m for s, m in zip(shares, part, strict=True)]).sum(0) for part in zip(*moved, strict=True)]


def gradient_direction(observation: Observation, images: Tensor, labels: Tensor) -> list[Tensor]:
    """Return the update of one step on these images: what stands for a training that cannot be replayed."""
    network = network_of(observation)
    weights = [observation.before[name].detach().clone().requires_grad_() for name in network.names]
    inputs = observation.knows.whitening.whiten(images.to(weights[0]))
    step = Step(network, weights, inputs, labels.to(inputs.device))
    return [-g for g in local_gradient(MeanGradient(), step, None)]


def _trained(
    network: Network, before: Sequence[Tensor], inputs: Tensor, labels: Tensor, training: Training
) -> list[Tensor]:
    batches = schedule(training, len(labels), None)
    return train(network, before, inputs, labels, batches, training)


def _supposed(observation: Observation) -> Training | None:
    """The training where only its steps and its learning rate are known, or nothing: plain SGD on whole batches."""
    knows = observation.knows
    if knows.steps in (None, 1):
        return Training(lr=knows.lr or 1.0)
    return None if knows.lr is None else Training(lr=knows.lr, steps=knows.steps)


def _clients(observation: Observation, training: Training, images: int) -> list[slice] | None:
    """Whose images are whose, as far as that matters: not for one client with whole batches, nor for single images."""
    knows = observation.knows
    if knows.clients == 1:
        whole = training.batch_size is None or training.batch_size >= images
        return [slice(0, images)] if whole else None
    if knows.clients == images:
        return [slice(i, i + 1) for i in range(images)]
    sizes = knows.sizes or (images // knows.clients,) * knows.clients
    alone = all(training.local_steps(n) == 1 for n in sizes) and training.clip is None
    return [slice(0, images)] if alone and sum(sizes) == images else None


def _kept(update: Tensor, error: Tensor) -> Tensor:
    """Which entries of one example's update were not pruned, of any number of dimensions."""
    rows = update.reshape(len(update), -1) if update.ndim else update.view(1, 1)
    kept = kept_entries(rows, error.view_as(rows)).view_as(update)
    # A tensor that was pruned may have lost whole rows and columns too, which a replay must not be blamed for.
    return kept if bool(kept.all()) else update != 0


def _left(sent: Sequence[Tensor], predicted: Sequence[Tensor], scaled: bool) -> list[Tensor]:
    """What is left of the message behind a prediction, or behind its best multiple."""
    below = sum(float(p.square().sum()) for p in predicted)
    along = sum(float((s * p).sum()) for s, p in zip(sent, predicted, strict=True))
    factor = 1.0 if not scaled else max(0.0, along / below) if below else 0.0
    return [s - factor * p for s, p in zip(sent, predicted, strict=True)]


def _left_apart(sent: Tensor, predicted: Tensor, before: Tensor) -> Tensor:
    """What is left of one tensor behind multiples of its prediction and of its own weights."""
    if sent.numel() < 3:
        return sent - predicted
    basis = torch.stack([predicted.flatten(), before.flatten()])
    shares = torch.linalg.pinv(basis @ basis.T, hermitian=True) @ (basis @ sent.flatten())
    fitted: Tensor = shares @ basis
    return sent - fitted.view_as(sent)
