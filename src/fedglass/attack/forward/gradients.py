"""Operators that explain the message by full-batch gradients, without simulating the local training.

The gradient is taken at the weights before training, or at points between the weights before and after.
`BesideStatistics` adds the BatchNorm statistics that come with an update to the prediction of another operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedglass.attack.forward.target import (
    full_gradient,
    gradient_sum,
    head_of,
    is_gradient,
    known_training,
    leaves,
    limits_before_filter,
    mean_gradient,
    network_of,
    step_length,
)
from fedglass.attack.parts import BoundForward, Forward, reads_of
from fedglass.core.errors import ModelError, check_at_least
from fedglass.core.facts import Fact
from fedglass.core.losses import TargetKind, target_kind
from fedglass.core.tensors import COUNTER, MEAN, VARIANCE, moved_statistics
from fedglass.core.types import BatchNorm, Candidate, Observation, Training, Unknown


@dataclass(frozen=True)
class OneGradient:
    """The gradient of the mean loss over all examples at the weights before [Zhu et al., 2019, Eq. 3].

    Exact for FedSGD. A FedAvg update is treated as one large step: it is divided by lr T where these are known, or
    by the corresponding factor with momentum, and compared in direction otherwise. Under Adam and with weight decay,
    where the message is not a multiple of a gradient, it is compared in direction too.
    """

    def bind(self, observation: Observation) -> BoundForward:
        network = network_of(observation)
        weights, knows = leaves(observation, network), observation.knows

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            return full_gradient(network, weights, candidate, knows.training, knows.loss)

        return BoundForward(mean_gradient(observation, network), predict, network.names)


@dataclass(frozen=True)
class RepeatedGradient:
    """T times that gradient, compared with the sum of the client's gradients [Dimitrov et al., 2022, "FedSGD"].

    The same direction as `OneGradient`, in the units in which the release of that paper weighs its priors. Under Adam
    and with weight decay, where the update does not give the sum of the gradients, the target is -update / lr.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.TRAINING, Fact.EQUAL_CLIENTS})

    def bind(self, observation: Observation) -> BoundForward:
        training, knows = known_training(observation), observation.knows
        network = network_of(observation)
        weights = leaves(observation, network)
        examples = max(1, observation.knows.examples // observation.knows.clients)
        steps = training.local_steps(examples)
        batches = min(len(training.batches(examples)), steps)

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            return [steps * g for g in full_gradient(network, weights, candidate, knows.training, knows.loss)]

        target = gradient_sum(observation, network, step_length(observation) or training.lr)
        return BoundForward(target, predict, network.names, batches=batches)


LARGEST_SUM = 0.2
"""Of a residual's entries, as a share of the largest: the sum is zero unless pruning or noise has changed some."""


@dataclass(frozen=True)
class ObservedResidual:
    """J(x)^T r with the residual r = softmax(logits) - onehot(label) fixed at its observed value.

    For one example the gradient of the last layer is r h^T (and r, for the bias), so that r need not be guessed
    along with the image. `OneGradient` computes r from the candidate: wherever the network's answer depends on
    the image, the candidate's r differs from the client's until the very end, which creates local minima. Both
    have zero residual at the truth. Measured on Inverting Gradients with DLG's LeNet, networks that
    answer with several classes go from 12 to above 20 dB.

    These cases are treated as by `OneGradient`:

    - a message of several examples or steps, which mixes their residuals;
    - labels that are optimised along with the images, which a fixed residual would leave where they are;
    - with `sized`, for distances that compare sizes, a network without a bias in the last layer: the message then
      gives r only up to its size, which is enough for a direction;
    - a message from which a defence has removed too much of r;
    - a message that is not a gradient, because of Adam or weight decay.
    """

    sized: bool = False

    def reads(self, observation: Observation) -> frozenset[Fact]:
        """Return the size of a single example's gradient as known: r gives the length of J(x)^T r."""
        alone = is_alone(observation) and _has_head(observation) and head_of(observation)[1] is not None
        return frozenset({Fact.SIZE}) if alone else frozenset()

    def bind(self, observation: Observation) -> BoundForward:
        if not is_alone(observation) or not _has_head(observation):
            return OneGradient().bind(observation)
        network = network_of(observation)
        weights = leaves(observation, network)
        target = mean_gradient(observation, network)
        weight, bias = head_of(observation)
        classes = target_kind(observation.knows.objective) is TargetKind.CLASSES
        if bias is None and (self.sized or not classes):
            return OneGradient().bind(observation)
        named = dict(zip(network.names, target, strict=True))
        residual = named[bias] if bias is not None else left_factor(named[weight])
        limits = limits_before_filter(observation)
        filtered = limits is not None and not all(torch.equal(*(side[n] for side in limits)) for n in (bias or weight,))
        if filtered or not (is_residual(residual) if classes else bool(residual.any())):
            return OneGradient().bind(observation)

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            if candidate.labels.is_floating_point() and classes:
                return full_gradient(network, weights, candidate, observation.knows.training, observation.knows.loss)
            error = (network(weights, candidate.images[0]) * residual).sum()
            gradient = torch.autograd.grad(error, weights, create_graph=True, materialize_grads=True)
            if not candidate.labels.requires_grad:
                return gradient
            # Targets that are unknowns have no influence: the residual is what they are good for.
            return [gradient[0] + 0.0 * candidate.labels.sum(), *gradient[1:]]

        return BoundForward(target, predict, network.names)


def _has_head(observation: Observation) -> bool:
    """Check that a dense layer gives the outputs; of a loss with classes it is taken for granted."""
    if target_kind(observation.knows.objective) is TargetKind.CLASSES:
        return True
    network = network_of(observation)
    weights = [observation.before[name] for name in network.names]
    with torch.no_grad():
        outputs = network(weights, weights[0].new_zeros(2, *observation.knows.shape))
    try:
        _, bias = head_of(observation)
    except ModelError:
        return False
    return bias is None or observation.before[bias].shape == outputs.shape[1:]


def is_alone(observation: Observation) -> bool:
    """Check that the message is one gradient of one example, as far as is known."""
    knows = observation.knows
    return knows.examples == 1 and knows.local_steps in (None, 1) and is_gradient(observation)


def is_residual(residual: Tensor) -> bool:
    """Check that this can be softmax minus one-hot, up to its size: not all zero, with a sum of nearly zero.

    >>> is_residual(torch.tensor([0.3, -0.9, 0.6])), is_residual(torch.zeros(3)), is_residual(torch.tensor([0.0, -0.9]))
    (True, False, False)
    """
    largest = residual.abs().max()
    return bool(largest > 0) and bool(residual.sum().abs() <= LARGEST_SUM * largest)


def left_factor(gradient: Tensor) -> Tensor:
    """Return r of a rank-one gradient r h^T, up to its scale, which `Cosine` ignores.  # (classes, n) -> (classes,)

    Its sign is known: softmax minus one-hot adds up to zero and is negative in one entry only, which is therefore the
    largest. With two classes both entries are equally large; there the mean of h is assumed to be positive.
    """
    singular: Tensor = torch.linalg.svd(gradient, full_matrices=False).U
    residual = singular[:, 0]
    flipped = residual[residual.abs().argmax()] > 0 if len(residual) > 2 else residual @ gradient.sum(1) < 0
    return torch.where(flipped, -residual, residual)


@dataclass(frozen=True)
class OnSegment:
    """The full-batch gradient at w0 + alpha (wT - w0), alpha an unknown in [0, 1] [Zhu et al., 2023, Eq. 5].

    `rate` is alpha's rate relative to the solver's. The paper's Algorithm 1 counts alpha from the other end.
    The gradient of alpha needs second derivatives in the weights, which cost as much again as those in the images.
    Since alpha moves slowly, `every=10` computes it at every tenth iteration only.
    """

    start: float = 0.5
    rate: float = 0.001
    every: int = 1

    def bind(self, observation: Observation) -> BoundForward:
        network = network_of(observation)
        before = leaves(observation, network)
        update = [observation.update[name] for name in network.names]
        knows = observation.knows

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            weights = [torch.addcmul(w, unknowns[0], u) for w, u in zip(before, update, strict=True)]
            return full_gradient(network, weights, candidate, knows.training, knows.loss)

        zero, one = (before[0].new_tensor(value) for value in (0.0, 1.0))
        alpha = Unknown(torch.full_like(zero, self.start), zero, one, self.rate, self.every, name="alpha")
        return BoundForward(mean_gradient(observation, network), predict, network.names, (alpha,))


@dataclass(frozen=True)
class AlongSegment:
    """The mean of the full-batch gradients at `points` weights, evenly spread over the local steps, on w0..wT.

    The message is a sum of gradients at weights all along the way, which one gradient at one point cannot be. At the
    true images, 1 - cos between message and prediction with 1, 2, 3 and 4 points is 0.033, 0.022, 0.018 and 0.017 on
    the CIFAR CNN with ten images, 0.047, 0.033, 0.029 and 0.029 with fifty (each the mean of two messages). Each point
    costs as much again. Exact for one local step, which starts at w0.
    """

    points: int = 2

    def __post_init__(self) -> None:
        check_at_least("AlongSegment.points", self.points, 1)

    def bind(self, observation: Observation) -> BoundForward:
        network = network_of(observation)
        ends = [(observation.before[name], observation.update[name]) for name in network.names]
        places = [
            [torch.add(w, u, alpha=alpha).detach().requires_grad_() for w, u in ends]
            for alpha in self.places(observation.knows.local_steps)
        ]
        knows = observation.knows

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            gradients = [full_gradient(network, weights, candidate, knows.training, knows.loss) for weights in places]
            return [torch.stack(parts).mean(0) for parts in zip(*gradients, strict=True)]

        return BoundForward(mean_gradient(observation, network), predict, network.names)

    def places(self, steps: int | None) -> list[float]:
        """Return the points as shares of the way, shifted by half a step: a step's gradient is taken at its start.

        >>> AlongSegment(2).places(1), AlongSegment(2).places(10), AlongSegment(2).places(None)
        ([0.0], [0.2, 0.7], [0.25, 0.75])
        """
        n = self.points if steps is None else min(self.points, steps)
        shift = 0.0 if steps is None else 0.5 / steps
        return [(i + 0.5) / n - shift for i in range(n)]


@dataclass(frozen=True)
class BesideStatistics:
    """The prediction of `forward`, followed by mean and variance of the input of each BatchNorm layer.

    A step in train mode moves a layer's running statistics to r' = (1 - m) r + m s, with s those of the batch, so that
    r' gives the mean of s over T steps, (r' - (1 - m)^T r) / (1 - (1 - m)^T). Defences of the update do not change it.
    Exact for one step of one client on all of its examples. For more steps s is taken half way along the update. Of an
    aggregate only the mean is read: the variance within a client's batches is not that of all examples.
    Where no statistics have moved, this is `forward` alone.
    """

    uses: ClassVar[frozenset[Fact]] = frozenset({Fact.STATISTICS})

    forward: Forward

    def reads(self, observation: Observation) -> frozenset[Fact]:
        return reads_of(self.forward, observation)

    def bind(self, observation: Observation) -> BoundForward:
        inner, observed = self.forward.bind(observation), batch_statistics(observation)
        if not observed:
            return inner
        # Statistics that have moved were moved by a training in train mode, whatever else is known.
        training = replace(observation.knows.training or Training(lr=1.0), batch_norm=BatchNorm.BATCH)
        network = network_of(replace(observation, knows=replace(observation.knows, training=training)))
        steps = steps_taken(observation)
        travelled = (steps - 1) / (2 * steps)  # the mean of 0, 1, ... T - 1 over T
        before, update = observation.before, observation.update
        weights = [before[name] + travelled * update[name] for name in network.names]
        with torch.no_grad():  # without layers that run twice in a pass, or never: they cannot be matched
            once = network.statistics(weights, weights[0].new_zeros(2, *observation.knows.shape))
        target = {name: tensor for name, tensor in observed.items() if name.rpartition(".")[0] in once}

        def predict(candidate: Candidate, unknowns: Sequence[Tensor]) -> Sequence[Tensor]:
            statistics = network.statistics(weights, candidate.images[0])
            buffers = (name.rpartition(".") for name in target)
            moments = [statistics[layer][0 if kind == MEAN else 1] for layer, _, kind in buffers]
            return [*inner.predict(candidate, unknowns), *moments]

        return replace(inner, target=(*inner.target, *target.values()), names=(*inner.names, *target), predict=predict)


def steps_taken(observation: Observation) -> int:
    """Return T, the local steps: those that the layers have counted, or else those that the adversary knows."""
    before, after = observation.buffers, observation.buffers_after
    counted = {
        round(float(after[name]) - float(before[name]))
        for name in before
        if name.endswith(COUNTER) and name in after and observation.knows.clients == 1
    }
    return max([0, *counted]) or max(observation.knows.local_steps or 1, 1)


def batch_statistics(observation: Observation) -> Mapping[str, Tensor]:
    """Return the mean over the local steps of each batch's statistics, by the name of the buffer that holds it."""
    before, after, steps = observation.buffers, observation.buffers_after, steps_taken(observation)
    decay = {
        name: (1 - layer.momentum) ** steps
        for name, layer in observation.model.named_modules()
        if isinstance(layer, _BatchNorm) and layer.momentum
    }
    kinds = (MEAN, VARIANCE) if observation.knows.clients == 1 else (MEAN,)
    return {
        name: (after[name] - decay[layer] * before[name]) / (1 - decay[layer])
        for name in moved_statistics(before, after)
        for layer, _, kind in [name.rpartition(".")]
        if layer in decay and kind in kinds
    }
